// The kernels for codebooks and affine integers in the build for one instruction set. Each kernel runs in the calling
// thread and processes n adjacent values in blocks of `block` values. The last block may be shorter. `given` is the
// scale of all blocks. If it is null, the scale of each block is computed from its values. x and out may be the same
// memory.
#pragma once

#include <cstdint>

#include "scaled/affine.h"
#include "scaled/codebook.h"

namespace custom_fp {

constexpr int64_t columns_per_pass = 256;

// The range of some values and zero, and the bits of the largest magnitude.
struct Range {
    float low, high;
    u32 largest;
};

struct ScaledKernels {
    // Returns the largest magnitude, as bits. The bits of nonnegative floats have the order of the floats, with NaN
    // above infinity.
    u32 (*largest_bits)(const float* x, int64_t n);
    void (*codebook_quantize)(const float* x, float* out, int64_t n, int64_t block, const float* given,
                              const CodebookTables& tables);
    // Processes n <= columns_per_pass adjacent columns. Each is one block of `rows` values with a stride of `inner`.
    void (*codebook_columns)(const float* x, float* out, int64_t rows, int64_t inner, int64_t n,
                             const CodebookTables& tables);
    void (*codebook_encode)(const float* x, u8* codes, float* scales, int64_t n, int64_t block, const float* given,
                            const CodebookTables& tables);
    void (*join_halves)(const u8* codes, u8* bytes, int64_t n);
    void (*split_halves)(const u8* bytes, u8* codes, int64_t n);
    void (*codebook_decode)(const u8* codes, const float* scales, float* out, int64_t n, int64_t block,
                            const float* values);

    Range (*affine_range)(const float* x, int64_t n);
    void (*affine_quantize)(const float* x, float* out, int64_t n, int64_t block, float levels,
                            const AffineScale* given);
    void (*affine_columns)(const float* x, float* out, int64_t rows, int64_t inner, int64_t n, float levels);
    void (*affine_encode)(const float* x, u8* codes, float* scales, u8* zeros, int64_t n, int64_t block, float levels,
                          const AffineScale* given);
    AffineScale (*affine_tile)(const float* x, float* out, u8* codes, int64_t high, int64_t wide, int64_t columns,
                               float levels);
    void (*affine_decode)(const u8* codes, const float* scales, const u8* zeros, float* out, int64_t n, int64_t block);
};

}  // namespace custom_fp
