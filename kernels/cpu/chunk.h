// Some keys of a row for one KV head, and their numbers.
#pragma once
#include <type_traits>

#include "aligned.h"
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

template <typename T>
constexpr bool kHasParams = !std::is_empty_v<SlotParams<T>>;

// Where keys lie, from position `begin` on. Behind the last one the first one stands.
template <typename T>
struct ChunkSlots {
    const T* keys[kChunk];
    SlotParams<T> params[kHasParams<T> ? kChunk : 1];
    const bf16* open[std::is_same_v<T, nibbles> ? kChunk : 1];  // keys that are in a tail, or null

    ChunkSlots() = default;

    ChunkSlots(const PagedLayer<T>& layer, const BlockTable& table, int64_t begin, int64_t count, int64_t head) {
        const int wanted = int(std::min<int64_t>(count, kChunk));
        int64_t block = begin / layer.block_size, slot = begin % layer.block_size;
        for (int i = 0; i < wanted; slot = 0, block++) {
            const T* key = layer.key(table.blocks[block], head, slot);
            for (; slot < layer.block_size && i < wanted; slot++, key += layer.vector_size, i++) {
                keys[i] = key;
                if constexpr (kHasParams<T>) params[i] = layer.params(table.blocks[block], head, slot);
                if constexpr (std::is_same_v<T, nibbles>)
                    open[i] = begin + i < table.open_from ? nullptr : layer.tail(table.tail, head, slot);
            }
        }
        for (int i = wanted; i < kChunk; i++) {
            keys[i] = keys[0];
            if constexpr (kHasParams<T>) params[i] = params[0];
            if constexpr (std::is_same_v<T, nibbles>) open[i] = open[0];
        }
    }

    void prefetch_params() const {
        for (int i = 0; i < kChunk; i += 16) {
            if constexpr (std::is_same_v<T, int8_t>) {
                __builtin_prefetch(params[i].key_scale);
                __builtin_prefetch(params[i].value_scale);
            } else if constexpr (std::is_same_v<T, nibbles>) {
                __builtin_prefetch(params[i].key_scales);
                __builtin_prefetch(params[i].key_zeros);
                __builtin_prefetch(params[i].value_scale);
                __builtin_prefetch(params[i].value_zero);
            }
        }
    }
};

// In what unit values are widened: the zeros of four bits are half steps.
template <typename T>
constexpr float kStep = std::is_same_v<T, nibbles> ? 0.5f : 1.0f;

// What the numbers of a chunk's keys and values are multiplied with, after the products.
struct ChunkScales {
    alignas(64) float key[kChunk], value[kChunk];

    template <typename T>
    void load(const PagedLayer<T>& layer, const ChunkSlots<T>& slots, int64_t head) {
        if constexpr (std::is_same_v<T, e4m3>) {
            std::fill_n(key, kChunk, layer.head_scale(head)[0]);
            std::fill_n(value, kChunk, layer.head_scale(head)[layer.kv_heads]);
        } else {
            for (int i = 0; i < kChunk; i++) {
                if constexpr (std::is_same_v<T, int8_t>) key[i] = to_float(*slots.params[i].key_scale);
                value[i] = to_float(*slots.params[i].value_scale) * kStep<T>;
            }
            if constexpr (std::is_same_v<T, nibbles>) std::fill_n(key, kChunk, 1.0f);
        }
    }
};

// One vector as numbers, without what comes after the products.
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

#if defined(__AVX512BF16__)
// The lower or upper elements of 16 pairs, doubled.
inline __m512i half_steps(__m512i pairs, bool lower) {
    return _mm512_and_si512(lower ? _mm512_slli_epi32(pairs, 1) : _mm512_srli_epi32(pairs, 3), _mm512_set1_epi32(30));
}
#endif

// Values of four bits in half steps, their zero added.
inline void widen(const nibbles* from, int64_t size, int8_t zero, bf16* to) {
    const int64_t second = size / 2;
    int64_t d = 0;
#if defined(__AVX512BF16__)
    const __m512i zeros = _mm512_set1_epi32(zero);
    for (; d + 16 <= second; d += 16) {
        const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(from + d)));
        const __m512i low = half_steps(both, true), high = half_steps(both, false);
        store(to + d, (Lanes)_mm512_cvtepi32_ps(_mm512_add_epi32(low, zeros)));
        store(to + second + d, (Lanes)_mm512_cvtepi32_ps(_mm512_add_epi32(high, zeros)));
    }
#endif
    for (; d < second; d++) {
        store(to[d], float(2 * (from[d].bits & 15) + zero));
        store(to[second + d], float(2 * (from[d].bits >> 4) + zero));
    }
}

