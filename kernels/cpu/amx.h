// The matrix unit (Intel AMX): tiles of up to 16 rows × 64 bytes, and products of bfloat16 tiles.
//
//     C [m × n] float32 += A [m × 2k] bfloat16 · B, where B's row i holds pairs (2i, 2i + 1) of n columns
#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#define KVMESH_AMX 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace kvmesh {

// Asks the kernel for the tile registers, once for the process: without, the first tile
// instruction is a SIGILL.
inline bool amx_ready() {
    constexpr int request_permission = 0x1023, tile_data = 18;
    static const bool ready = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return ready;
}

struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int tile, int num_rows, int bytes) {
        rows[tile] = uint8_t(num_rows);
        row_bytes[tile] = uint16_t(bytes);
    }
};

// Tiles 0 to 3 are C, [2 × 2]; 4 and 5 are A, with the rows of C; 6 and 7 are B, with its columns.
inline void configure_tiles(int rows0, int rows1, int columns) {
    TileConfig config;
    const int rows[2] = {rows0, rows1 ? rows1 : 1};
    for (int i = 0; i < 2; i++) {
        config.set(2 * i, rows[i], columns * 4);
        config.set(2 * i + 1, rows[i], columns * 4);
        config.set(4 + i, rows[i], 64);
        config.set(6 + i, 16, columns * 4);
    }
    _tile_loadconfig(&config);
}

}  // namespace kvmesh
#endif
