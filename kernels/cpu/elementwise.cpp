// What lies between the linear layers and the attention of a decoder layer.
#include "api.h"
#include "chunk.h"
#include "norm.h"

using namespace kvmesh;

namespace {

constexpr int64_t kTokensWorthThreads = 16;

template <typename T>
void rms_norm(const float* x, int64_t tokens, int64_t size, const float* weight, float epsilon, T* out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && tokens >= kTokensWorthThreads)
    for (int64_t t = 0; t < tokens; t++) {
        const float* from = x + t * size;
        const float scale = inverse_rms(from, size, epsilon);
        int64_t i = 0;
        for (; i + kLanes <= size; i += kLanes) store(&out[t * size + i], load(from + i) * scale * load(weight + i));
        for (; i < size; i++) store(out[t * size + i], from[i] * scale * weight[i]);
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

// One vector of `size` numbers goes to its place in the pool, with its scale.
template <typename T>
inline void put(const float* from, int64_t size, T* to, half*, const float*) {
    for (int64_t d = 0; d < size; d++) store(to[d], from[d]);
}

inline void put(const float* from, int64_t size, e4m3* to, half*, const float* head_scale) {
    const float inverse = 1.0f / *head_scale;
    for (int64_t d = 0; d < size; d++) store(to[d], from[d] * inverse);
}

inline void put(const float* from, int64_t size, int8_t* to, half* scale, const float*) {
    float highest = 0.0f;
    for (int64_t d = 0; d < size; d++) highest = std::max(highest, std::fabs(from[d]));
    store(*scale, highest / 127.0f);
    const float rounded = to_float(*scale), inverse = rounded > 0.0f ? 1.0f / rounded : 0.0f;
    for (int64_t d = 0; d < size; d++) {
        const float number = std::nearbyint(from[d] * inverse);
        to[d] = int8_t(number > 127.0f ? 127.0f : number < -127.0f ? -127.0f : number);
    }
}

template <typename T>
struct Placement {
    PagedLayer<T> layer;
    int64_t heads;
    float* qkv;  // [tokens, heads + 2 · kv_heads, head_dim]; scratch afterwards
    const float *cos, *sin;
    const float* norm;
    float epsilon;
    Number<T>* query;  // [tokens, heads, head_dim]

    void place(int64_t token, int32_t block, int64_t slot) const {
        const int64_t dim = layer.head_dim, kv_heads = layer.kv_heads;
        const Heads rotation{cos + token * dim, sin + token * dim, norm, epsilon, dim};
        float* x = qkv + token * (heads + 2 * kv_heads) * dim;
        for (int64_t h = 0; h < heads; h++) rotation.rotate(x + h * dim, h, query + (token * heads + h) * dim);
        float rotated[kMaxDim];
        for (int64_t h = 0; h < kv_heads; h++) {
            T* key = const_cast<T*>(layer.key(block, h, slot));
            half* scale = const_cast<half*>(layer.key_scale(block, h, slot));
            const float* fixed = layer.head_scales;  // of fp8
            rotation.rotate(x + (heads + h) * dim, heads + h, rotated);
            put(rotated, dim, key, scale, fixed ? fixed + h : nullptr);
            put(x + (heads + kv_heads + h) * dim, dim, key + layer.value_offset, scale + layer.value_scale_offset,
                fixed ? fixed + kv_heads + h : nullptr);
        }
    }
};

template <typename T>
void place(void* pool, const PoolSizes& sizes, int64_t layer, int64_t num_rows, const int64_t* spans,
           const int32_t* tables, float* qkv, const float* cos, const float* sin, const float* norm, float epsilon,
           void* query, int threads) {
    const Placement<T> placement{PagedLayer<T>(pool, sizes, layer), sizes.heads, qkv, cos, sin, norm, epsilon,
                                 static_cast<Number<T>*>(query)};
    for (int64_t i = 0, first = 0; i < num_rows; i++, spans += 3) {
        const int64_t start = spans[0], count = spans[1] - start;
        const int32_t* table = tables + spans[2];
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count >= kTokensWorthThreads)
        for (int64_t t = 0; t < count; t++)
            placement.place(first + t, table[(start + t) / sizes.block_size], (start + t) % sizes.block_size);
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

// Norms and rotates q and k, writes k and v to their slots of the pool, and q to `query`. Pool, `spans` and
// `tables` as for kvmesh_attention.
extern "C" void kvmesh_place(void* pool, int32_t kind, const PoolSizes* sizes, int64_t layer, int64_t num_rows,
                             const int64_t* spans, const int32_t* tables, float* qkv, const float* cos,
                             const float* sin, const float* norm, float epsilon, void* query, int32_t threads) {
    with_kind(kind, [&](auto element) {
        place<decltype(element)>(pool, *sizes, layer, num_rows, spans, tables, qkv, cos, sin, norm, epsilon, query,
                                 threads);
    });
}
