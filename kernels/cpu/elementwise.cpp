// What lies between the linear layers and the attention of a decoder layer.
#include "api.h"
#include "chunk.h"
#include "four_bits.h"
#include "norm.h"
#include "put.h"

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

template <typename T>
struct Placement {
    PagedLayer<T> layer;
    int64_t heads;
    float* qkv;  // [tokens, heads + 2 · kv_heads, head_dim]; scratch afterwards
    const float *cos, *sin;
    const float* norm;
    float epsilon;
    Number<T>* query;  // [tokens, heads, head_dim]

    Heads rotation(int64_t token) const {
        return {cos + token * layer.head_dim, sin + token * layer.head_dim, norm, epsilon, layer.head_dim};
    }
    float* heads_of(int64_t token) const { return qkv + token * (heads + 2 * layer.kv_heads) * layer.head_dim; }
    float* key_of(int64_t token, int64_t h) const { return heads_of(token) + (heads + h) * layer.head_dim; }

    // Rotated and centred.
    template <typename E>
    void place_key(int64_t token, int64_t h, E* to) const {
        float rotated[kMaxDim];
        rotation(token).rotate(key_of(token, h), heads + h, rotated);
        if (const float* centre = layer.key_centre(h))
            for (int64_t d = 0; d < layer.head_dim; d++) rotated[d] -= centre[d];
        for (int64_t d = 0; d < layer.head_dim; d++) store(to[d], rotated[d]);
    }

    const float* centred_value(int64_t token, int64_t h) const {
        float* value = key_of(token, layer.kv_heads + h);
        if (const float* centre = layer.value_centre(h))
            for (int64_t d = 0; d < layer.head_dim; d++) value[d] -= centre[d];
        return value;
    }

    void place_query(int64_t token) const {
        for (int64_t h = 0; h < heads; h++)
            rotation(token).rotate(heads_of(token) + h * layer.head_dim, h,
                                   query + (token * heads + h) * layer.head_dim);
    }

    void place_kv(int64_t token, int32_t block, int64_t slot) const {
        const int64_t dim = layer.head_dim;
        float rotated[kMaxDim];
        for (int64_t h = 0; h < layer.kv_heads; h++) {
            place_key(token, h, rotated);
            T* key = layer.key(block, h, slot);
            T* value = key + layer.value_offset;
            const float* from = centred_value(token, h);
            if constexpr (std::is_same_v<T, e4m3>) {
                put(rotated, dim, layer.head_scale(h)[0], key);
                put(from, dim, layer.head_scale(h)[layer.kv_heads], value);
            } else if constexpr (std::is_same_v<T, int8_t>) {
                const SlotParams<T> params = layer.params(block, h, slot);
                put(rotated, dim, params.key_scale, key);
                put(from, dim, params.value_scale, value);
            } else {
                put(rotated, dim, key);
                put(from, dim, value);
            }
        }
    }

    // Keys lie in the row's tail, and are quantised when that makes the block full.
    void place_open_kv(const Row& row, int64_t h) const {
        const int32_t block = row.table.blocks[row.start / layer.block_size];
        bf16* tail = layer.tail(row.table.tail, h, 0);
        for (int64_t at = row.start; at < row.end; at++) {
            const int64_t token = row.first + at - row.start, slot = at % layer.block_size;
            place_key(token, h, tail + slot * layer.head_dim);
            const SlotParams<nibbles> params = layer.params(block, h, slot);
            const float* value = centred_value(token, h);
            nibbles* to = layer.key(block, h, slot) + layer.value_offset;
            if (params.fine)
                put(value, layer.head_dim, params.value_scale, params.value_zero, to, params.fine);
            else
                put(value, layer.head_dim, params.value_scale, params.value_zero, to);
        }
        if (row.end % layer.block_size == 0) close(block, h, tail);
    }

private:
    void close(int32_t block, int64_t h, const bf16* keys) const {
        const int64_t dim = layer.head_dim, size = layer.block_size, line = padded_dim(dim);
        thread_local std::vector<float> numbers;
        numbers.assign(size * line, 0.0f);
        for (int64_t s = 0; s < size; s++)
            for (int64_t d = 0; d < dim; d++) numbers[s * line + d] = to_float(keys[s * dim + d]);
        const SlotParams<nibbles> params = layer.params(block, h, 0);
        put_channels(numbers.data(), size, dim, params.key_scales, params.key_zeros, layer.key(block, h, 0));
    }
};

template <typename T>
void place(void* pool, const PoolSizes& sizes, int64_t layer, int64_t num_rows, const int64_t* spans,
           const int32_t* tables, float* qkv, const float* cos, const float* sin, const float* norm, float epsilon,
           void* query, int threads) {
    const Placement<T> placement{PagedLayer<T>(pool, sizes, layer), sizes.heads, qkv, cos, sin, norm, epsilon,
                                 static_cast<Number<T>*>(query)};
    std::vector<Row> rows;
    for (int64_t i = 0, first = 0; i < num_rows; i++, spans += kRowSpan) {
        const Row& row = rows.emplace_back(read_row(spans, tables, first, sizes.block_size));
        const int64_t count = row.end - row.start;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count >= kTokensWorthThreads)
        for (int64_t t = 0; t < count; t++) {
            placement.place_query(first + t);
            const int64_t at = row.start + t;
            if constexpr (!std::is_same_v<T, nibbles>)
                placement.place_kv(first + t, row.table.blocks[at / sizes.block_size], at % sizes.block_size);
        }
        first += count;
    }
    if constexpr (std::is_same_v<T, nibbles>) {
        const int64_t units = num_rows * sizes.kv_heads;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && units >= kTokensWorthThreads)
        for (int64_t u = 0; u < units; u++) placement.place_open_kv(rows[u / sizes.kv_heads], u % sizes.kv_heads);
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
