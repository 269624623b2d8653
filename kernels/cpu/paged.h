// What an attention call reads: the paged pool, the rows of a ragged step, and how scores are made.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace kvmesh {

// One layer of a pool [blocks, layers, 2, kv_heads, block_size, head_dim].
template <typename T>
struct PagedLayer {
    const T* keys;  // of block 0
    int64_t block_stride, value_offset, head_stride;
    int64_t block_size, head_dim;

    PagedLayer(const T* pool, int64_t layers, int64_t layer, int64_t kv_heads, int64_t block_size, int64_t head_dim)
        : head_stride(block_size * head_dim), block_size(block_size), head_dim(head_dim) {
        value_offset = kv_heads * head_stride;
        block_stride = layers * 2 * value_offset;
        keys = pool + layer * 2 * value_offset;
    }

    const T* key(int32_t block, int64_t head, int64_t slot) const {
        return keys + block * block_stride + head * head_stride + slot * head_dim;
    }
    const T* value(int32_t block, int64_t head, int64_t slot) const {
        return key(block, head, slot) + value_offset;
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
