// The CPU kernels on elements that one instruction set's build offers. Each works in the calling thread on elements
// begin..end of whole tensors, where begin is a multiple of 8. `wide`: x holds doubles, else floats. x and out may be
// the same memory.
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
    uint64_t offset;  // index of the first element, from which its random bits follow
    uint32_t mask;    // which of an element's random bits count, from the first on
    const int32_t *table = nullptr, *nearest = nullptr;  // tables for this rounding, and for nearest_even with infinity; null: no table
};

// The operators that every format without scales has.
struct Operators {
    void (*quantize)(const void* x, bool wide, float* out, int64_t begin, int64_t end, const Rule& rule);
    // out[i] = sum over tensors, each partial sum rounded. is_wide: which tensors hold doubles; null: none.
    void (*accumulate)(const void* const* x, const uint8_t* is_wide, int count, float* out, int64_t begin, int64_t end,
                       const Rule& rule, bool kahan);
    void (*encode)(const void* x, bool wide, void* codes, int code_bytes, int64_t begin, int64_t end, const Rule& rule);
    void (*decode)(const void* codes, int code_bytes, float* out, int64_t begin, int64_t end, const Rule& rule);
    // x * 2^shift, rounded, as dense bytes; and back, then * 2^shift
    void (*pack)(const void* x, bool wide, uint8_t* bytes, int64_t begin, int64_t end, const Rule& rule, int shift);
    void (*unpack)(const uint8_t* bytes, float* out, int64_t begin, int64_t end, const Rule& rule, int shift);
    // dense bytes of several tensors -> dense bytes of their accumulated sum
    void (*accumulate_packed)(const uint8_t* const* bytes, int count, uint8_t* out, int64_t begin, int64_t end,
                              const Rule& rule, bool kahan);
    // Rows begin..end (any) of a (MxK) times b (KxN), both dense. `buffer` holds K * 64 values.
    void (*matmul)(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                   const Rule& rule, bool kahan, float* buffer);
};

// A Hadamard transform of blocks along the middle dimension of (outer, length, inner).
struct Transform {
    int64_t length, inner;
    int64_t size;    // of a block: a power of two, at most `length`
    bool inverse, has_signs;
    uint64_t seed;   // of the signs
};

// Kernels for binary floating point, and those that need no format.
struct FormatKernels : Operators {
    void (*scale)(const void* x, bool wide, float* out, int64_t begin, int64_t end, int shift);
    // the largest magnitude among finite values, as float64 bits
    uint64_t (*max_magnitude)(const void* x, bool wide, int64_t begin, int64_t end);
    // Blocks begin..end of all. What is left along a length after its last block is copied with that block.
    void (*hadamard)(const float* x, float* out, int64_t begin, int64_t end, const Transform& transform);
};

struct TableKernels : Operators {};

}  // namespace custom_fp
