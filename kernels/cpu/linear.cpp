// Linear layers with packed bfloat16 weights, and what follows each in a decoder layer.
#include <algorithm>
#include <vector>

#include "aligned.h"
#include "api.h"
#include "lanes.h"
#include "linear.h"

using namespace kvmesh;

namespace {

struct Linear {
    const bf16* x;
    int64_t stride;
    int64_t tokens;
    const bf16* weight;
    int64_t outputs;  // before padding
    int64_t depth;    // tiles of inputs
    const float* bias;
    Ending ending;
    void* out;  // [tokens, outputs], or [tokens, outputs / 2] where gated
};

// One row of one pair of blocks: outputs from `first` on, fewer than kWide in the last pair.
template <Ending ending>
void plain_end(const Linear& linear, int64_t first, int64_t row, const float* sums) {
    const int count = int(std::min<int64_t>(kWide, linear.outputs - first));
    float* to = static_cast<float*>(linear.out) + row * linear.outputs + first;
    const float* bias = linear.bias ? linear.bias + first : nullptr;
    int n = 0;
    for (; n + kLanes <= count; n += kLanes) {
        Lanes value = load(sums + n);
        if (bias) value += load(bias + n);
        if (ending == kAdd) value += load(to + n);
        store(to + n, value);
    }
    for (; n < count; n++) to[n] = sums[n] + (bias ? bias[n] : 0.0f) + (ending == kAdd ? to[n] : 0.0f);
}

// The first block of a pair holds 16 rows of the gate, the second the same rows of up.
template <Ending ending>
void gated_end(const Linear& linear, int64_t first, int64_t row, const float* sums) {
    bf16* to = static_cast<bf16*>(linear.out) + (row * linear.outputs + first) / 2;
    for (int n = 0; n < kBlock; n += kLanes) {
        Lanes gate = load(sums + n), up = load(sums + n + kBlock);
        if (linear.bias) {
            gate += load(linear.bias + first + n);
            up += load(linear.bias + first + n + kBlock);
        }
        store(to + n, (ending == kSiluGate ? silu(gate) : gelu_tanh(gate)) * up);
    }
}

template <Ending ending>
void finish_as(const Linear& linear, int64_t first, int64_t row, int tokens, const float* sums) {
    for (int t = 0; t < tokens; t++, sums += kWide)
        if constexpr (ending >= kSiluGate)
            gated_end<ending>(linear, first, row + t, sums);
        else
            plain_end<ending>(linear, first, row + t, sums);
}

void finish(const Linear& linear, int64_t first, int64_t row, int tokens, const float* sums) {
    switch (linear.ending) {
        case kFloat32: return finish_as<kFloat32>(linear, first, row, tokens, sums);
        case kAdd: return finish_as<kAdd>(linear, first, row, tokens, sums);
        case kSiluGate: return finish_as<kSiluGate>(linear, first, row, tokens, sums);
        case kGeluGate: return finish_as<kGeluGate>(linear, first, row, tokens, sums);
    }
}

void run_block(const Linear& linear, int64_t pair, int64_t row, int tokens, bool tiles) {
    alignas(64) float sums[kRows * kWide];
    const int64_t run = linear.depth * kTile;
    const bf16* first = linear.weight + 2 * pair * run;
    const bf16* second = (2 * pair + 1) * kBlock < linear.outputs ? first + run : first;
    const Panel panel{linear.x + row * linear.stride, linear.stride, first, second, linear.depth, row == 0};
#if defined(KVMESH_AMX)
    if (tiles) multiply_tiles(panel, tokens, sums);
#endif
    if (!tiles) multiply_in_fours(panel, tokens, sums);
    finish(linear, pair * kWide, row, tokens, sums);
}

// All tokens for the pairs of blocks [begin, end). Chunks of weights stay in the second-level cache
// while the tokens go by, so that memory is read once; 32 tokens stay in the first level.
void run_blocks(const Linear& linear, int64_t begin, int64_t end, bool tiles) {
    constexpr int64_t kChunkBytes = 1 << 20;
    const int64_t pair_bytes = 2 * linear.depth * kTile * int64_t(sizeof(bf16));
    const int64_t step = std::max<int64_t>(1, kChunkBytes / pair_bytes);
    for (int64_t chunk = begin; chunk < end; chunk += step)
        for (int64_t row = 0; row < linear.tokens; row += kRows) {
            const int count = int(std::min<int64_t>(kRows, linear.tokens - row));
#if defined(KVMESH_AMX)
            if (tiles) configure_tiles(std::min(16, count), std::max(0, count - 16), kBlock);
#endif
            for (int64_t pair = chunk; pair < std::min(end, chunk + step); pair++)
                run_block(linear, pair, row, count, tiles);
        }
}

bool use_tiles(int64_t tokens) {
#if defined(KVMESH_AMX)
    return tokens > 4 && amx_ready();
#else
    return false && tokens;
#endif
}

}  // namespace

extern "C" void kvmesh_linear(const void* x, int64_t tokens, int64_t inputs, const void* weight, int64_t outputs,
                              const float* bias, int32_t ending, void* out, int32_t threads) {
    const int64_t depth = ceil_div(inputs, kDepth);
    Linear linear{static_cast<const bf16*>(x), inputs, tokens, static_cast<const bf16*>(weight), outputs, depth,
                  bias, Ending(ending), out};
    LineVector<bf16> padded;
    if (inputs % kDepth) {
        linear.stride = depth * kDepth;
        padded.assign(tokens * linear.stride, bf16{0});
        for (int64_t t = 0; t < tokens; t++)
            std::memcpy(&padded[t * linear.stride], linear.x + t * inputs, inputs * sizeof(bf16));
        linear.x = padded.data();
    }
    const int64_t pairs = ceil_div(outputs, kWide);
    const bool tiles = use_tiles(tokens);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t part = 0; part < threads; part++)
            run_blocks(linear, pairs * part / threads, pairs * (part + 1) / threads, tiles);
#if defined(KVMESH_AMX)
        if (tiles) _tile_release();
#endif
    }
}
