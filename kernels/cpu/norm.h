// RMSNorm of one vector (Zhang and Sennrich, arXiv:1910.07467).
#pragma once
#include <cmath>

#include "numbers.h"

namespace kvmesh {

// 1 / √(mean(x²) + ε)
inline float inverse_rms(const float* x, int64_t size, float epsilon) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++) squares += x[i] * x[i];
    return 1.0f / std::sqrt(squares / float(size) + epsilon);
}

}  // namespace kvmesh
