// What one instruction set's build of the loops over formats that are a table offers: each on elements begin..end (begin a
// multiple of 8) of whole tensors, in the calling thread. wide: x is of doubles. x and out may be the same.
#pragma once

#include <cstdint>

#include "tabulated/tabulated.h"

namespace custom_fp {

struct TableRule {
    const i32* table;    // of the rounding
    const i32* nearest;  // to nearest, with infinity
    uint64_t seed, offset;
    uint32_t mask;  // which of an element's random bits count
};

struct TableKernels {
    void (*quantize)(const void* x, bool wide, float* out, int64_t begin, int64_t end, const TableRule& rule);
    void (*encode)(const void* x, bool wide, void* codes, int code_bytes, int64_t begin, int64_t end,
                   const TableRule& rule);
    void (*decode)(const void* codes, int code_bytes, float* out, int64_t begin, int64_t end, const i32* table);
    // x * 2^shift, rounded, to dense bytes; and back, then * 2^shift
    void (*pack)(const void* x, bool wide, uint8_t* bytes, int64_t begin, int64_t end, const TableRule& rule, int shift);
    void (*unpack)(const uint8_t* bytes, float* out, int64_t begin, int64_t end, const i32* table, int shift);
    void (*accumulate)(const void* const* x, const uint8_t* is_wide, int count, float* out, int64_t begin, int64_t end,
                       const TableRule& rule, bool kahan);
    void (*accumulate_packed)(const uint8_t* const* bytes, int count, uint8_t* out, int64_t begin, int64_t end,
                              const TableRule& rule, bool kahan);
    // rows begin..end (any) of a (MxK) times b (KxN), both dense; `buffer` holds K * 64 values
    void (*matmul)(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                   const i32* table, bool kahan, float* buffer);
};

const TableKernels& tabulated_baseline();
#if defined(CFP_X86)
const TableKernels& tabulated_avx2();
const TableKernels& tabulated_avx512();
#endif

}  // namespace custom_fp
