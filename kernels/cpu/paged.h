// What an attention call reads: the paged pool, the rows of a ragged step, and how scores are made.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "lanes.h"

namespace kvmesh {

enum KvKind : int32_t { kKvFloat32 = 0, kKvBfloat16 = 1, kKvFp8 = 2, kKvInt8 = 3, kKvInt4 = 4 };

// Calls `run` with an element of `kind`.
template <typename Run>
inline void with_kind(int32_t kind, Run run) {
    switch (kind) {
        case kKvFloat32: return run(float{});
        case kKvBfloat16: return run(bf16{});
        case kKvFp8: return run(e4m3{});
        case kKvInt8: return run(int8_t{});
        default: return run(nibbles{});
    }
}

// What the pool's blocks are made of, as Python describes them: see kv_layout.py, kv_int4.py.
struct PoolSizes {
    int64_t layers, heads, kv_heads, block_size, head_dim;
    int64_t block_bytes;
    int64_t scales_at, codes_at;  // in a block, bytes
    const float* head_scales;     // of fp8, [layers, 2, kv_heads], or null
    const float* centres;         // [layers, 2, kv_heads, head_dim], taken from keys and values, or null
    bf16* tails;                  // of int4, [slots, layers, kv_heads, block_size, head_dim], or null
};
static_assert(sizeof(PoolSizes) == 11 * sizeof(int64_t));

// The blocks of a row. The keys of an int4 pool from position `open_from` on, those of the row's own block,
// are in a tail.
struct BlockTable {
    const int32_t* blocks;
    int64_t open_from, tail;
};

// What a stored key and value need to become numbers.
template <typename T>
struct SlotParams {};

template <>
struct SlotParams<int8_t> {
    half *key_scale, *value_scale;
};

template <>
struct SlotParams<nibbles> {
    e5m3* key_scales;   // [head_dim]
    int8_t* key_zeros;  // [head_dim]
    half* value_scale;
    int8_t* value_zero;
    nibbles* fine;  // [head_dim / 2] of a block's first value, else null
};

// One layer of a pool whose blocks hold elements [layers, 2, kv_heads, block_size, head_dim], then scales.
template <typename T>
struct PagedLayer {
    char* blocks;
    PoolSizes sizes;
    int64_t layer, block_size, head_dim, kv_heads;
    int64_t vector_size, head_stride, value_offset;  // stored elements

    PagedLayer(void* pool, const PoolSizes& sizes, int64_t layer)
        : blocks(static_cast<char*>(pool)), sizes(sizes), layer(layer), block_size(sizes.block_size),
          head_dim(sizes.head_dim), kv_heads(sizes.kv_heads),
          vector_size(std::is_same_v<T, nibbles> ? head_dim / 2 : head_dim), head_stride(block_size * vector_size),
          value_offset(kv_heads * head_stride) {}

    T* key(int32_t block, int64_t head, int64_t slot) const {
        return at<T>(block, 0) + 2 * layer * value_offset + head * head_stride + slot * vector_size;
    }
    // Of fp8, for keys and values.
    const float* head_scale(int64_t head) const { return sizes.head_scales + 2 * layer * kv_heads + head; }

    // Of keys and values; null where there are none.
    const float* key_centre(int64_t head) const {
        return sizes.centres ? sizes.centres + (2 * layer * kv_heads + head) * head_dim : nullptr;
    }
    const float* value_centre(int64_t head) const { return sizes.centres ? key_centre(kv_heads + head) : nullptr; }

    bf16* tail(int64_t tail, int64_t head, int64_t slot) const {
        return sizes.tails + (((tail * sizes.layers + layer) * kv_heads + head) * block_size + slot) * head_dim;
    }

    SlotParams<T> params([[maybe_unused]] int32_t block, [[maybe_unused]] int64_t head,
                         [[maybe_unused]] int64_t slot) const {
        const int64_t vector = head * block_size + slot;
        if constexpr (std::is_same_v<T, int8_t>) {
            half* scales = at<half>(block, sizes.scales_at) + 2 * layer * kv_heads * block_size + vector;
            return {scales, scales + kv_heads * block_size};
        } else if constexpr (std::is_same_v<T, nibbles>) {
            const int64_t of_head = 2 * head_dim + vector_size + block_size;
            e5m3* codes = at<e5m3>(block, sizes.codes_at) + (layer * kv_heads + head) * of_head;
            int8_t* zeros = reinterpret_cast<int8_t*>(codes + head_dim);
            nibbles* fine = reinterpret_cast<nibbles*>(zeros + head_dim);
            half* scales = at<half>(block, sizes.scales_at) + layer * kv_heads * block_size;
            return {codes, zeros, scales + vector, zeros + head_dim + vector_size + slot, slot == 0 ? fine : nullptr};
        } else {
            return {};
        }
    }

private:
    template <typename Part>
    Part* at(int32_t block, int64_t offset) const {
        return reinterpret_cast<Part*>(blocks + block * sizes.block_bytes + offset);
    }
};

// New tokens of one sequence: queries `first`.. of the step, at positions [start, end).
struct Row {
    int64_t first, start, end;
    BlockTable table;
};

constexpr int64_t kRowSpan = 4;  // numbers a row in `spans`

// A row out of `spans` [rows, 4]: the positions start and end of its new tokens, where its block table
// begins in `tables`, and its tail or −1.
inline Row read_row(const int64_t* span, const int32_t* tables, int64_t first, int64_t block_size) {
    const int64_t open_from = span[3] < 0 ? INT64_MAX : span[0] / block_size * block_size;
    return {first, span[0], span[1], {tables + span[2], open_from, span[3]}};
}

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
