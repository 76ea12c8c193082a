// What one instruction set's build of the CPU kernels offers. Each function works on elements begin..end (begin a
// multiple of 8) of whole tensors, in the calling thread. cpu_*.cpp are compiled once an instruction set.
#pragma once

#include <cstdint>

namespace custom_fp {

struct Rule {          // how to round
    uint32_t spec;     // Format.spec
    int mode;          // Mode
    int overflow;      // Overflow
    uint64_t seed;
    uint64_t offset;   // of the first element, where random words are drawn
    uint32_t mask;     // which of an element's random bits count: the first so many
};

struct Transform {     // Hadamard, of blocks along the middle of (outer, length, inner)
    int64_t length, inner;
    int64_t size;      // of a block, a power of two and at most `length`
    bool inverse, has_signs;
    uint64_t seed;     // of the signs
};

struct Kernels {
    void (*quantize_f32)(const float* x, float* out, int64_t begin, int64_t end, const Rule& rule);
    void (*quantize_f64)(const double* x, float* out, int64_t begin, int64_t end, const Rule& rule);
    void (*scale)(const float* x, float* out, int64_t begin, int64_t end, int shift);
    void (*scale_f64)(const double* x, float* out, int64_t begin, int64_t end, int shift);
    // the largest magnitude among finite values, as float64 bits
    uint64_t (*max_magnitude_f32)(const float* x, int64_t begin, int64_t end);
    uint64_t (*max_magnitude_f64)(const double* x, int64_t begin, int64_t end);
    // out[i] = sum over tensors, each partial sum rounded
    void (*accumulate)(const float* const* x, int count, float* out, int64_t begin, int64_t end, const Rule& rule,
                       bool kahan);
    // the same of tensors of which some (is_wide) are doubles
    void (*accumulate_f64)(const void* const* x, const uint8_t* is_wide, int count, float* out, int64_t begin,
                           int64_t end, const Rule& rule, bool kahan);

    void (*encode)(const float* x, void* codes, int code_bytes, int64_t begin, int64_t end, uint32_t spec);
    void (*encode_f64)(const double* x, void* codes, int code_bytes, int64_t begin, int64_t end, uint32_t spec);
    void (*decode)(const void* codes, int code_bytes, float* out, int64_t begin, int64_t end, uint32_t spec);
    // x * 2^shift, rounded, to dense bytes; and back, then * 2^shift
    void (*pack)(const float* x, uint8_t* bytes, int64_t begin, int64_t end, const Rule& rule, int shift);
    void (*pack_f64)(const double* x, uint8_t* bytes, int64_t begin, int64_t end, const Rule& rule, int shift);
    void (*unpack)(const uint8_t* bytes, float* out, int64_t begin, int64_t end, uint32_t spec, int shift);
    // dense bytes of several tensors -> dense bytes of their accumulated sum
    void (*accumulate_packed)(const uint8_t* const* bytes, int count, uint8_t* out, int64_t begin, int64_t end,
                              const Rule& rule, bool kahan);

    // rows begin..end (any) of a (MxK) times b (KxN), both dense; `buffer` holds K * 64 values
    void (*matmul)(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                   uint32_t spec, bool kahan, float* buffer);

    // Blocks begin..end of all; the last one along a length takes with it what is left of that
    void (*hadamard)(const float* x, float* out, int64_t begin, int64_t end, const Transform& transform);
};

const Kernels& kernels_baseline();
#if defined(CFP_X86)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif

}  // namespace custom_fp
