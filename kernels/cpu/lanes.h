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

// Puts `size` numbers that are in the order of load_pair for type T back in theirs.
template <typename T>
inline void unpair(const float* from, int64_t size, float* to) {
    int64_t d = 0;
    if constexpr (sizeof(T) < sizeof(float))
        for (; d + kPair <= size; d += kPair)
            for (int i = 0; i < kLanes; i++) {
                to[d + 2 * i] = from[d + i];
                to[d + 2 * i + 1] = from[d + kLanes + i];
            }
    for (; d < size; d++) to[d] = from[d];
}

}  // namespace kvmesh
