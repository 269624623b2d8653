// Numbers in four bits: (element + zero / 2) · scale. The torch reference is four_bits.py.
#pragma once
#include <algorithm>
#include <cmath>

#include "lanes.h"

namespace kvmesh {

// For one number, as for lanes of them.
inline float larger(float a, float b) { return a > b ? a : b; }
inline float smaller(float a, float b) { return a < b ? a : b; }
inline Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }

// For numbers below 2^22.
template <typename X>
inline X nearest(X x) {
    return (x + 12582912.0f) - 12582912.0f;
}

// The scale that can be stored.
inline float rounded(half, float x) {
    half stored;
    store(stored, x);
    return to_float(stored);
}

inline Lanes rounded(e5m3, Lanes x) {
    const LaneBits bits = (LaneBits)x, offset = LaneBits{} + kE5m3Offset;
    const LaneBits near = (bits + 0x7ffff + ((bits >> 20) & 1)) >> 20, least = near < offset ? offset : near;
    return (Lanes)((least > offset + 255 ? offset + 255 : least) << 20);
}

// One range, or one in each lane.
template <typename Scale, typename X>
struct FourBits {
    X step, inverse, zero;  // the zero in half steps

    FourBits(X low, X high) {
        const X largest = larger(larger(low, -low), larger(high, -high));
        step = rounded(Scale{}, larger((high - low) / 15.0f, largest * 2.0f / 127.0f));
        inverse = step > 0.0f ? 1.0f / step : X{};
        zero = limited(nearest(low * 2.0f * inverse));
    }

    static X limited(X zero) { return smaller(larger(zero, X{} - 127.0f), X{} + 127.0f); }

    template <typename Y>
    Y element(Y x) const {
        return smaller(larger(nearest(x * inverse - zero * 0.5f), Y{}), Y{} + 15.0f);
    }

    template <typename Y>
    Y squared_error(Y x) const {
        const Y missed = (element(x) + zero * 0.5f) * step - x;
        return missed * missed;
    }

    // The best of a few ranges that leave out more and more of the ends; `error` sums what one misses.
    template <typename Error>
    static FourBits best(X low, X high, Error error) {
        const X middle = (low + high) / 2.0f, reach = (high - low) / 2.0f;
        FourBits found(low, high);
        X least = error(found);
        for (float part : {0.9f, 0.8f, 0.7f}) {
            const FourBits tried(middle - reach * part, middle + reach * part);
            const X errors = error(tried);
            const auto better = errors < least;
            least = better ? errors : least;
            found.step = better ? tried.step : found.step;
            found.inverse = better ? tried.inverse : found.inverse;
            found.zero = better ? tried.zero : found.zero;
        }
        return found;
    }
};

inline uint8_t packed(float low, float high) { return uint8_t(uint8_t(low) | uint8_t(high) << 4); }

struct Range {
    float low, high;

    Range(const float* x, int64_t size) : low(x[0]), high(x[0]) {
        Lanes lows = all_lanes(low), highs = lows;
        int64_t d = 0;
        for (; d + kLanes <= size; d += kLanes) {
            lows = smaller(lows, load(x + d));
            highs = larger(highs, load(x + d));
        }
        low = -largest(-lows);
        high = largest(highs);
        for (; d < size; d++) {
            low = smaller(low, x[d]);
            high = larger(high, x[d]);
        }
    }
};

// One vector with one range: a value.
inline void put(const float* x, int64_t size, half* scale, int8_t* zero, nibbles* to) {
    const Range range(x, size);
    const auto error = [&](const FourBits<half, float>& tried) {
        Lanes squares = {};
        int64_t d = 0;
        for (; d + kLanes <= size; d += kLanes) squares += tried.squared_error(load(x + d));
        float all = sum(squares);
        for (; d < size; d++) all += tried.squared_error(x[d]);
        return all;
    };
    const auto found = FourBits<half, float>::best(range.low, range.high, error);
    store(*scale, found.step);
    *zero = int8_t(found.zero);
    for (int64_t d = 0; d < size / 2; d++) to[d].bits = packed(found.element(x[d]), found.element(x[size / 2 + d]));
}

// With sixteenths of a step in `fine`, over the whole range.
inline void put(const float* x, int64_t size, half* scale, int8_t* zero, nibbles* to, nibbles* fine) {
    const Range range(x, size);
    const FourBits<half, float> found(range.low, range.high);
    const float lowest = found.limited(std::floor(range.low * 2.0f * found.inverse));  // not above any number
    const auto sixteenths = [&](float x) {
        return int(smaller(larger(nearest((x * found.inverse - lowest * 0.5f) * 16.0f), 0.0f), 255.0f));
    };
    store(*scale, found.step);
    *zero = int8_t(lowest);
    for (int64_t d = 0; d < size / 2; d++) {
        const int low = sixteenths(x[d]), high = sixteenths(x[size / 2 + d]);
        to[d].bits = uint8_t(low >> 4 | (high & 0xf0));
        fine[d].bits = uint8_t((low & 15) | high << 4);
    }
}

constexpr int64_t padded_dim(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// Vectors with a range for each channel: the keys of a block. `x` [count, padded_dim(dim)] becomes elements.
inline void put_channels(float* x, int64_t count, int64_t dim, e5m3* scales, int8_t* zeros, nibbles* to) {
    const int64_t line = padded_dim(dim), second = dim / 2;
    for (int64_t d = 0; d < dim; d += kLanes) {
        Lanes low = load(x + d), high = low;
        for (int64_t i = 1; i < count; i++) {
            low = smaller(low, load(x + i * line + d));
            high = larger(high, load(x + i * line + d));
        }
        const auto error = [&](const FourBits<e5m3, Lanes>& tried) {
            Lanes squares = {};
            for (int64_t i = 0; i < count; i++) squares += tried.squared_error(load(x + i * line + d));
            return squares;
        };
        const auto found = FourBits<e5m3, Lanes>::best(low, high, error);
        for (int64_t i = 0; i < count; i++) store(x + i * line + d, found.element(load(x + i * line + d)));
        for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, dim - d); lane++) {
            store(scales[d + lane], found.step[lane]);
            zeros[d + lane] = int8_t(found.zero[lane]);
        }
    }
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < second; d++) to[i * second + d].bits = packed(x[i * line + d], x[i * line + second + d]);
}

}  // namespace kvmesh
