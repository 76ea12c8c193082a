// Registers of floats, as vector types of g++ and clang, for loops that compilers do not vectorize well.
#pragma once

#include <cstring>

#include "shortcuts.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace custom_fp {
namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif

typedef float FloatLanes __attribute__((vector_size(4 * lanes)));
typedef i32 IntLanes __attribute__((vector_size(4 * lanes)));
typedef u32 UintLanes __attribute__((vector_size(4 * lanes)));

}  // namespace

template <> struct Integers<FloatLanes> {
    typedef IntLanes I;
    typedef UintLanes U;
    static CFP_MEMBER U bits(FloatLanes x) { return (U)x; }
    static CFP_MEMBER FloatLanes value(U bits) { return (FloatLanes)bits; }
    static CFP_MEMBER I more(I a, I b) {  // uses intrinsics, because g++ would use two instructions
#if defined(__AVX512F__)
        return (I)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
        return (I)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
        return a > b ? a : b;
#endif
    }
};

namespace {

template <class F> CFP_FN F load(const float* from) {
    F x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class F> CFP_FN void store(float* to, F x) { std::memcpy(to, &x, sizeof x); }

// Whether a fused multiply-add is a single instruction, with which NearRounder rounds a product once. Without it
// (baseline x86-64), and above 10 mantissa bits, products are computed in float64, in which they are exact.
#if defined(__FMA__) || defined(__aarch64__)
constexpr bool has_fma = true;
#else
constexpr bool has_fma = false;
#endif

// Returns a b + c, fused if has_fma is true. Otherwise, callers must make sure that a b is exact.
CFP_FN FloatLanes multiply_add(FloatLanes a, FloatLanes b, FloatLanes c) {
#if defined(__AVX512F__)
    return (FloatLanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (FloatLanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    for (int i = 0; i < lanes; ++i) c[i] = fused_multiply_add(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}

// Combines the checks of all lanes.
CFP_FN void gather(const BlockChecks<FloatLanes>& from, BlockChecks<float>& to) {
    i32 largest[lanes], tie[lanes];
    u32 digits[lanes];
    std::memcpy(largest, &from.largest, sizeof largest);
    std::memcpy(tie, &from.tie, sizeof tie);
    std::memcpy(digits, &from.digits, sizeof digits);
    for (int i = 0; i < lanes; ++i) {
        to.largest = larger(to.largest, largest[i]);
        to.tie = larger(to.tie, tie[i]);
        to.digits |= digits[i];
    }
}

}  // namespace
}  // namespace custom_fp
