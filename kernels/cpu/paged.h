// What an attention call reads: the paged pool, the rows of a ragged step, and how scores are made.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace kvmesh {

enum KvKind : int32_t { kKvFloat32 = 0, kKvBfloat16 = 1, kKvFp8 = 2, kKvInt8 = 3 };

// Calls `run` with an element of `kind`.
template <typename Run>
inline void with_kind(int32_t kind, Run run) {
    switch (kind) {
        case kKvFloat32: return run(float{});
        case kKvBfloat16: return run(bf16{});
        case kKvFp8: return run(e4m3{});
        default: return run(int8_t{});
    }
}

// What the pool's blocks are made of, as Python describes them.
struct PoolSizes {
    int64_t layers, heads, kv_heads, block_size, head_dim;
    int64_t block_bytes;
    int64_t scales_at;         // where the scales of int8 begin in a block, bytes
    const float* head_scales;  // of fp8, [layers, 2, kv_heads], or null
};
static_assert(sizeof(PoolSizes) == 8 * sizeof(int64_t));

// One layer of a pool whose blocks hold elements [layers, 2, kv_heads, block_size, head_dim], then scales
// [layers, 2, kv_heads, block_size].
template <typename T>
struct PagedLayer {
    const char *keys, *scales;  // of block 0
    const float* head_scales;   // [2, kv_heads]
    int64_t block_bytes;
    int64_t value_offset, head_stride, value_scale_offset;  // elements
    int64_t block_size, head_dim, kv_heads;

    PagedLayer(const void* pool, const PoolSizes& sizes, int64_t layer)
        : block_bytes(sizes.block_bytes), head_stride(sizes.block_size * sizes.head_dim),
          value_scale_offset(sizes.kv_heads * sizes.block_size), block_size(sizes.block_size),
          head_dim(sizes.head_dim), kv_heads(sizes.kv_heads) {
        value_offset = kv_heads * head_stride;
        keys = static_cast<const char*>(pool) + layer * 2 * value_offset * int64_t(sizeof(T));
        scales = static_cast<const char*>(pool) + sizes.scales_at + layer * 2 * value_scale_offset * int64_t(sizeof(half));
        head_scales = sizes.head_scales ? sizes.head_scales + layer * 2 * kv_heads : nullptr;
    }

    const T* key(int32_t block, int64_t head, int64_t slot) const {
        return reinterpret_cast<const T*>(keys + block * block_bytes) + head * head_stride + slot * head_dim;
    }
    const half* key_scale(int32_t block, int64_t head, int64_t slot) const {
        return reinterpret_cast<const half*>(scales + block * block_bytes) + head * block_size + slot;
    }
};

// New tokens of one sequence: queries `first`.. of the step, at positions [start, end).
struct Row {
    int64_t first, start, end;
    const int32_t* table;
};

// Scores are kept in base two: weights are powers of two, one product cheaper than those of e.
struct Scoring {
    float scale;
    int64_t window;  // tokens that a query sees, its own included; the largest integer for all
    float softcap;   // 0: none

    // The first key that a query at `position` sees.
    int64_t first_key(int64_t position) const { return std::max<int64_t>(0, position - window + 1); }

    Lanes score(Lanes products) const {
        if (softcap == 0.0f) return products * (scale * kLog2E);
        return softcap * kLog2E * tanh(products * (scale / softcap));
    }
};

// How far above the base a score may lie before the base moves: weights reach 2^8, and the sums so far are
// seldom multiplied. No base is as low as −∞, so that differences are numbers.
constexpr float kHeadroom = 8.0f, kLowestBase = -1e30f;

// Softmax over keys that arrive in chunks (Milakov and Gimelshein, arXiv:1805.02867): the weights so
// far are relative to `base`, and shrink when it moves.
struct OnlineSoftmax {
    float base = kLowestBase;
    float total = 0.0f;

    // Returns the factor for what has been summed before, for a chunk whose highest score is given.
    float raise(float highest) {
        if (highest <= base + kHeadroom) return 1.0f;
        const float factor = exp2(base - highest);
        base = highest;
        total *= factor;
        return factor;
    }
};

}  // namespace kvmesh
