// What lies between the linear layers and the attention of a decoder layer.
#include "api.h"
#include "norm.h"
#include "paged.h"

using namespace kvmesh;

namespace {

constexpr int64_t kTokensWorthThreads = 16;

template <typename T>
void rms_norm(const float* x, int64_t tokens, int64_t size, const float* weight, float epsilon, T* out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && tokens >= kTokensWorthThreads)
    for (int64_t t = 0; t < tokens; t++) {
        const float* from = x + t * size;
        const float scale = inverse_rms(from, size, epsilon);
        for (int64_t i = 0; i < size; i++) store(out[t * size + i], from[i] * scale * weight[i]);
    }
}

// The heads of one token: q and k are normed where the family does so, and rotated.
struct Heads {
    const float *cos, *sin;  // [head_dim] of the token; `sin` holds −sin in its first half
    const float* norm;       // [heads + kv_heads, head_dim] or null
    float epsilon;
    int64_t head_dim;

    template <typename T>
    void rotate(float* x, int64_t head, T* out) const {
        if (norm) {
            const float scale = inverse_rms(x, head_dim, epsilon);
            for (int64_t d = 0; d < head_dim; d++) x[d] *= scale * norm[head * head_dim + d];
        }
        const int64_t half = head_dim / 2;
        for (int64_t d = 0; d < half; d++) store(out[d], x[d] * cos[d] + x[d + half] * sin[d]);
        for (int64_t d = half; d < head_dim; d++) store(out[d], x[d] * cos[d] + x[d - half] * sin[d]);
    }
};

template <typename T>
struct Placement {
    PagedLayer<T> layer;
    int64_t heads, kv_heads;
    float* qkv;  // [tokens, heads + 2 · kv_heads, head_dim]; scratch afterwards
    const float *cos, *sin;
    const float* norm;
    float epsilon;
    T* query;  // [tokens, heads, head_dim]

    void place(int64_t token, int32_t block, int64_t slot) const {
        const int64_t dim = layer.head_dim;
        const Heads rotation{cos + token * dim, sin + token * dim, norm, epsilon, dim};
        float* x = qkv + token * (heads + 2 * kv_heads) * dim;
        for (int64_t h = 0; h < heads; h++) rotation.rotate(x + h * dim, h, query + (token * heads + h) * dim);
        for (int64_t h = 0; h < kv_heads; h++) {
            T* key = const_cast<T*>(layer.key(block, h, slot));
            rotation.rotate(x + (heads + h) * dim, heads + h, key);
            const float* value = x + (heads + kv_heads + h) * dim;
            for (int64_t d = 0; d < dim; d++) store(key[layer.value_offset + d], value[d]);
        }
    }
};

template <typename T>
void place(void* pool, const int64_t* sizes, int64_t layer, int64_t num_rows, const int64_t* spans,
           const int32_t* tables, float* qkv, const float* cos, const float* sin, const float* norm, float epsilon,
           void* query, int threads) {
    const int64_t heads = sizes[1], kv_heads = sizes[2], block_size = sizes[3];
    const PagedLayer<T> paged(static_cast<const T*>(pool), sizes[0], layer, kv_heads, block_size, sizes[4]);
    const Placement<T> placement{paged, heads, kv_heads, qkv, cos, sin, norm, epsilon, static_cast<T*>(query)};
    for (int64_t i = 0, first = 0; i < num_rows; i++, spans += 3) {
        const int64_t start = spans[0], count = spans[1] - start;
        const int32_t* table = tables + spans[2];
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count >= kTokensWorthThreads)
        for (int64_t t = 0; t < count; t++)
            placement.place(first + t, table[(start + t) / block_size], (start + t) % block_size);
        first += count;
    }
}

}  // namespace

extern "C" void kvmesh_rms_norm(const float* x, int64_t tokens, int64_t size, const float* weight, float epsilon,
                                int32_t is_bfloat16, void* out, int32_t threads) {
    if (is_bfloat16)
        rms_norm(x, tokens, size, weight, epsilon, static_cast<bf16*>(out), threads);
    else
        rms_norm(x, tokens, size, weight, epsilon, static_cast<float*>(out), threads);
}

// Norms and rotates q and k, writes k and v to their slots of the pool, and q to `query`. `sizes`,
// `spans` and `tables` as for kvmesh_attention.
extern "C" void kvmesh_place(void* pool, int32_t is_bfloat16, const int64_t* sizes, int64_t layer, int64_t num_rows,
                             const int64_t* spans, const int32_t* tables, float* qkv, const float* cos,
                             const float* sin, const float* norm, float epsilon, void* query, int32_t threads) {
    (is_bfloat16 ? place<bf16> : place<float>)(pool, sizes, layer, num_rows, spans, tables, qkv, cos, sin, norm,
                                               epsilon, query, threads);
}
