// The kernels for formats with scales in the build for one instruction set. They run in the calling thread.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "tiles/tiles.h"

namespace custom_fp {

// A layout of formats/layout.py: `planes` matrices of rows x columns, in tiles of height x width.
struct Tiling {
    int64_t planes, rows, columns, height, width;

    int64_t down() const { return (rows + height - 1) / height; }
    int64_t across() const { return (columns + width - 1) / width; }
    // Adjacent tiles are processed together. Their number is small enough that they stay in the cache, and their codes
    // fill whole bytes.
    int64_t tiles_per_unit() const {
        const int64_t most = height == 1 ? 1024 : height <= 128 ? 16384 / height : 64;
        const int64_t some = width < most ? most / width : 1;
        return width % 8 == 0 ? some : some < 8 ? 8 : some / 8 * 8;
    }
    int64_t runs() const { return (across() + tiles_per_unit() - 1) / tiles_per_unit(); }
    // The number of units of work. Each unit is a run of adjacent tiles.
    int64_t units() const { return planes * down() * runs(); }
    int64_t unit_size() const { return height * (tiles_per_unit() < across() ? tiles_per_unit() * width : columns); }
};

struct TileKernels {
    // Returns the largest magnitude, as bits. all: include NaN and infinity.
    uint32_t (*largest)(const float* x, int64_t n, bool all);
    // These process the units begin to end - 1. t: the scale of the tensor, or 1. dense: codes are packed and the
    // tensor is one row. Otherwise, each code is a byte.
    void (*quantize)(const float* x, float* out, const Tiling& tiling, int64_t begin, int64_t end, const Scaling& scaling,
                     const Rule& rule, float t);
    void (*encode)(const float* x, void* scales, u8* codes, bool dense, const Tiling& tiling, int64_t begin, int64_t end,
                   const Scaling& scaling, const Rule& rule, float t);
    void (*decode)(const void* scales, const u8* codes, bool dense, float* out, const Tiling& tiling, int64_t begin,
                   int64_t end, const Scaling& scaling, float t);
    // These process the elements begin to end - 1 of a tensor that is one block with this scale. begin must be a
    // multiple of 512.
    void (*quantize_one)(const float* x, float* out, int64_t begin, int64_t end, const Scaling& scaling, const Rule& rule,
                         float scale, float t);
    void (*encode_one)(const float* x, u8* codes, bool dense, int64_t begin, int64_t end, const Scaling& scaling,
                       const Rule& rule, float scale, float t);
    void (*decode_one)(const u8* codes, bool dense, float* out, int64_t begin, int64_t end, const Scaling& scaling,
                       float scale, float t);
    // These convert the codes begin to end - 1, of `bits` bits, between bytes and dense bits. begin must be a multiple
    // of 512.
    void (*join)(const u8* codes, u8* bytes, int64_t begin, int64_t end, int bits);
    void (*split)(const u8* bytes, u8* codes, int64_t begin, int64_t end, int bits);
};

}  // namespace custom_fp
