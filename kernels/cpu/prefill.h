// A tile of queries against all keys they see, for one KV head.
//
// Everything is kept transposed: a column is one (query, head) pair, so that softmax runs down the
// columns without a sum across a vector, and keys lie as the pool has them:
//
//     scores [keys, columns]   = keys [keys, head_dim] · queriesᵀ
//     sums [head_dim, columns] += valuesᵀ · weights [keys, columns]
#pragma once
#include "chunk.h"

namespace kvmesh {

constexpr int kColumns = 128;

template <typename E>
struct QueryTile {
    const E* query;  // of the first token and of the KV head's first query head
    E* out;
    int64_t token_stride;  // elements
    int group;             // query heads of the KV head, side by side
    int64_t start, end;    // positions of the queries
    int64_t head;          // KV head
    BlockTable table;

    int columns() const { return int(end - start) * group; }
    int padded_columns() const { return int(ceil_div(columns(), 16) * 16); }
    int64_t offset(int c, int64_t head_dim) const { return c / group * token_stride + c % group * head_dim; }
};

// 0.9 MiB at most; one for each thread.
struct PrefillScratch {
    alignas(64) float sums[kMaxDim * kColumns];
    alignas(64) float scores[kChunk * kColumns];
    alignas(64) float queries[kMaxDim * kColumns];
    alignas(64) bf16 query_pairs[kMaxDim * kColumns];  // [head_dim / 2, columns, 2]
    alignas(64) bf16 weight_pairs[kChunk * kColumns];  // [keys / 2, columns, 2]
    alignas(64) bf16 values[kMaxDim * kChunk];         // [head_dim, keys]
    alignas(64) bf16 keys[kChunk * kMaxDim];           // [keys, head_dim], padded to whole tiles
    ChunkScales scales;  // of quantised keys and values
    alignas(64) float base[kColumns], total[kColumns], factor[kColumns];
    alignas(64) int32_t first[kColumns], last[kColumns];  // keys that a column sees
};

// The plain products, in float32: kRegisterRows rows meet 16 columns in registers.
constexpr int kRegisterRows = kLanes == 16 ? 8 : 4;
constexpr int kSpan = 16 / kLanes;  // vectors

struct PlainProducts {
    static constexpr bool kInTiles = false;
    static constexpr int kKeys = 2;  // weights come in multiples

    template <typename T>
    static void begin(const QueryTile<T>& tile, int64_t dim, PrefillScratch& s) {
        std::fill_n(s.queries, dim * kColumns, 0.0f);
        for (int c = 0; c < tile.columns(); c++)
            for (int64_t d = 0; d < dim; d++) s.queries[d * kColumns + c] = to_float(tile.query[tile.offset(c, dim) + d]);
    }

    template <typename T>
    static void score(const PagedLayer<T>& layer, Rows<Number<T>> keys, int count, int columns,
                      PrefillScratch& s) {
        for (int c = 0; c < columns; c += 16) {
            int i = 0;
            for (; i + kRegisterRows <= count; i += kRegisterRows)
                score_rows<kRegisterRows>(keys.from(i), i, c, layer.head_dim, s);
            for (; i < count; i++) score_rows<1>(keys.from(i), i, c, layer.head_dim, s);
        }
    }

    template <typename T>
    static void add(const PagedLayer<T>& layer, Rows<Number<T>> values, int count, int columns,
                    PrefillScratch& s) {
        for (int c = 0; c < columns; c += 16) {
            int64_t d = 0;
            for (; d + kRegisterRows <= layer.head_dim; d += kRegisterRows)
                add_rows<kRegisterRows>(values, count, d, c, s);
            for (; d < layer.head_dim; d++) add_rows<1>(values, count, d, c, s);
        }
    }

    static void keep(int i, int c, Lanes even, Lanes odd, PrefillScratch& s) {
        store(s.scores + i * kColumns + c, even);
        store(s.scores + (i + 1) * kColumns + c, odd);
    }

    template <typename T>
    static void write(const QueryTile<T>& tile, int64_t dim, const float* centre, const PrefillScratch& s) {
        for (int c = 0; c < tile.columns(); c++) {
            T* to = tile.out + tile.offset(c, dim);
            const float factor = 1.0f / s.total[c];
            for (int64_t d = 0; d < dim; d++)
                store(to[d], s.sums[d * kColumns + c] * factor + (centre ? centre[d] : 0.0f));
        }
    }

private:
    template <int rows, typename T>
    static void score_rows(Rows<T> keys, int i, int c, int64_t dim, PrefillScratch& s) {
        Lanes acc[rows][kSpan] = {};
        for (int64_t d = 0; d < dim; d++) {
            const float* queries = s.queries + d * kColumns + c;
            for (int r = 0; r < rows; r++) add_products(acc[r], to_float(keys[r][d]), queries);
        }
        for (int r = 0; r < rows; r++) std::memcpy(s.scores + (i + r) * kColumns + c, acc[r], sizeof acc[r]);
    }

    template <int rows, typename T>
    static void add_rows(Rows<T> values, int count, int64_t d, int c, PrefillScratch& s) {
        Lanes acc[rows][kSpan];
        for (int r = 0; r < rows; r++) std::memcpy(acc[r], s.sums + (d + r) * kColumns + c, sizeof acc[r]);
        for (int i = 0; i < count; i++) {
            const float* weights = s.scores + i * kColumns + c;
            for (int r = 0; r < rows; r++) add_products(acc[r], to_float(values[i][d + r]), weights);
        }
        for (int r = 0; r < rows; r++) std::memcpy(s.sums + (d + r) * kColumns + c, acc[r], sizeof acc[r]);
    }

