// The products of prefill on the matrix unit, for bfloat16 and head sizes of whole half tiles.
#pragma once
#include "amx.h"
#include "prefill.h"

#if defined(KVMESH_AMX)
namespace kvmesh {

// Rows of 16 elements of 32 bits become columns.
inline void transpose16(__m512i* r) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
            r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int half = 0; half < 16; half += 8)
        for (int j = 0; j < 4; j++) {
            t[half + j] = _mm512_shuffle_i32x4(r[half + j], r[half + 4 + j], 0x88);
            t[half + 4 + j] = _mm512_shuffle_i32x4(r[half + j], r[half + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
        r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xdd);
    }
}

struct TileProducts {
    static constexpr bool kInTiles = true;
    static constexpr int kKeys = 32;  // weights come in multiples

    template <typename T>
    static bool fit(const PagedLayer<T>& layer) { return layer.head_dim % 16 == 0 && amx_ready(); }

    static void begin(const QueryTile<bf16>& tile, int64_t dim, PrefillScratch& s) {
        std::fill_n(s.query_pairs, ceil_div(dim, 32) * 32 * kColumns, bf16{0});
        for (int c = 0; c < tile.columns(); c += 16) {
            const int count = std::min(16, tile.columns() - c);
            for (int64_t d = 0; d < dim; d += 32) {
                const __mmask16 whole = d + 32 <= dim ? 0xffff : 0xff;
                __m512i pairs[16] = {};
                for (int i = 0; i < count; i++)
                    pairs[i] = _mm512_maskz_loadu_epi32(whole, tile.query + tile.offset(c + i, dim) + d);
                transpose16(pairs);
                for (int64_t p = 0; p < std::min<int64_t>(16, (dim - d) / 2); p++)
                    _mm512_store_si512(s.query_pairs + ((d / 2 + p) * kColumns + c) * 2, pairs[p]);
            }
        }
    }

    // [2 × 2] tiles: 32 keys against 32 columns.
    template <typename T>
    static void score(const PagedLayer<T>& layer, Rows<bf16> keys, int count, int columns, PrefillScratch& s) {
        const int64_t dim = layer.head_dim, depth = ceil_div(dim, 32) * 32;
        const bool in_place = keys_fit_tiles(layer);
        if (!in_place) copy_keys(keys, count, dim, depth, s.keys);
        for (int i = 0; i < count; i += 32) {
            const bool below = i + 16 < count;
            const bf16* upper = in_place ? keys[i] : s.keys + i * depth;
            const bf16* lower = !below ? upper : in_place ? keys[i + 16] : s.keys + (i + 16) * depth;
            for (int c = 0; c < columns; c += 32) {
                const bf16* pairs = s.query_pairs + 2 * c;
                multiply({upper, lower, depth * 2}, {pairs, pairs + 32, 4 * kColumns}, depth, below, c + 16 < columns,
                         nullptr, s.scores + i * kColumns + c);
            }
        }
    }

    template <typename T>
    static void add(const PagedLayer<T>& layer, Rows<bf16> values, int count, int columns, PrefillScratch& s) {
        const int padded = int(ceil_div(count, 32) * 32);
        transpose_values(values, count, padded, layer.head_dim, s.values);
        for (int64_t d = 0; d < layer.head_dim; d += 32) {
            const bf16* upper = s.values + d * kChunk;
            for (int c = 0; c < columns; c += 32) {
                const bf16* pairs = s.weight_pairs + 2 * c;
                float* sums = s.sums + d * kColumns + c;
                multiply({upper, upper + 16 * kChunk, 2 * kChunk}, {pairs, pairs + 32, 4 * kColumns}, padded,
                         d + 16 < layer.head_dim, c + 16 < columns, sums, sums);
            }
        }
    }

    // Weights of two keys side by side, rounded to bfloat16.
    static void keep(int i, int c, Lanes even, Lanes odd, PrefillScratch& s) {
        const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                                    22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
        _mm512_store_si512(s.weight_pairs + (i / 2 * kColumns + c) * 2, _mm512_permutexvar_epi16(interleave, both));
    }

    static void write(const QueryTile<bf16>& tile, int64_t dim, const float* centre, const PrefillScratch& s) {
        for (int c = 0; c < tile.columns(); c += 16) {
            const int count = std::min(16, tile.columns() - c);
            const Lanes factor = 1.0f / load(s.total + c);
            for (int64_t d = 0; d < dim; d += 16) {
                __m512i sums[16];
                for (int i = 0; i < 16; i++) {
                    const float added = centre ? centre[d + i] : 0.0f;
                    sums[i] = (__m512i)(load(s.sums + (d + i) * kColumns + c) * factor + added);
                }
                transpose16(sums);
                for (int i = 0; i < count; i++) store(tile.out + tile.offset(c + i, dim) + d, (Lanes)sums[i]);
            }
        }
    }

private:
    struct Side {
        const bf16 *first, *second;
        int64_t row_bytes;
    };

    // to [16 or 32, 16 or 32] = from + a · b, both summed over `depth`; `from` null for zeros.
    static void multiply(Side a, Side b, int64_t depth, bool below, bool beside, const float* from, float* to) {
        constexpr int64_t kLine = kColumns * 4, kBelow = 16 * kColumns;
        if (from) {
            _tile_loadd(0, from, kLine);
            if (beside) _tile_loadd(1, from + 16, kLine);
            if (below) _tile_loadd(2, from + kBelow, kLine);
            if (below && beside) _tile_loadd(3, from + kBelow + 16, kLine);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int64_t k = 0; k < depth; k += 32) {
            const int64_t pairs = k / 2 * (b.row_bytes / 2);
            _tile_loadd(4, a.first + k, a.row_bytes);
            _tile_loadd(6, b.first + pairs, b.row_bytes);
            _tile_dpbf16ps(0, 4, 6);
            if (beside) {
                _tile_loadd(7, b.second + pairs, b.row_bytes);
                _tile_dpbf16ps(1, 4, 7);
            }
            if (below) {
                _tile_loadd(5, a.second + k, a.row_bytes);
                _tile_dpbf16ps(2, 5, 6);
                if (beside) _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, to, kLine);
        if (beside) _tile_stored(1, to + 16, kLine);
        if (below) _tile_stored(2, to + kBelow, kLine);
        if (below && beside) _tile_stored(3, to + kBelow + 16, kLine);
    }

    static void copy_keys(Rows<bf16> keys, int count, int64_t dim, int64_t depth, bf16* to) {
        for (int i = 0; i < count; i++) {
            std::memcpy(to + i * depth, keys[i], dim * sizeof(bf16));
            std::fill(to + i * depth + dim, to + (i + 1) * depth, bf16{0});
        }
    }

    static void transpose_values(Rows<bf16> values, int count, int padded, int64_t dim, bf16* to) {
        const auto load = [&](int i, int64_t d) {
            if (i >= count) return _mm512_setzero_si512();
            return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(values[i] + d)));
        };
        for (int i = 0; i < padded; i += 32)
            for (int64_t d = 0; d < dim; d += 16) {
                __m512i pairs[16];
                for (int p = 0; p < 16; p++)
                    pairs[p] = _mm512_or_si512(load(i + 2 * p, d), _mm512_slli_epi32(load(i + 2 * p + 1, d), 16));
                transpose16(pairs);
                for (int e = 0; e < 16; e++) _mm512_store_si512(to + (d + e) * kChunk + i, pairs[e]);
            }
    }
};

}  // namespace kvmesh
#endif
