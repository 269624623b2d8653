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
template <typename Scale>
struct Int4Range {
    Scale scale;
    float low, high;
    float step, inverse, zero;  // the zero in half steps

    Int4Range(float low, float high) : low(low), high(high) {
        const float largest = std::max(std::fabs(low), std::fabs(high));
        store(scale, std::max((high - low) / 15.0f, largest * 2.0f / 127.0f));
        step = to_float(scale);
        inverse = step > 0.0f ? 1.0f / step : 0.0f;
        zero = limited(std::nearbyint(low * 2.0f * inverse));
    }

    static float limited(float zero) { return std::min(127.0f, std::max(-127.0f, zero)); }

    float element(float x) const {
        return std::min(15.0f, std::max(0.0f, std::nearbyint(x * inverse - zero * 0.5f)));
    }

    float error(const float* x, int64_t size) const {
        float squares = 0.0f;
        for (int64_t i = 0; i < size; i++) {
            const float missed = (element(x[i]) + zero * 0.5f) * step - x[i];
            squares += missed * missed;
        }
        return squares;
    }

    int sixteenths(float x) const {
        return int(std::min(255.0f, std::max(0.0f, std::nearbyint((x * inverse - zero * 0.5f) * 16.0f))));
    }

    static Int4Range whole(const float* x, int64_t size) {
        float low = x[0], high = x[0];
        for (int64_t i = 1; i < size; i++) {
            low = std::min(low, x[i]);
            high = std::max(high, x[i]);
        }
        return Int4Range(low, high);
    }

    // The best of a few that leave out more and more of the ends.
    static Int4Range best(const float* x, int64_t size) {
        Int4Range found = whole(x, size);
        const float middle = (found.low + found.high) / 2, reach = (found.high - found.low) / 2;
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
    const auto range = Int4Range<half>::best(from, size);
    *scale = range.scale;
    *zero = int8_t(range.zero);
    for (int64_t d = 0; d < size / 2; d++)
        to[d].bits = packed(range.element(from[d]), range.element(from[size / 2 + d]));
}

// With sixteenths of a step in `fine`.
inline void put(const float* from, int64_t size, half* scale, int8_t* zero, nibbles* to, nibbles* fine) {
    auto range = Int4Range<half>::whole(from, size);
    range.zero = range.limited(std::floor(range.low * 2.0f * range.inverse));  // not above the lowest
    *scale = range.scale;
    *zero = int8_t(range.zero);
    for (int64_t d = 0; d < size / 2; d++) {
        const int low = range.sixteenths(from[d]), high = range.sixteenths(from[size / 2 + d]);
        to[d].bits = uint8_t(low >> 4 | (high & 0xf0));
        fine[d].bits = uint8_t((low & 15) | high << 4);
    }
}

}  // namespace kvmesh