    static void add_products(Lanes* acc, float factor, const float* columns) {
        for (int v = 0; v < kSpan; v++) acc[v] += load(columns + v * kLanes) * factor;
    }
};

// Products of the keys [chunk, chunk + count) become scores; what a column does not see is hidden, by
// selection, since a slot that is not written may hold anything. Rows up to `padded` count as
// not seen. Raises the base of a column whose scores got too far above it; true where
// there was one.
template <bool scaled>
inline bool score_columns(const Scoring& scoring, int64_t chunk, int count, int padded, int columns, bool all_seen,
                          PrefillScratch& s) {
    const Lanes unseen = all_lanes(-INFINITY);
    bool raised = false;
    for (int c = 0; c < columns; c += kLanes) {
        LaneKeys first, last;
        std::memcpy(&first, s.first + c, sizeof first);
        std::memcpy(&last, s.last + c, sizeof last);
        const Lanes base = load(s.base + c);
        Lanes highest = base;
        float* scores = s.scores + c;
        for (int i = 0; i < count; i++, scores += kColumns) {
            Lanes found = scoring.score(scaled ? load(scores) * s.scales.key[i] : load(scores));
            const int32_t key = int32_t(chunk + i);
            if (!all_seen) found = (first > key) | (last < key) ? unseen : found;
            highest = larger(found, highest);
            store(scores, found);
        }
        for (int i = count; i < padded; i++, scores += kColumns) store(scores, unseen);
        const Lanes next = highest > base + kHeadroom ? highest : base;
        store(s.base + c, next);
        store(s.factor + c, exp2(base - next));
        raised |= largest(next - base) > 0.0f;
    }
    return raised;
}

// Scores become weights, two keys at a time, which `Products` keeps for the sums.
template <typename Products, bool scaled>
inline void weigh_columns(int padded, int columns, PrefillScratch& s) {
    for (int c = 0; c < columns; c += kLanes) {
        const Lanes base = load(s.base + c);
        Lanes total = load(s.total + c) * load(s.factor + c);
        for (int i = 0; i < padded; i += 2) {
            const float* scores = s.scores + i * kColumns + c;
            const Lanes even = exp2(load(scores) - base), odd = exp2(load(scores + kColumns) - base);
            total += even + odd;
            if (scaled)
                Products::keep(i, c, even * s.scales.value[i], odd * s.scales.value[i + 1], s);
            else
                Products::keep(i, c, even, odd, s);
        }
        store(s.total + c, total);
    }
}

inline void shrink_sums(int columns, int64_t dim, PrefillScratch& s) {
    for (int64_t d = 0; d < dim; d++)
        for (int c = 0; c < columns; c += kLanes) {
            float* sums = s.sums + d * kColumns + c;
            store(sums, load(sums) * load(s.factor + c));
        }
}

template <typename T>
inline void begin_columns(const QueryTile<T>& tile, const Scoring& scoring, int64_t dim, PrefillScratch& s) {
    std::fill_n(s.sums, dim * kColumns, 0.0f);
    std::fill_n(s.base, kColumns, kLowestBase);
    std::fill_n(s.total, kColumns, 0.0f);
    for (int c = 0; c < tile.padded_columns(); c++) {
        const int64_t position = std::min(tile.end - 1, tile.start + c / tile.group);
        s.last[c] = int32_t(position);
        s.first[c] = int32_t(scoring.first_key(position));
    }
}

template <typename Products, typename T>
inline void prefill_with(const PagedLayer<T>& layer, const Scoring& scoring, const QueryTile<Number<T>>& tile,
                         PrefillScratch& s) {
    constexpr bool scaled = kQuantised<T>;
    const int64_t dim = layer.head_dim;
    const int columns = tile.padded_columns();
    Numbers<T> keys(dim), values(dim);
    begin_columns(tile, scoring, dim, s);
    Products::begin(tile, dim, s);
    const int64_t begin = scoring.first_key(tile.start), sees_from = scoring.first_key(tile.end - 1);
    // Not before the first key that is seen, whose block may have been given back; tiles start with
    // their sixteen keys of one block.
    const bool in_tiles = Products::kInTiles && layer.block_size % 16 == 0;
    for (int64_t chunk = in_tiles ? begin / 16 * 16 : begin; chunk < tile.end; chunk += kChunk) {
        const int count = int(std::min<int64_t>(kChunk, tile.end - chunk));
        const bool all_seen = chunk >= sees_from && chunk + count - 1 <= tile.start;
        const int padded = int(ceil_div(count, Products::kKeys) * Products::kKeys);
        const ChunkSlots<T> slots(layer, tile.table, chunk, count, tile.head);
        if constexpr (scaled) s.scales.load(layer, slots, tile.head);
        Products::score(layer, keys.keys(slots, 0, count), count, columns, s);
        const bool raised = score_columns<scaled>(scoring, chunk, count, padded, columns, all_seen, s);
        weigh_columns<Products, scaled>(padded, columns, s);
        if (raised) shrink_sums(columns, dim, s);
        Products::add(layer, values.values(slots, layer.value_offset, 0, count), count, columns, s);
    }
    Products::write(tile, dim, layer.value_centre(tile.head), s);
}

}  // namespace kvmesh