// A block's first value, with sixteenths of a step.
inline void widen(const nibbles* from, const nibbles* fine, int64_t size, int8_t zero, bf16* to) {
    const int64_t second = size / 2;
    int64_t d = 0;
#if defined(__AVX512BF16__)
    const __m512i zeros = _mm512_set1_epi32(8 * zero);
    for (; d + 16 <= second; d += 16) {
        const __m512i coarse = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(from + d)));
        const __m512i rest = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(fine + d)));
        const __m512i lower = _mm512_set1_epi32(15), upper = _mm512_set1_epi32(0xf0);
        const __m512i low = _mm512_or_si512(_mm512_slli_epi32(_mm512_and_si512(coarse, lower), 4), _mm512_and_si512(rest, lower));
        const __m512i high = _mm512_or_si512(_mm512_and_si512(coarse, upper), _mm512_srli_epi32(rest, 4));
        store(to + d, (Lanes)_mm512_cvtepi32_ps(_mm512_add_epi32(low, zeros)) * 0.125f);
        store(to + second + d, (Lanes)_mm512_cvtepi32_ps(_mm512_add_epi32(high, zeros)) * 0.125f);
    }
#endif
    for (; d < second; d++) {
        const int low = (from[d].bits & 15) << 4 | (fine[d].bits & 15);
        const int high = (from[d].bits & 0xf0) | fine[d].bits >> 4;
        store(to[d], float(low + 8 * zero) * 0.125f);
        store(to[second + d], float(high + 8 * zero) * 0.125f);
    }
}

// `count` keys of one block, whose channels have a scale and a zero each.
inline void widen(const nibbles* const* from, int count, int64_t size, const SlotParams<nibbles>& params,
                  bf16* const* to) {
    const int64_t second = size / 2;
    int64_t d = 0;
#if defined(__AVX512BF16__)
    const auto zeros = [&](int64_t at) {
        return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(params.key_zeros + at)));
    };
    const auto scales = [&](int64_t at) {
        const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(params.key_scales + at)));
        const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(kE5m3Offset)), 20);
        return _mm512_castsi512_ps(bits) * kStep<nibbles>;
    };
    for (; d + 16 <= second; d += 16) {
        const __m512i low_zero = zeros(d), high_zero = zeros(second + d);
        const __m512 low_scale = scales(d), high_scale = scales(second + d);
        for (int i = 0; i < count; i++) {
            const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)(from[i] + d)));
            const __m512i low = half_steps(both, true), high = half_steps(both, false);
            store(to[i] + d, (Lanes)_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(low, low_zero)), low_scale));
            store(to[i] + second + d,
                  (Lanes)_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(high, high_zero)), high_scale));
        }
    }
#endif
    for (; d < second; d++) {
        const float low_scale = to_float(params.key_scales[d]) * kStep<nibbles>;
        const float high_scale = to_float(params.key_scales[second + d]) * kStep<nibbles>;
        for (int i = 0; i < count; i++) {
            const uint8_t both = from[i][d].bits;
            store(to[i][d], float(2 * (both & 15) + params.key_zeros[d]) * low_scale);
            store(to[i][second + d], float(2 * (both >> 4) + params.key_zeros[second + d]) * high_scale);
        }
    }
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

    Rows<Number<T>> keys(const ChunkSlots<T>& slots, int first, int last) {
        if constexpr (std::is_same_v<T, nibbles>) {
            for (int i = first; i < last;) i += widen_some(slots, i, last);
        } else if constexpr (kQuantised<T>) {
            for (int i = first; i < last; i++) widen(slots.keys[i], dim_, rows_[i]);
        } else {
            return {slots.keys, 0};
        }
        return {rows_, 0};
    }

    // They lie `offset` stored elements behind the keys.
    Rows<Number<T>> values(const ChunkSlots<T>& slots, int64_t offset, int first, int last) {
        if constexpr (!kQuantised<T>) return {slots.keys, offset};
        for (int i = first; i < last; i++) {
            if constexpr (std::is_same_v<T, nibbles>)
                widen_value(slots.keys[i] + offset, slots.params[i], rows_[i]);
            else if constexpr (kQuantised<T>)
                widen(slots.keys[i] + offset, dim_, rows_[i]);
        }
        return {rows_, 0};
    }

private:
    void widen_value(const nibbles* from, const SlotParams<nibbles>& params, bf16* to) const {
        if (params.fine) return widen(from, params.fine, dim_, *params.value_zero, to);
        widen(from, dim_, *params.value_zero, to);
    }

    // The keys from `first` on that lie in one block, or one from a tail; returns how many.
    int widen_some(const ChunkSlots<nibbles>& slots, int first, int last) {
        if (slots.open[first]) {
            std::memcpy(rows_[first], slots.open[first], dim_ * sizeof(bf16));
            return 1;
        }
        int end = first + 1;
        while (end < last && slots.params[end].key_scales == slots.params[first].key_scales && !slots.open[end]) end++;
        widen(slots.keys + first, end - first, dim_, slots.params[first], rows_ + first);
        return end - first;
    }

    int64_t dim_;
    LineVector<Number<T>> memory_;
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
