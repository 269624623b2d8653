// Some keys of a row for one KV head, and their numbers.
#pragma once
#include <type_traits>
#include <vector>

#include "amx.h"
#include "paged.h"

namespace kvmesh {

constexpr int kChunk = 64;  // keys that are at hand together
constexpr int64_t kMaxDim = 512;

template <typename T>
constexpr bool kQuantised = sizeof(T) == 1;

// What products take for a stored T.
template <typename T>
using Number = std::conditional_t<kQuantised<T>, bf16, T>;

// Where keys lie, from position `begin` on, and their scales. Behind the last one the first one stands.
template <typename T>
struct ChunkSlots {
    const T* keys[kChunk];
    const half* scales[std::is_same_v<T, int8_t> ? kChunk : 1];

    ChunkSlots() = default;

    ChunkSlots(const PagedLayer<T>& layer, const int32_t* table, int64_t begin, int64_t count, int64_t head) {
        int64_t block = begin / layer.block_size, slot = begin % layer.block_size;
        const int wanted = int(std::min<int64_t>(count, kChunk));
        for (int i = 0; i < wanted; slot = 0, block++) {
            const T* key = layer.key(table[block], head, slot);
            const half* scale = layer.key_scale(table[block], head, slot);
            for (; slot < layer.block_size && i < wanted; slot++, key += layer.head_dim) {
                if constexpr (std::is_same_v<T, int8_t>) scales[i] = scale++;
                keys[i++] = key;
            }
        }
        for (int i = wanted; i < kChunk; i++) {
            if constexpr (std::is_same_v<T, int8_t>) scales[i] = scales[0];
            keys[i] = keys[0];
        }
    }

    void prefetch_scales([[maybe_unused]] const PagedLayer<T>& layer) const {
        if constexpr (std::is_same_v<T, int8_t>)
            for (int i = 0; i < kChunk; i += 16) {
                __builtin_prefetch(scales[i]);
                __builtin_prefetch(scales[i] + layer.value_scale_offset);
            }
    }
};

// What the numbers of a chunk's keys and values are multiplied with, after the products.
struct ChunkScales {
    alignas(64) float key[kChunk], value[kChunk];

    template <typename T>
    void load(const PagedLayer<T>& layer, const ChunkSlots<T>& slots, int64_t head) {
        if constexpr (std::is_same_v<T, int8_t>) {
            for (int i = 0; i < kChunk; i++) {
                key[i] = to_float(*slots.scales[i]);
                value[i] = to_float(slots.scales[i][layer.value_scale_offset]);
            }
        } else {
            std::fill_n(key, kChunk, layer.head_scales[head]);
            std::fill_n(value, kChunk, layer.head_scales[layer.kv_heads + head]);
        }
    }
};

inline void widen(const int8_t* from, int64_t size, bf16* to) {
    int64_t d = 0;
#if defined(__AVX512BF16__)
    const auto number = [&](int64_t at) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(from + at))));
    };
    for (; d + 32 <= size; d += 32) _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh(number(d + 16), number(d)));
#endif
    for (; d < size; d++) store(to[d], float(from[d]));
}

inline void widen(const e4m3* from, int64_t size, bf16* to) {
    int64_t d = 0;
#if defined(__AVX512BF16__)
    // As half precision, whose exponent is larger by 8; the conversion takes subnormal numbers at no cost.
    for (; d + 32 <= size; d += 32) {
        const __m512i bits = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)(from + d)));
        const __m512i magnitude = _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(0x7f)), 7);
        const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(bits, _mm512_set1_epi16(0x80)), 8);
        const __m512i halves = _mm512_or_si512(magnitude, sign);
        const __m512 scale = _mm512_set1_ps(256.0f);
        const __m512 low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), scale);
        const __m512 high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)), scale);
        _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
#endif
    for (; d < size; d++) store(to[d], to_float(from[d]));
}

// Vectors of a chunk, as products take them.
template <typename E>
struct Rows {
    const E* const* at;
    int64_t offset;

    const E* operator[](int i) const { return at[i] + offset; }
    Rows from(int i) const { return {at + i, offset}; }
};

// Where they lie, or widened, without their scales.
template <typename T>
class Numbers {
public:
    explicit Numbers(int64_t head_dim) : dim_(head_dim) {
        if constexpr (kQuantised<T>) {
            memory_.resize(kChunk * head_dim);
            for (int i = 0; i < kChunk; i++) rows_[i] = &memory_[i * head_dim];
        }
    }

    // Of [first, last), those `offset` elements behind the keys.
    Rows<Number<T>> read(const ChunkSlots<T>& slots, int64_t offset, int first, int last) {
        if constexpr (kQuantised<T>) {
            for (int i = first; i < last; i++) widen(slots.keys[i] + offset, dim_, rows_[i]);
            return {rows_, 0};
        } else {
            return {slots.keys, offset};
        }
    }

private:
    int64_t dim_;
    std::vector<Number<T>> memory_;
    Number<T>* rows_[kQuantised<T> ? kChunk : 1];
};

#if defined(KVMESH_AMX)
// Whether the numbers of sixteen keys are one tile as they lie.
template <typename T>
inline bool keys_fit_tiles(const PagedLayer<T>& layer) {
    const bool together = kQuantised<T> || layer.block_size % 16 == 0;
    return std::is_same_v<Number<T>, bf16> && together && layer.head_dim % 32 == 0 && amx_ready();
}
#endif

}  // namespace kvmesh
