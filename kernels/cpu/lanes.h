// Float32 vectors in the types of GCC and Clang, as wide as the CPU's registers. Sums that are held in
// these stay in registers, which arrays do not.
#pragma once
#include "numbers.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace kvmesh {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
constexpr int kPair = 2 * kLanes;

typedef float Lanes __attribute__((vector_size(kLanes * 4)));
typedef uint32_t LaneBits __attribute__((vector_size(kLanes * 4)));
typedef int32_t LaneKeys __attribute__((vector_size(kLanes * 4)));

inline Lanes load(const float* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

inline void store(float* to, Lanes from) { std::memcpy(to, &from, sizeof from); }

inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }

// As trees: a chain through all lanes would wait for each.
inline float sum(Lanes lanes) {
    float part[kLanes];
    store(part, lanes);
    for (int half = kLanes / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

inline float largest(Lanes lanes) {
    float part[kLanes];
    store(part, lanes);
    for (int half = kLanes / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] = part[i] > part[i + half] ? part[i] : part[i + half];
    return part[0];
}

inline Lanes all_lanes(float x) { return x - Lanes{}; }

// As that of one number, in numbers.h.
inline Lanes exp2(Lanes x) {
#if defined(__AVX512F__)
    const __mmask16 in_range = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExp2Lowest), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Lanes f = (Lanes)_mm512_sub_ps(x, n);
#else
    const Lanes low = x < kExp2Lowest ? all_lanes(kExp2Lowest) : x;
    const Lanes clamped = low > kExp2Highest ? all_lanes(kExp2Highest) : low;
    const Lanes shifted = clamped + 12582912.0f;
    const Lanes f = clamped - (shifted - 12582912.0f);
#endif
    Lanes p = f * kExp2[5] + kExp2[4];
    for (int i = 3; i >= 0; i--) p = p * f + kExp2[i];
#if defined(__AVX512F__)
    return (Lanes)_mm512_maskz_scalef_ps(in_range, (__m512)p, n);
#else
    const Lanes result = (Lanes)((LaneBits)p + ((LaneBits)shifted << 23));
    return x < kExp2Lowest ? Lanes{} : result;
#endif
}

inline Lanes tanh(Lanes x) { return 1.0f - 2.0f / (exp2(x * (2.0f * kLog2E)) + 1.0f); }

inline Lanes silu(Lanes x) { return x / (1.0f + exp2(x * -kLog2E)); }

// The tanh approximation of GELU, as Gemma uses it.
inline Lanes gelu_tanh(Lanes x) { return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x))); }

inline void store(bf16* to, Lanes from) {
#if defined(__AVX512BF16__)
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)from);
    std::memcpy(to, &rounded, sizeof rounded);
#else
    float values[kLanes];
    store(values, from);
    for (int i = 0; i < kLanes; i++) store(to[i], values[i]);
#endif
}

// kPair elements in two vectors, in whatever order is cheap for their type: in halves for float32, even
// and odd ones for bfloat16, which then takes a shift and a mask; in turns of four, as the halves of two
// vectors are interleaved, where pairs of bfloat16 are multiplied.
struct Pair {
    Lanes first, second;
};

inline Pair load_pair(const float* from) { return {load(from), load(from + kLanes)}; }

inline Pair load_pair(const bf16* from) {
    LaneBits bits;
    std::memcpy(&bits, from, sizeof bits);
#if defined(__AVX512BF16__)
    const __m512i zero = _mm512_setzero_si512();
    return {(Lanes)_mm512_unpacklo_epi16(zero, (__m512i)bits), (Lanes)_mm512_unpackhi_epi16(zero, (__m512i)bits)};
#else
    return {(Lanes)(bits << 16), (Lanes)(bits & 0xffff0000u)};
#endif
}

// Puts `size` numbers that are in the order of load_pair for type T back in theirs.
template <typename T>
inline void unpair(const float* from, int64_t size, float* to) {
#if defined(__AVX512BF16__)
    constexpr int run = 4;
#else
    constexpr int run = 1;
#endif
    int64_t d = 0;
    if constexpr (sizeof(T) < sizeof(float))
        for (; d + kPair <= size; d += kPair)
            for (int i = 0; i < kLanes; i++) {
                const int64_t at = d + i / run * 2 * run + i % run;
                to[at] = from[d + i];
                to[at + run] = from[d + kLanes + i];
            }
    for (; d < size; d++) to[d] = from[d];
}

}  // namespace kvmesh
