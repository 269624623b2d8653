// Number formats and the two transcendental functions, written so that compilers vectorise them.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvmesh {

// bfloat16: the upper half of a float32.
struct bf16 {
    uint16_t bits;
};

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return float_of(uint32_t(x.bits) << 16); }

// Rounds to nearest even, as torch does; a NaN stays one.
inline void store(bf16& to, float x) {
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to.bits = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}
inline void store(float& to, float x) { to = x; }

// exp as 2^n · e^f with |f| ≤ ln 2 / 2 and Cephes' polynomial for e^f; 2e-7 relative. Exactly 0 below
// −87, where float32 leaves its normal range, so that a score of −inf weighs nothing.
inline float fast_exp(float x) {
    float clamped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 · 2^23: rounds; n is in the low bits
    float n = shifted - 12582912.0f;
    float f = clamped - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts: n · ln 2 is exact
    float p = 1.9875691500e-4f;
    p = p * f + 1.3981999507e-3f;
    p = p * f + 8.3334519073e-3f;
    p = p * f + 4.1665795894e-2f;
    p = p * f + 1.6666665459e-1f;
    p = p * f + 5.0000001201e-1f;
    p = p * (f * f) + f + 1.0f;
    float result = float_of(bits_of(p) + (bits_of(shifted) << 23));
    return x < -87.0f ? 0.0f : result;
}

inline float fast_tanh(float x) { return 1.0f - 2.0f / (fast_exp(2.0f * x) + 1.0f); }

inline float silu(float x) { return x / (1.0f + fast_exp(-x)); }

// The tanh approximation of GELU, as Gemma uses it.
inline float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + fast_tanh(0.79788456f * (x + 0.044715f * x * x * x)));
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace kvmesh
