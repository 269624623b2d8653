// One query against the keys [begin, end) of its sequence, for the heads of one KV head.
//
// Sums are float32 and not yet divided by the total of the weights, so that the parts of a long
// sequence can be joined: see attention.cpp.
#pragma once
#include "amx.h"
#include "lanes.h"
#include "paged.h"

#include <type_traits>
#include <vector>

namespace kvmesh {

constexpr int kChunk = 64;       // keys whose scores are at hand together
constexpr int kGroup = 8;        // query heads a KV head at most; more are done in turns
constexpr int64_t kMaxDim = 512;

// Where the keys of KV head 0 lie, from position `begin` on: up to kChunk of this chunk, and as many
// of the next, to be asked for in time, into the second-level cache. Behind the last key the first one stands.
template <typename T>
struct ChunkSlots {
    const T* keys[2 * kChunk];
    int64_t value_offset;

    ChunkSlots(const PagedLayer<T>& layer, const int32_t* table, int64_t begin, int64_t count)
        : value_offset(layer.value_offset) {
        int64_t block = begin / layer.block_size, slot = begin % layer.block_size;
        for (int i = 0; i < std::min<int64_t>(count, 2 * kChunk);) {
            const T* key = layer.key(table[block++], 0, slot);
            for (; slot < layer.block_size && i < 2 * kChunk; slot++, key += layer.head_dim) keys[i++] = key;
            slot = 0;
        }
        for (int64_t i = count; i < 2 * kChunk; i++) keys[i] = keys[0];
    }

    // The lines of the next chunk's key and value where `offset` is, the value's, in `bytes`.
    void prefetch(int i, int64_t offset, int bytes) const {
        const char* value = reinterpret_cast<const char*>(keys[kChunk + i] + offset);
        const char* key = value - value_offset * int64_t(sizeof(T));
        for (int at = 0; at < bytes; at += 64) {
            __builtin_prefetch(key + at, 0, 2);
            __builtin_prefetch(value + at, 0, 2);
        }
    }
};

// The scores of a chunk become weights; `sums` shrinks when the highest score rises. Scores outside of
// [first, count) count as −inf: loops of a fixed length need no remainders.
inline void weigh(const Scoring& scoring, float* scores, int first, int count, OnlineSoftmax& softmax, float* sums,
                  int64_t head_dim) {
    scoring.score(scores, kChunk);
    std::fill(scores, scores + first, -INFINITY);
    std::fill(scores + count, scores + kChunk, -INFINITY);
    Lanes highest = load(scores);
    for (int i = kLanes; i < kChunk; i += kLanes) highest = larger(highest, load(scores + i));
    const float factor = softmax.raise(largest(highest));
    if (factor != 1.0f)
        for (int64_t d = 0; d < head_dim; d++) sums[d] *= factor;
    float total = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int i = 0; i < kChunk; i++) {
        scores[i] = fast_exp(scores[i] - softmax.highest);
        total += scores[i];
    }
    softmax.total += total;
}

// Keys [first, count) of a KV head against some of its query heads: a key is loaded once for all.
// `query` is float32 in the order of load_pair.
template <int heads, typename T>
inline void score_heads(const ChunkSlots<T>& slots, int64_t offset, int first, int count, const float* query,
                        int64_t head_dim, float (*scores)[kChunk]) {
    for (int i = first; i < count; i++) {
        const T* key = slots.keys[i] + offset;
        Lanes acc[heads] = {};
        int64_t d = 0;
        for (; d + kPair <= head_dim; d += kPair) {
            const Pair part = load_pair(key + d);
            for (int h = 0; h < heads; h++) {
                const float* q = query + h * head_dim + d;
                acc[h] += load(q) * part.first + load(q + kLanes) * part.second;
            }
        }
        for (int h = 0; h < heads; h++) {
            float score = sum(acc[h]);
            for (int64_t e = d; e < head_dim; e++) score += query[h * head_dim + e] * to_float(key[e]);
            scores[h][i] = score;
        }
    }
}

