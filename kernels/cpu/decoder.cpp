// All layers of a decoder in one call. Called one by one from Python, the kernels of one token wait for
// each other and for Python's lock: a fifth of a step of a small model.
#include <vector>

#include "aligned.h"
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
    LineVector<bf16> input, query, gated;  // of the products
    LineVector<float> qkv, output;

    void fit(int64_t tokens, const KvmeshDecoder& decoder, const PoolSizes& sizes) {
        const int64_t query_size = sizes.heads * sizes.head_dim, kv_size = sizes.kv_heads * sizes.head_dim;
        const auto grow = [&](auto& buffer, int64_t size) {
            if (int64_t(buffer.size()) < tokens * size) buffer.resize(tokens * size);
        };
        grow(input, std::max(decoder.hidden, query_size));
        grow(query, query_size);
        grow(gated, decoder.inner);
        grow(qkv, query_size + 2 * kv_size);
        if (decoder.layers[0].output_norm) grow(output, decoder.hidden);
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

namespace {

struct StepRows {
    std::vector<int64_t> spans;  // [rows, 4]

    int64_t count() const { return int64_t(spans.size()) / kRowSpan; }
};

// Behind the keys of the last layer only the wanted tokens matter. If each is the last of its row, they are a
// step of their own.
bool narrow(StepRows& rows, const int64_t* wanted, int64_t count) {
    std::vector<int64_t> spans;
    int64_t found = 0;
    for (int64_t i = 0, first = 0; i < rows.count(); i++) {
        const int64_t* span = &rows.spans[i * kRowSpan];
        first += span[1] - span[0];
        if (found == count || wanted[found] != first - 1) continue;
        spans.insert(spans.end(), {span[1] - 1, span[1], span[2], span[3]});
        found++;
    }
    if (found == count) rows.spans = spans;
    return found == count;
}

// Rows `wanted` of x [.., size] come first; `wanted` ascends.
template <typename T>
void gather(T* x, int64_t size, const int64_t* wanted, int64_t count) {
    for (int64_t i = 0; i < count; i++) std::memmove(x + i * size, x + wanted[i] * size, size * sizeof(T));
}

}  // namespace

// Runs `tokens` of `residual` [tokens, hidden], float32, through all layers, in place. Returns 1 if only
// those `wanted` were computed, and are its first rows. The weights are bfloat16; the pool is bfloat16 or
// quantised. `rotations` are cos and sin [tokens, head_dim] of each rope in turn; `sizes`, `spans` and `tables` as for kvmesh_attention.
extern "C" int32_t kvmesh_decoder(const KvmeshDecoder* decoder, void* pool, int32_t kind, const PoolSizes* sizes,
                               int64_t num_rows, const int64_t* spans, const int32_t* tables, int64_t tokens,
                               float* residual, const float* const* rotations, const int64_t* wanted,
                               int64_t num_wanted, int32_t threads) {
    thread_local Scratch s;
    s.fit(tokens, *decoder, *sizes);
    const int64_t query_size = sizes->heads * sizes->head_dim;
    Stream stream{residual, tokens, decoder->hidden, decoder->epsilon, threads};
    StepRows rows{{spans, spans + num_rows * kRowSpan}};
    bool narrowed = false;
    for (int64_t i = 0; i < decoder->num_layers; i++) {
        const Layer& layer = decoder->layers[i];
        const float* const* rotation = rotations + 2 * layer.rope;
        stream.norm(layer.input_norm, s.input.data());
        stream.multiply(s.input.data(), decoder->hidden, layer.qkv, kFloat32, s.qkv.data());
        kvmesh_place(pool, kind, sizes, i, rows.count(), rows.spans.data(), tables, s.qkv.data(), rotation[0],
                     rotation[1], layer.head_norm, decoder->epsilon, s.query.data(), threads);
        narrowed = i + 1 == decoder->num_layers && narrow(rows, wanted, num_wanted);
        if (narrowed) {
            gather(residual, decoder->hidden, wanted, num_wanted);
            gather(s.query.data(), query_size, wanted, num_wanted);
            stream.tokens = num_wanted;
        }
        kvmesh_attention(pool, kind, sizes, i, rows.count(), rows.spans.data(), tables, s.query.data(),
                         s.input.data(), layer.scale, layer.window, layer.softcap, threads);
        stream.add(s.input.data(), query_size, layer.output, layer.output_norm, s.output.data());
        stream.norm(layer.mlp_norm, s.input.data());
        stream.multiply(s.input.data(), decoder->hidden, layer.gate_up, decoder->gate, s.gated.data());
        stream.add(s.gated.data(), decoder->inner, layer.down, layer.down_norm, s.output.data());
    }
    return narrowed;
}
