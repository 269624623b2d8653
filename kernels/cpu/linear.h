// One block of outputs of a linear layer with packed bfloat16 weights.
//
// A packed weight is [outputs / 16, inputs / 32, 16, 16, 2]: tiles of 16 outputs × 32 inputs, each row
// of a tile holding one pair of inputs for all 16 outputs. That is the right operand of the matrix
// unit, a vector of pairs for AVX512-BF16, and plain columns for the rest. Both sizes are padded
// with zeros. The weights of one block of 16 outputs are one contiguous run.
#pragma once
#include "amx.h"
#include "numbers.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace kvmesh {

constexpr int kBlock = 16;                // outputs of a tile
constexpr int kDepth = 32;                // inputs of a tile
constexpr int kTile = kBlock * kDepth;    // elements
constexpr int kWide = 2 * kBlock;         // outputs that are computed together
constexpr int kRows = 32;                 // tokens that are computed together

// x [tokens, stride] times two blocks of weights, `first` and `second` → sums [tokens, kWide].
struct Panel {
    const bf16* x;
    int64_t stride;  // a multiple of kDepth
    const bf16* first;
    const bf16* second;
    int64_t depth;  // tiles of inputs
    bool cold;  // the weights come from memory: 0.9 of the time at 512 tokens if only then asked for early

    // How far ahead of the tiles at depth `d` those lie that are asked for: the hardware's own guess
    // stops at a page's end. Behind the last ones, the next two blocks begin.
    int64_t ahead(int64_t d) const {
        constexpr int64_t kTilesAhead = 4;
        return (kTilesAhead + (d + kTilesAhead < depth ? 0 : depth)) * kTile;
    }
};

#if defined(__AVX512BF16__)
// Memory-bound: each 64 bytes of weights meet one product a token. Four sums hide its latency.
template <int tokens>
inline void multiply_few(const Panel& panel, float* sums) {
    constexpr int chains = tokens == 1 ? 4 : tokens == 2 ? 2 : 1;
    __m512 acc[2][tokens][chains];
    for (auto& block : acc)
        for (auto& token : block)
            for (auto& sum : token) sum = _mm512_setzero_ps();
    for (int64_t d = 0; d < panel.depth; d++) {
        const bf16* w[2] = {panel.first + d * kTile, panel.second + d * kTile};
        const int64_t ahead = panel.ahead(d);
        for (int i = 0; i < 16; i++) {
            _mm_prefetch(w[0] + 32 * i + ahead, _MM_HINT_T0);
            _mm_prefetch(w[1] + 32 * i + ahead, _MM_HINT_T0);
            __m512bh left = (__m512bh)_mm512_loadu_si512(w[0] + 32 * i);
            __m512bh right = (__m512bh)_mm512_loadu_si512(w[1] + 32 * i);
            for (int t = 0; t < tokens; t++) {
                int pair;
                std::memcpy(&pair, panel.x + t * panel.stride + d * kDepth + 2 * i, sizeof pair);
                __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
                acc[0][t][i % chains] = _mm512_dpbf16_ps(acc[0][t][i % chains], left, value);
                acc[1][t][i % chains] = _mm512_dpbf16_ps(acc[1][t][i % chains], right, value);
            }
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int b = 0; b < 2; b++) {
            __m512 sum = acc[b][t][0];
            for (int c = 1; c < chains; c++) sum = _mm512_add_ps(sum, acc[b][t][c]);
            _mm512_storeu_ps(sums + t * kWide + b * kBlock, sum);
        }
}
#else
template <int tokens>
inline void multiply_few(const Panel& panel, float* sums) {
    const bf16* weights[2] = {panel.first, panel.second};
    for (int b = 0; b < 2; b++) {
        float acc[tokens][kBlock] = {};
        for (int64_t k = 0; k < panel.depth * kDepth / 2; k++) {
            const bf16* w = weights[b] + k * 2 * kBlock;
            for (int t = 0; t < tokens; t++) {
                const float even = to_float(panel.x[t * panel.stride + 2 * k]);
                const float odd = to_float(panel.x[t * panel.stride + 2 * k + 1]);
#pragma omp simd
                for (int n = 0; n < kBlock; n++)
                    acc[t][n] += even * to_float(w[2 * n]) + odd * to_float(w[2 * n + 1]);
            }
        }
        for (int t = 0; t < tokens; t++)
            std::memcpy(sums + t * kWide + b * kBlock, acc[t], sizeof acc[t]);
    }
}
#endif

inline void multiply_in_fours(const Panel& panel, int tokens, float* sums) {
    for (int t = 0; t < tokens; t += 4) {
        Panel part = panel;
        part.x += t * panel.stride;
        float* to = sums + t * kWide;
        switch (tokens - t) {
            case 1: multiply_few<1>(part, to); break;
            case 2: multiply_few<2>(part, to); break;
            case 3: multiply_few<3>(part, to); break;
            default: multiply_few<4>(part, to);
        }
    }
}

#if defined(KVMESH_AMX)
inline void prefetch_tiles(const bf16* first, const bf16* second, int64_t ahead) {
    for (int i = 0; i < 16; i++) {
        _mm_prefetch(first + ahead + 32 * i, _MM_HINT_T0);
        _mm_prefetch(second + ahead + 32 * i, _MM_HINT_T0);
    }
}

// 1 to 32 tokens, as one or two tiles of rows; tiles are configured for that.
inline void multiply_tiles(const Panel& panel, int tokens, float* sums) {
    const int64_t row_bytes = panel.stride * 2;
    const bf16* below = panel.x + 16 * panel.stride;
    _tile_zero(0);
    _tile_zero(1);
    if (tokens > 16) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t d = 0; d < panel.depth; d++) {
        if (panel.cold) prefetch_tiles(panel.first + d * kTile, panel.second + d * kTile, panel.ahead(d));
        _tile_loadd(4, panel.x + d * kDepth, row_bytes);
        _tile_loadd(6, panel.first + d * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, panel.second + d * kTile, 64);
        _tile_dpbf16ps(1, 4, 7);
        if (tokens > 16) {
            _tile_loadd(5, below + d * kDepth, row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, kWide * 4);
    _tile_stored(1, sums + kBlock, kWide * 4);
    if (tokens > 16) {
        _tile_stored(2, sums + 16 * kWide, kWide * 4);
        _tile_stored(3, sums + 16 * kWide + kBlock, kWide * 4);
    }
}
#endif

}  // namespace kvmesh