// Adds `width` pairs of vectors of the values [first, count), weighted, to the sums of some heads,
// which are in the order of load_pair.
template <int heads, int width, typename T>
inline void add_pairs(const ChunkSlots<T>& slots, int64_t offset, int first, int count, const float (*weights)[kChunk],
                      int64_t head_dim, float* sums) {
    Lanes acc[heads][2 * width];
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < 2 * width; w++) acc[h][w] = load(sums + h * head_dim + w * kLanes);
    for (int i = first; i < count; i++) {
        const T* value = slots.keys[i] + offset;
        slots.prefetch(i, offset, width * kPair * int(sizeof(T)));
        for (int w = 0; w < width; w++) {
            const Pair part = load_pair(value + w * kPair);
            for (int h = 0; h < heads; h++) {
                acc[h][2 * w] += part.first * weights[h][i];
                acc[h][2 * w + 1] += part.second * weights[h][i];
            }
        }
    }
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < 2 * width; w++) store(sums + h * head_dim + w * kLanes, acc[h][w]);
}

template <int heads, typename T>
inline void add_heads(const ChunkSlots<T>& slots, int64_t offset, int first, int count, const float (*weights)[kChunk],
                      int64_t head_dim, float* sums) {
    int64_t d = 0;
    for (; d + 2 * kPair <= head_dim; d += 2 * kPair)
        add_pairs<heads, 2>(slots, offset + d, first, count, weights, head_dim, sums + d);
    for (; d + kPair <= head_dim; d += kPair)
        add_pairs<heads, 1>(slots, offset + d, first, count, weights, head_dim, sums + d);
    for (; d < head_dim; d++)
        for (int h = 0; h < heads; h++)
            for (int i = first; i < count; i++)
                sums[h * head_dim + d] += weights[h][i] * to_float(slots.keys[i][offset + d]);
}

template <typename T>
inline void score_keys(const ChunkSlots<T>& slots, int64_t offset, int first, int count, const float* query, int heads,
                       int64_t head_dim, float (*scores)[kChunk]) {
    for (int h = 0; h < heads; h += 4) {
        const float* q = query + h * head_dim;
        switch (heads - h) {
            case 1: score_heads<1>(slots, offset, first, count, q, head_dim, scores + h); break;
            case 2: score_heads<2>(slots, offset, first, count, q, head_dim, scores + h); break;
            case 3: score_heads<3>(slots, offset, first, count, q, head_dim, scores + h); break;
            default: score_heads<4>(slots, offset, first, count, q, head_dim, scores + h);
        }
    }
}

template <typename T>
inline void add_values(const ChunkSlots<T>& slots, int64_t offset, int first, int count,
                       const float (*weights)[kChunk], int heads, int64_t head_dim, float* sums) {
    for (int h = 0; h < heads; h += 4) {
        float* to = sums + h * head_dim;
        switch (heads - h) {
            case 1: add_heads<1>(slots, offset, first, count, weights + h, head_dim, to); break;
            case 2: add_heads<2>(slots, offset, first, count, weights + h, head_dim, to); break;
            case 3: add_heads<3>(slots, offset, first, count, weights + h, head_dim, to); break;
            default: add_heads<4>(slots, offset, first, count, weights + h, head_dim, to);
        }
    }
}

#if defined(KVMESH_AMX)
// keys [16, head_dim] · queriesᵀ, where keys are read from the pool as they lie there.
inline bool keys_fit_tiles(const PagedLayer<bf16>& layer) {
    return layer.block_size % 16 == 0 && layer.head_dim % 32 == 0 && amx_ready();
}

inline void score_tiles(const ChunkSlots<bf16>& slots, int64_t offset, int count, const bf16* pairs, int heads,
                        int64_t head_dim, float (*scores)[kChunk]) {
    alignas(64) float found[kChunk][16];
    const auto key = [&](int i) { return slots.keys[i] + offset; };
    // Four products at a time, none of which waits for another; behind `count` the first once more.
    const bf16* keys[4] = {key(0), key(count > 16 ? 16 : 0), key(count > 32 ? 32 : 0), key(count > 48 ? 48 : 0)};
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < head_dim; d += 32) {
        _tile_loadd(6, pairs + d * kGroup, kGroup * 4);
        _tile_loadd(4, keys[0] + d, head_dim * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, keys[1] + d, head_dim * 2);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, keys[2] + d, head_dim * 2);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, keys[3] + d, head_dim * 2);
        _tile_dpbf16ps(3, 5, 6);
    }
    _tile_stored(0, found[0], sizeof found[0]);
    _tile_stored(1, found[16], sizeof found[0]);
    _tile_stored(2, found[32], sizeof found[0]);
    _tile_stored(3, found[48], sizeof found[0]);
    const __m512i rows = _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < kChunk; i += 16)
            _mm512_store_ps(scores[h] + i, _mm512_i32gather_ps(rows, found[i] + h, 4));
}
#endif

