// All layers of a decoder in one call. Called one by one from Python, the kernels of one token wait for
// each other and for Python's lock: a fifth of a step of a small model.
#include <vector>

#include "api.h"
#include "norm.h"

using namespace kvmesh;

namespace {

// Laid out as the structures of decoder.py.
struct Packed {
    const void* weight;
    const float* bias;  // or null
    int64_t outputs;
};

struct Layer {
    const float* input_norm;
    Packed qkv;
    const float* head_norm;  // or null
    Packed output;
    const float* output_norm;  // or null
    const float* mlp_norm;
    Packed gate_up;
    Packed down;
    const float* down_norm;  // or null
    int64_t window;
    int64_t rope;  // which of the rotations
    float scale, softcap;
};

}  // namespace

struct KvmeshDecoder {
    const Layer* layers;
    int64_t num_layers, hidden, inner;
    float epsilon;
    Ending gate;
};

namespace {

// Of one step, between the kernels; one for each thread that calls, as large as its largest step.
struct Scratch {
    std::vector<bf16> normed, query, attended, gated;
    std::vector<float> qkv, output;

    void fit(int64_t tokens, int64_t hidden, int64_t query_size, int64_t qkv_size, int64_t inner) {
        const auto grow = [&](auto& buffer, int64_t size) {
            if (int64_t(buffer.size()) < tokens * size) buffer.resize(tokens * size);
        };
        grow(normed, hidden);
        grow(query, query_size);
        grow(attended, query_size);
        grow(gated, inner);
        grow(qkv, qkv_size);
        grow(output, hidden);
    }
};

struct Stream {
    float* residual;  // [tokens, hidden]
    int64_t tokens, hidden;
    float epsilon;
    int threads;

    void norm(const float* weight, bf16* out) const {
        kvmesh_rms_norm(residual, tokens, hidden, weight, epsilon, 1, out, threads);
    }

    void multiply(const bf16* x, int64_t inputs, const Packed& packed, Ending ending, void* out) const {
        kvmesh_linear(x, tokens, inputs, packed.weight, packed.outputs, packed.bias, ending, out, threads);
    }

    // Adds the product, normed where the family does so; `output` is scratch.
    void add(const bf16* x, int64_t inputs, const Packed& packed, const float* weight, float* output) const {
        if (!weight) return multiply(x, inputs, packed, kAdd, residual);
        multiply(x, inputs, packed, kFloat32, output);
        for (int64_t t = 0; t < tokens; t++) {
            const float* from = output + t * hidden;
            const float scale = inverse_rms(from, hidden, epsilon);
            float* to = residual + t * hidden;
            for (int64_t i = 0; i < hidden; i++) to[i] += from[i] * scale * weight[i];
        }
    }
};

}  // namespace

// Runs `tokens` of `residual` [tokens, hidden], float32, through all layers, in place. The weights are
// bfloat16; the pool is bfloat16 or quantised. `rotations` are cos and sin [tokens, head_dim] of each rope in turn;
// `sizes`, `spans` and `tables` as for kvmesh_attention.
extern "C" void kvmesh_decoder(const KvmeshDecoder* decoder, void* pool, int32_t kind, const PoolSizes* sizes,
                               int64_t num_rows, const int64_t* spans, const int32_t* tables, int64_t tokens,
                               float* residual, const float* const* rotations, int32_t threads) {
    thread_local Scratch s;
    const int64_t query_size = sizes->heads * sizes->head_dim, kv_size = sizes->kv_heads * sizes->head_dim;
    s.fit(tokens, decoder->hidden, query_size, query_size + 2 * kv_size, decoder->inner);
    const Stream stream{residual, tokens, decoder->hidden, decoder->epsilon, threads};
    for (int64_t i = 0; i < decoder->num_layers; i++) {
        const Layer& layer = decoder->layers[i];
        const float* const* rotation = rotations + 2 * layer.rope;
        stream.norm(layer.input_norm, s.normed.data());
        stream.multiply(s.normed.data(), decoder->hidden, layer.qkv, kFloat32, s.qkv.data());
        kvmesh_place(pool, kind, sizes, i, num_rows, spans, tables, s.qkv.data(), rotation[0], rotation[1],
                     layer.head_norm, decoder->epsilon, s.query.data(), threads);
        kvmesh_attention(pool, kind, sizes, i, num_rows, spans, tables, s.query.data(), s.attended.data(),
                         layer.scale, layer.window, layer.softcap, threads);
        stream.add(s.attended.data(), query_size, layer.output, layer.output_norm, s.output.data());
        stream.norm(layer.mlp_norm, s.normed.data());
        stream.multiply(s.normed.data(), decoder->hidden, layer.gate_up, decoder->gate, s.gated.data());
        stream.add(s.gated.data(), decoder->inner, layer.down, layer.down_norm, s.output.data());
    }
}
