// Float32 vectors in the types of GCC and Clang, as wide as the CPU's registers. Sums that are held in
// these stay in registers, which arrays do not.
#pragma once
#include "numbers.h"

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

inline Lanes load(const float* from) {
    Lanes lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

inline void store(float* to, Lanes from) { std::memcpy(to, &from, sizeof from); }

inline float sum(Lanes lanes) {
    float total = 0.0f;
    for (int i = 0; i < kLanes; i++) total += lanes[i];
    return total;
}

// kPair elements in two vectors, in whatever order is cheap for their type: in halves for float32,
// even and odd ones for bfloat16, which then takes a shift and a mask.
struct Pair {
    Lanes first, second;
};

inline Pair load_pair(const float* from) { return {load(from), load(from + kLanes)}; }

inline Pair load_pair(const bf16* from) {
    LaneBits bits;
    std::memcpy(&bits, from, sizeof bits);
    return {(Lanes)(bits << 16), (Lanes)(bits & 0xffff0000u)};
}

// The inverse of load_pair for elements of type T.
template <typename T>
inline void add_pair(float* to, Pair from) {
    float halves[kPair];
    store(halves, from.first);
    store(halves + kLanes, from.second);
    if constexpr (sizeof(T) == sizeof(float)) {
        for (int i = 0; i < kPair; i++) to[i] += halves[i];
    } else {
        for (int i = 0; i < kLanes; i++) {
            to[2 * i] += halves[i];
            to[2 * i + 1] += halves[kLanes + i];
        }
    }
}

}  // namespace kvmesh
