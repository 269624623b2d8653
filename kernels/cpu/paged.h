// What an attention call reads: the paged pool, the rows of a ragged step, and how scores are made.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numbers.h"

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

struct Scoring {
    float scale;
    int64_t window;  // tokens that a query sees, its own included; the largest integer for all
    float softcap;   // 0: none

    // The first key that a query at `position` sees.
    int64_t first_key(int64_t position) const { return std::max<int64_t>(0, position - window + 1); }

    // Products of queries and keys become scores.
    void score(float* products, int count) const {
        if (softcap == 0.0f)
#pragma omp simd
            for (int i = 0; i < count; i++) products[i] *= scale;
        else
#pragma omp simd
            for (int i = 0; i < count; i++) products[i] = softcap * fast_tanh(products[i] * scale / softcap);
    }
};

// Softmax over keys that arrive in chunks (Milakov and Gimelshein, arXiv:1805.02867): the weights so
// far are relative to `highest`, and shrink when a higher score comes.
struct OnlineSoftmax {
    float highest = -INFINITY;
    float total = 0.0f;

    // Returns the factor for what has been summed before, for a chunk whose highest score is given.
    float raise(float candidate) {
        if (candidate <= highest) return 1.0f;
        const float factor = highest == -INFINITY ? 0.0f : fast_exp(highest - candidate);
        highest = candidate;
        total *= factor;
        return factor;
    }
};

}  // namespace kvmesh
