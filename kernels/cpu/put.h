// How a vector is stored, in each of the pool's dtypes; the torch reference is in kv_pool.py; four bits in
// four_bits.h.
#pragma once
#include <algorithm>
#include <cmath>

#include "numbers.h"

namespace kvmesh {

// One vector of `size` numbers, a key or a value, goes to its place in the pool.
template <typename T>
inline void put(const float* from, int64_t size, T* to) {
    for (int64_t d = 0; d < size; d++) store(to[d], from[d]);
}

inline void put(const float* from, int64_t size, float scale, e4m3* to) {
    const float inverse = 1.0f / scale;
    for (int64_t d = 0; d < size; d++) store(to[d], from[d] * inverse);
}

inline void put(const float* from, int64_t size, half* scale, int8_t* to) {
    float highest = 0.0f;
    for (int64_t d = 0; d < size; d++) highest = std::max(highest, std::fabs(from[d]));
    store(*scale, highest / 127.0f);
    const float rounded = to_float(*scale), inverse = rounded > 0.0f ? 1.0f / rounded : 0.0f;
    for (int64_t d = 0; d < size; d++) {
        const float number = std::nearbyint(from[d] * inverse);
        to[d] = int8_t(number > 127.0f ? 127.0f : number < -127.0f ? -127.0f : number);
    }
}

}  // namespace kvmesh
