// The functions that Python calls, and that call each other. Each is described where it is defined.
#pragma once
#include "paged.h"

extern "C" {

void kvmesh_rms_norm(const float* x, int64_t tokens, int64_t size, const float* weight, float epsilon,
                     int32_t is_bfloat16, void* out, int32_t threads);

void kvmesh_linear(const void* x, int64_t tokens, int64_t inputs, const void* weight, int64_t outputs,
                   const float* bias, int32_t ending, void* out, int32_t threads);

void kvmesh_place(void* pool, int32_t kind, const kvmesh::PoolSizes* sizes, int64_t layer, int64_t num_rows,
                  const int64_t* spans, const int32_t* tables, float* qkv, const float* cos, const float* sin,
                  const float* norm, float epsilon, void* query, int32_t threads);

void kvmesh_attention(void* pool, int32_t kind, const kvmesh::PoolSizes* sizes, int64_t layer,
                      int64_t num_rows, const int64_t* spans, const int32_t* tables, const void* query, void* out,
                      float scale, int64_t window, float softcap, int32_t threads);

struct KvmeshDecoder;
int32_t kvmesh_decoder(const KvmeshDecoder* decoder, void* pool, int32_t kind, const kvmesh::PoolSizes* sizes,
                       int64_t num_rows, const int64_t* spans, const int32_t* tables, int64_t tokens, float* residual,
                       const float* const* rotations, const int64_t* wanted, int64_t num_wanted, int32_t threads);
}

// What follows a product, see linear.cpp.
enum Ending : int32_t { kFloat32 = 1, kAdd = 2, kSiluGate = 3, kGeluGate = 4 };
