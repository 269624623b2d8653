// Number formats, and powers of two.
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
