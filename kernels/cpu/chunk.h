// Some keys of a row for one KV head.
#pragma once
#include "amx.h"
#include "paged.h"

namespace kvmesh {

constexpr int kChunk = 64;  // keys that are at hand together
constexpr int64_t kMaxDim = 512;

// Where keys lie, from position `begin` on. Behind the last one the first one stands.
template <typename T>
struct ChunkSlots {
    const T* keys[kChunk];

    ChunkSlots() = default;

    // `offset` is that of the KV head in a block.
    ChunkSlots(const PagedLayer<T>& layer, const int32_t* table, int64_t begin, int64_t count, int64_t offset) {
        int64_t block = begin / layer.block_size, slot = begin % layer.block_size;
        const int wanted = int(std::min<int64_t>(count, kChunk));
        for (int i = 0; i < wanted; slot = 0) {
            const T* key = layer.key(table[block++], 0, slot) + offset;
            for (; slot < layer.block_size && i < wanted; slot++, key += layer.head_dim) keys[i++] = key;
        }
        for (int i = wanted; i < kChunk; i++) keys[i] = keys[0];
    }
};

#if defined(KVMESH_AMX)
// Whether sixteen keys are one tile as they lie in the pool.
inline bool keys_fit_tiles(const PagedLayer<bf16>& layer) {
    return layer.block_size % 16 == 0 && layer.head_dim % 32 == 0 && amx_ready();
}
#endif

}  // namespace kvmesh
