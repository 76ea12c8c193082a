// What one instruction set's build of the loops over formats with scales offers: each in the calling thread, on n values
// in a row, in blocks of `block` of which the last may be shorter. given: the scale of all of them, else (null) each
// block's is taken from it. x and out may be the same.
#pragma once

#include <cstdint>

#include "scaled/affine.h"
#include "scaled/codebook.h"

namespace custom_fp {

constexpr int64_t columns_at_once = 256;

struct Range {  // of values, and zero; the bits of the largest magnitude
    float low, high;
    u32 largest;
};

struct ScaledKernels {
    // the largest magnitude, as bits: these of non-negative floats are ordered as the floats are, NaN above infinity
    u32 (*largest_bits)(const float* x, int64_t n);
    void (*codebook_quantize)(const float* x, float* out, int64_t n, int64_t block, const float* given,
                              const CodebookTables& tables);
    // one block a column, of `rows` values that lie `inner` apart; n <= columns_at_once columns side by side
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

const ScaledKernels& scaled_baseline();
#if defined(CFP_X86)
const ScaledKernels& scaled_avx2();
const ScaledKernels& scaled_avx512();
#endif

}  // namespace custom_fp