// The queries of one KV head as the products want them: float32 rows, or for the matrix unit pairs of
// elements [head_dim / 2, kGroup, 2].
template <typename T>
struct DecodeQuery {
    std::vector<float> rows;
    std::vector<bf16> pairs;

    DecodeQuery(const PagedLayer<T>& layer, const T* query, int64_t heads, int group) {
        const int64_t dim = layer.head_dim;
        if (!use_tiles(layer)) {
            rows.resize(heads * group * dim);
            for (int64_t h = 0; h < heads * group; h++) convert(query + h * dim, dim, rows.data() + h * dim);
            return;
        }
        if constexpr (std::is_same_v<T, bf16>) {
            pairs.resize(heads * kGroup * dim);
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < dim; d++)
                    for (int g = 0; g < group; g++)
                        pairs[h * kGroup * dim + d / 2 * 2 * kGroup + 2 * g + d % 2] = query[(h * group + g) * dim + d];
        }
    }

    static void convert(const T* query, int64_t dim, float* row) {
        int64_t d = 0;
        for (; d + kPair <= dim; d += kPair) {
            const Pair part = load_pair(query + d);
            store(row + d, part.first);
            store(row + d + kLanes, part.second);
        }
        for (; d < dim; d++) row[d] = to_float(query[d]);
    }

    static bool use_tiles([[maybe_unused]] const PagedLayer<T>& layer) {
#if defined(KVMESH_AMX)
        if constexpr (std::is_same_v<T, bf16>) return keys_fit_tiles(layer);
#endif
        return false;
    }

    void score(const PagedLayer<T>& layer, const ChunkSlots<T>& slots, int64_t offset, int first, int count, int64_t h,
               int group, float (*scores)[kChunk]) const {
        const int64_t dim = layer.head_dim;
#if defined(KVMESH_AMX)
        if constexpr (std::is_same_v<T, bf16>)
            if (!pairs.empty())
                return score_tiles(slots, offset, count, pairs.data() + h * kGroup * dim, group, dim, scores);
#endif
        score_keys(slots, offset, first, count, rows.data() + h * group * dim, group, dim, scores);
    }
};

// Adds the keys [begin, end) of `table` to `sums` [kv_heads · group, head_dim] and `softmax`, for
// the KV heads from `head` on whose queries and results are given.
template <typename T>
inline void decode(const PagedLayer<T>& layer, const Scoring& scoring, const int32_t* table, int64_t begin,
                   int64_t end, int64_t head, int64_t kv_heads, int group, const T* query, OnlineSoftmax* softmax,
                   float* sums) {
    const int64_t dim = layer.head_dim;
    const DecodeQuery<T> queries(layer, query, kv_heads, group);
    alignas(64) float scores[kGroup][kChunk];
    for (int64_t chunk = begin / 16 * 16; chunk < end; chunk += kChunk) {
        const int first = int(std::max<int64_t>(0, begin - chunk)), count = int(std::min<int64_t>(kChunk, end - chunk));
        const ChunkSlots<T> slots(layer, table, chunk, end - chunk);
        for (int64_t h = 0; h < kv_heads; h++) {
            const int64_t offset = (head + h) * layer.head_stride, at = h * group;
            queries.score(layer, slots, offset, first, count, h, group, scores);
            for (int g = 0; g < group; g++)
                weigh(scoring, scores[g], first, count, softmax[at + g], sums + (at + g) * dim, dim);
            add_values(slots, offset + layer.value_offset, first, count, scores, group, dim, sums + at * dim);
        }
    }
}

}  // namespace kvmesh
