// What one instruction set's build of the loops over scaled formats offers, each in the calling thread.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "tiles/tiles.h"

namespace custom_fp {

// Layout of formats/layout.py: planes of rows of columns, in tiles of height x width.
struct Tiling {
    int64_t planes, rows, columns, height, width;

    int64_t down() const { return (rows + height - 1) / height; }
    int64_t across() const { return (columns + width - 1) / width; }
    // Tiles side by side that are worked on at a time: so many that they stay in the cache, and, where packed codes are
    // written on the way, in whole bytes.
    int64_t at_once() const {
        const int64_t most = height == 1 ? 1024 : height <= 128 ? 16384 / height : 64;
        const int64_t some = width < most ? most / width : 1;
        return width % 8 == 0 ? some : some < 8 ? 8 : some / 8 * 8;
    }
    int64_t runs() const { return (across() + at_once() - 1) / at_once(); }
    // Units of work: a run of tiles side by side, each.
    int64_t units() const { return planes * down() * runs(); }
    int64_t unit_size() const { return height * (at_once() < across() ? at_once() * width : columns); }
};

struct TileKernels {
    // the largest magnitude, as bits; NaN and infinity count where `all`
    uint32_t (*largest)(const float* x, int64_t n, bool all);
    // units begin..end; t: the scale of the tensor, or 1. codes: a byte each, or packed where `dense` (one row only)
    void (*quantize)(const float* x, float* out, const Tiling& tiling, int64_t begin, int64_t end, const Scaling& scaling,
                     const Rule& rule, float t);
    void (*encode)(const float* x, void* scales, u8* codes, bool dense, const Tiling& tiling, int64_t begin, int64_t end,
                   const Scaling& scaling, const Rule& rule, float t);
    void (*decode)(const void* scales, const u8* codes, bool dense, float* out, const Tiling& tiling, int64_t begin,
                   int64_t end, const Scaling& scaling, float t);
    // elements begin..end (begin a multiple of 512) of a tensor that is one block of this scale
    void (*quantize_one)(const float* x, float* out, int64_t begin, int64_t end, const Scaling& scaling, const Rule& rule,
                         float scale, float t);
    void (*encode_one)(const float* x, u8* codes, bool dense, int64_t begin, int64_t end, const Scaling& scaling,
                       const Rule& rule, float scale, float t);
    void (*decode_one)(const u8* codes, bool dense, float* out, int64_t begin, int64_t end, const Scaling& scaling,
                       float scale, float t);
    // codes begin..end of `bits` each (begin a multiple of 512), from bytes to dense bits and back
    void (*join)(const u8* codes, u8* bytes, int64_t begin, int64_t end, int bits);
    void (*split)(const u8* bytes, u8* codes, int64_t begin, int64_t end, int bits);
};

const TileKernels& tiles_baseline();
#if defined(CFP_X86)
const TileKernels& tiles_avx2();
const TileKernels& tiles_avx512();
#endif

}  // namespace custom_fp
