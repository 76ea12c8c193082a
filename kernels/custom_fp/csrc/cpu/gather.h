// Looks up several entries of a table at once, as many as a register has lanes.
#pragma once

#include "cpu/lanes.h"

namespace custom_fp {
namespace {

CFP_FN FloatLanes gather(const float* from, IntLanes at) {
#if defined(__AVX512F__)
    return (FloatLanes)_mm512_i32gather_ps((__m512i)at, from, 4);
#elif defined(__AVX2__)
    return (FloatLanes)_mm256_i32gather_ps(from, (__m256i)at, 4);
#else
    FloatLanes found;
    for (int i = 0; i < lanes; ++i) found[i] = from[at[i]];
    return found;
#endif
}

CFP_FN IntLanes gather(const i32* from, IntLanes at) {
#if defined(__AVX512F__)
    return (IntLanes)_mm512_i32gather_epi32((__m512i)at, from, 4);
#elif defined(__AVX2__)
    return (IntLanes)_mm256_i32gather_epi32(from, (__m256i)at, 4);
#else
    IntLanes found;
    for (int i = 0; i < lanes; ++i) found[i] = from[at[i]];
    return found;
#endif
}

}  // namespace
}  // namespace custom_fp
