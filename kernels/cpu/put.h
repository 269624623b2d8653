// How a vector is stored, in each of the pool's dtypes; the torch reference is in kv_pool.py, kv_int4.py.
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

// Scale and zero of numbers between `low` and `high`, as `quantise_int4` in Python.
struct Int4Range {
    half scale;
    float step, inverse, zero;

    Int4Range(float low, float high) {
        const float largest = std::max(std::fabs(low), std::fabs(high));
        store(scale, std::max((high - low) / 15.0f, largest / 127.0f));
        step = to_float(scale);
        inverse = step > 0.0f ? 1.0f / step : 0.0f;
        zero = std::min(127.0f, std::max(-127.0f, std::nearbyint(low * inverse)));
    }

    float element(float x) const { return std::min(15.0f, std::max(0.0f, std::nearbyint(x * inverse) - zero)); }

    float error(const float* x, int64_t size) const {
        float squares = 0.0f;
        for (int64_t i = 0; i < size; i++) {
            const float missed = (element(x[i]) + zero) * step - x[i];
            squares += missed * missed;
        }
        return squares;
    }

    // The best of a few that leave out more and more of the ends.
    static Int4Range best(const float* x, int64_t size) {
        float low = x[0], high = x[0];
        for (int64_t i = 1; i < size; i++) {
            low = std::min(low, x[i]);
            high = std::max(high, x[i]);
        }
        const float middle = (low + high) / 2, reach = (high - low) / 2;
        Int4Range found(low, high);
        float least = found.error(x, size);
        for (float part : {0.9f, 0.8f, 0.7f}) {
            const Int4Range tried(middle - reach * part, middle + reach * part);
            const float error = tried.error(x, size);
            if (error >= least) continue;
            least = error;
            found = tried;
        }
        return found;
    }
};

inline uint8_t packed(float low, float high) { return uint8_t(uint8_t(low) | uint8_t(high) << 4); }

inline void put(const float* from, int64_t size, half* scale, int8_t* zero, nibbles* to) {
    const Int4Range range = Int4Range::best(from, size);
    *scale = range.scale;
    *zero = int8_t(range.zero);
    for (int64_t d = 0; d < size / 2; d++)
        to[d].bits = packed(range.element(from[d]), range.element(from[size / 2 + d]));
}

}  // namespace kvmesh
