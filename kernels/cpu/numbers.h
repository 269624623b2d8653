// Number formats, and powers of two.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvmesh {

// bfloat16: the upper half of a float32.
struct bf16 {
    uint16_t bits;
};

// IEEE half precision, of scales.
struct half {
    uint16_t bits;
};

// 8 bits: sign, 4 of exponent (bias 7), 3 of mantissa; 448 is the largest, there are no infinities
// (Micikevicius et al., arXiv:2209.05433).
struct e4m3 {
    uint8_t bits;
};
constexpr float kE4m3Highest = 448.0f;

// 8 bits without a sign: 5 of exponent (bias 24), 3 of mantissa, no subnormal numbers; scales of keys.
struct e5m3 {
    uint8_t bits;
};
constexpr uint32_t kE5m3Offset = (127 - 24) << 3;

// Two unsigned numbers of four bits.
struct nibbles {
    uint8_t bits;
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

inline float to_float(half x) {
    const float magnitude = float_of(uint32_t(x.bits & 0x7fff) << 13) * 0x1p112f;
    return float_of(bits_of(magnitude) | uint32_t(x.bits & 0x8000) << 16);
}

// Rounds to nearest even; for numbers that are neither negative nor too large.
inline void store(half& to, float x) {
    const float tiny = x + 0.5f;  // below 2^-14 the unit is 2^-24, that of 0.5
    const uint32_t bits = bits_of(x), rounded = (bits + 0xfff + ((bits >> 13) & 1)) >> 13;
    to.bits = uint16_t(x < 0x1p-14f ? bits_of(tiny) - bits_of(0.5f) : rounded - (112u << 10));
}

inline float to_float(e4m3 x) {
    const uint32_t magnitude = x.bits & 0x7fu;
    const float normal = float_of((magnitude << 20) + (120u << 23)), tiny = float(magnitude) * 0x1p-9f;
    return float_of(bits_of(magnitude < 8 ? tiny : normal) | uint32_t(x.bits & 0x80u) << 24);
}

// Rounds to nearest even; what is too large becomes the largest.
inline void store(e4m3& to, float x) {
    const uint32_t sign = bits_of(x) >> 24 & 0x80;
    const float size = float_of(bits_of(x) & 0x7fffffff), clamped = size > kE4m3Highest ? kE4m3Highest : size;
    const uint32_t bits = bits_of(clamped), rounded = (bits + 0x7ffff + ((bits >> 20) & 1)) >> 20;
    const uint32_t tiny = bits_of(clamped + 0x1p14f) - bits_of(0x1p14f);  // below 2^-6 the unit is 2^-9
    to.bits = uint8_t(sign | (clamped < 0x1p-6f ? tiny : rounded - (120u << 3)));
}

inline float to_float(e5m3 x) { return float_of((x.bits + kE5m3Offset) << 20); }

// Rounds to nearest even; for numbers that are not negative.
inline void store(e5m3& to, float x) {
    const uint32_t bits = bits_of(x), rounded = (bits + 0x7ffff + ((bits >> 20) & 1)) >> 20;
    const uint32_t code = rounded < kE5m3Offset ? 0 : rounded - kE5m3Offset;
    to.bits = uint8_t(code > 255 ? 255 : code);
}

// 2^x = 2^n · 2^f with |f| ≤ 1/2, by a polynomial whose relative error is 7e-8 (Remez). Exactly 0 below
// −126, where float32 leaves its normal range, so that a score of −inf weighs nothing.
constexpr float kExp2[] = {1.0f, 0.693146944f, 0.240221202f, 0.0555071309f, 0.00967554096f, 0.00132764725f};
constexpr float kExp2Lowest = -126.0f, kExp2Highest = 127.0f;
constexpr float kLog2E = 1.44269504f;

inline float exp2(float x) {
    const float clamped = x < kExp2Lowest ? kExp2Lowest : (x > kExp2Highest ? kExp2Highest : x);
    const float shifted = clamped + 12582912.0f;  // 1.5 · 2^23: rounds; n is in the low bits
    const float f = clamped - (shifted - 12582912.0f);
    float p = kExp2[5];
    for (int i = 4; i >= 0; i--) p = p * f + kExp2[i];
    const float result = float_of(bits_of(p) + (bits_of(shifted) << 23));
    return x < kExp2Lowest ? 0.0f : result;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace kvmesh
