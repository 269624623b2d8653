// The products of decoding: one query against some keys of one KV head, for all heads of its group.
#pragma once
#include "chunk.h"

namespace kvmesh {

constexpr int kGroup = 8;    // query heads a KV head at most
constexpr int kSegment = 16;  // keys of a chunk that are computed at a time

// Keys [first, last) of a chunk against some query heads: a key is loaded once for all. `query` is float32
// in the order of load_pair.
template <int heads, typename T>
inline void score_heads(Rows<T> keys, int first, int last, const float* query, int64_t head_dim,
                        float (*scores)[kChunk]) {
    for (int i = first; i < last; i++) {
        const T* key = keys[i];
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

template <typename T>
inline void score_keys(Rows<T> keys, int first, int last, const float* query, int heads, int64_t head_dim,
                       float (*scores)[kChunk]) {
    for (int h = 0; h < heads; h += 4) {
        const float* q = query + h * head_dim;
        switch (heads - h) {
            case 1: score_heads<1>(keys, first, last, q, head_dim, scores + h); break;
            case 2: score_heads<2>(keys, first, last, q, head_dim, scores + h); break;
            case 3: score_heads<3>(keys, first, last, q, head_dim, scores + h); break;
            default: score_heads<4>(keys, first, last, q, head_dim, scores + h);
        }
    }
}

// Numbers in a stored element.
template <typename T>
constexpr int64_t kNumbers = std::is_same_v<T, nibbles> ? 2 : 1;

// The values [first, last) of a chunk, and meanwhile the cache lines of later keys and values, where they
// are stored.
template <typename T>
struct Values {
    Rows<Number<T>> rows;
    int first, last;
    const T* const* later;  // or null; as many as here, into the second-level cache
    int64_t later_offset;

    void prefetch(int i, int64_t d, int64_t elements) const {
        if (!later) return;
        const char* key = reinterpret_cast<const char*>(later[i] + d);
        const char* value = reinterpret_cast<const char*>(later[i] + later_offset + d);
        for (int64_t at = 0; at < elements * int64_t(sizeof(T)); at += 64) {
            __builtin_prefetch(key + at, 0, 2);
            __builtin_prefetch(value + at, 0, 2);
        }
    }
};

// Adds `width` pairs of vectors from `d` on to the sums of some heads, which are in the order of load_pair.
template <int heads, int width, typename T>
inline void add_pairs(const Values<T>& values, int64_t d, const float (*weights)[kChunk], int64_t head_dim,
                      float* sums) {
    Lanes acc[heads][2 * width];
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < 2 * width; w++) acc[h][w] = load(sums + h * head_dim + d + w * kLanes);
    for (int i = values.first; i < values.last; i++) {
        const Number<T>* value = values.rows[i] + d;
        values.prefetch(i, d / kNumbers<T>, width * kPair / kNumbers<T>);
        for (int w = 0; w < width; w++) {
            const Pair part = load_pair(value + w * kPair);
            for (int h = 0; h < heads; h++) {
                acc[h][2 * w] += part.first * weights[h][i];
                acc[h][2 * w + 1] += part.second * weights[h][i];
            }
        }
    }
    for (int h = 0; h < heads; h++)
        for (int w = 0; w < 2 * width; w++) store(sums + h * head_dim + d + w * kLanes, acc[h][w]);
}

template <int heads, typename T>
inline void add_heads(const Values<T>& values, const float (*weights)[kChunk], int64_t head_dim, float* sums) {
    int64_t d = 0;
    for (; d + 2 * kPair <= head_dim; d += 2 * kPair) add_pairs<heads, 2>(values, d, weights, head_dim, sums);
    for (; d + kPair <= head_dim; d += kPair) add_pairs<heads, 1>(values, d, weights, head_dim, sums);
    for (; d < head_dim; d++)
        for (int h = 0; h < heads; h++)
            for (int i = values.first; i < values.last; i++)
                sums[h * head_dim + d] += weights[h][i] * to_float(values.rows[i][d]);
}

template <typename T>
inline void add_values(const Values<T>& values, const float (*weights)[kChunk], int heads, int64_t head_dim,
                       float* sums) {
    for (int h = 0; h < heads; h += 4) {
        float* to = sums + h * head_dim;
        switch (heads - h) {
            case 1: add_heads<1>(values, weights + h, head_dim, to); break;
            case 2: add_heads<2>(values, weights + h, head_dim, to); break;
            case 3: add_heads<3>(values, weights + h, head_dim, to); break;
            default: add_heads<4>(values, weights + h, head_dim, to);
        }
    }
}

#if defined(KVMESH_AMX)
// found [16 keys, 16] = keys [16, head_dim] · queriesᵀ
inline void score_tile(const bf16* keys, const bf16* query_pairs, int64_t head_dim, float* found) {
    _tile_zero(0);
    for (int64_t d = 0; d < head_dim; d += 32) {
        _tile_loadd(6, query_pairs + d * kGroup, kGroup * 4);
        _tile_loadd(4, keys + d, head_dim * 2);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, found, 64);
}

inline void take_column(const float* found, int column, float* scores) {
    const __m512i rows = _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    for (int i = 0; i < kChunk; i += 16)
        _mm512_storeu_ps(scores + i, _mm512_i32gather_ps(rows, found + i * 16 + column, 4));
}
#endif

// The queries of a task as the products want them: float32 rows, or for the matrix unit pairs of elements
// [kv_heads, head_dim / 2, kGroup, 2].
template <typename T, typename E = Number<T>>
class DecodeQueries {
public:
    DecodeQueries(const PagedLayer<T>& layer, int group) : dim_(layer.head_dim), group_(group) {
#if defined(KVMESH_AMX)
        tiles_ = keys_fit_tiles(layer);
#endif
    }

    void set(const E* query, int64_t kv_heads) {
        if (!tiles_) {
            rows_.resize(kv_heads * group_ * dim_);
            for (int64_t h = 0; h < kv_heads * group_; h++) convert(query + h * dim_, rows_.data() + h * dim_);
            return;
        }
        pairs_.resize(kv_heads * kGroup * dim_ + 2 * kGroup);  // a tile is twice as wide
        for (int64_t h = 0; h < kv_heads; h++)
            for (int64_t d = 0; d < dim_; d++)
                for (int g = 0; g < group_; g++)
                    pairs_[h * kGroup * dim_ + d / 2 * 2 * kGroup + 2 * g + d % 2] = query[(h * group_ + g) * dim_ + d];
    }

    // The products of the keys [first, last) of one segment with the queries of the task's KV head `head`.
    void multiply(Rows<E> keys, int first, int last, int64_t head, float* products) const {
#if defined(KVMESH_AMX)
        if constexpr (std::is_same_v<E, bf16>)
            if (tiles_) {
                const int segment = first / kSegment * kSegment;
                return score_tile(keys[segment], pairs_.data() + head * kGroup * dim_, dim_, products + segment * 16);
            }
#endif
        score_keys(keys, first, last, rows_.data() + head * group_ * dim_, group_, dim_, (float(*)[kChunk])products);
    }

    // Those of one query head, a chunk of them.
    void take(const float* products, int g, float* scores) const {
#if defined(KVMESH_AMX)
        if (tiles_) return take_column(products, g, scores);
#endif
        std::memcpy(scores, products + g * kChunk, kChunk * sizeof(float));
    }

private:
    void convert(const E* query, float* row) const {
        int64_t d = 0;
        for (; d + kPair <= dim_; d += kPair) {
            const Pair part = load_pair(query + d);
            store(row + d, part.first);
            store(row + d + kLanes, part.second);
        }
        for (; d < dim_; d++) row[d] = to_float(query[d]);
    }

    int64_t dim_;
    int group_;
    bool tiles_ = false;
    LineVector<float> rows_;
    LineVector<E> pairs_;
};

}  // namespace kvmesh
