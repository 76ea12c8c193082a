// The CPU kernels for elements in the build for one instruction set. Each kernel runs in the calling thread and
// processes the elements begin to end - 1 of whole tensors, where begin is a multiple of 8. `wide` says whether x
// contains doubles or floats. x and out may be the same memory.
#pragma once

#include <cstdint>

namespace custom_fp {

// How to round. A format is binary floating point, described by `spec`, or a table of values
// (tabulated/tabulated_rounding.h).
struct Rule {
    uint32_t spec;    // Format.spec
    int mode;         // Mode
    int overflow;     // Overflow
    uint64_t seed;
    uint64_t offset;  // the index of the first element, which determines its random bits
    uint32_t mask;    // selects the random bits that are used, from the first bit on
    // Tables for this rounding, and for nearest_even with overflow to infinity. Null if the format is not a table.
    const int32_t *table = nullptr, *nearest = nullptr;
};

// The operators of every format without scales.
struct Operators {
    void (*quantize)(const void* x, bool wide, float* out, int64_t begin, int64_t end, const Rule& rule);
    // out[i] = sum over tensors, with every partial sum rounded. is_wide: which tensors contain doubles; null for none.
    void (*accumulate)(const void* const* x, const uint8_t* is_wide, int count, float* out, int64_t begin, int64_t end,
                       const Rule& rule, bool kahan);
    void (*encode)(const void* x, bool wide, void* codes, int code_bytes, int64_t begin, int64_t end, const Rule& rule);
    void (*decode)(const void* codes, int code_bytes, float* out, int64_t begin, int64_t end, const Rule& rule);
    // pack: x * 2^shift, rounded, as dense bytes. unpack: the values of dense bytes, times 2^shift.
    void (*pack)(const void* x, bool wide, uint8_t* bytes, int64_t begin, int64_t end, const Rule& rule, int shift);
    void (*unpack)(const uint8_t* bytes, float* out, int64_t begin, int64_t end, const Rule& rule, int shift);
    // Adds the dense bytes of several tensors, with every partial sum rounded, and packs the sum.
    void (*accumulate_packed)(const uint8_t* const* bytes, int count, uint8_t* out, int64_t begin, int64_t end,
                              const Rule& rule, bool kahan);
    // Multiplies rows begin to end - 1 (any rows) of a (MxK) by b (KxN), both dense. `buffer` has room for K * 64
    // values.
    void (*matmul)(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                   const Rule& rule, bool kahan, float* buffer);
};

// A Hadamard transform of blocks along the middle dimension of (outer, length, inner).
struct Transform {
    int64_t length, inner;
    int64_t size;    // the size of a block: a power of two, at most `length`
    bool inverse, has_signs;
    uint64_t seed;   // the seed of the signs
};

// The kernels for binary floating point, and those that do not depend on a format.
struct FormatKernels : Operators {
    void (*scale)(const void* x, bool wide, float* out, int64_t begin, int64_t end, int shift);
    // Returns the largest magnitude among finite values, as float64 bits.
    uint64_t (*max_magnitude)(const void* x, bool wide, int64_t begin, int64_t end);
    // Transforms blocks begin to end - 1. Values after the last block of a length are copied together with this block.
    void (*hadamard)(const float* x, float* out, int64_t begin, int64_t end, const Transform& transform);
};

struct TableKernels : Operators {};

}  // namespace custom_fp
