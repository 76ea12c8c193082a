// Loads and stores of a register of values, or of fewer values at the end of an array.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/lanes.h"

namespace custom_fp {
namespace {

typedef Integers<FloatLanes> Lanes;
typedef u8 ByteLanes __attribute__((vector_size(lanes)));

constexpr int64_t ahead = 1024;  // values to prefetch in long loops, in which the processor does not prefetch

// Loads a register of values from x on, of which `left` exist. If there are fewer, the other lanes are zero.
CFP_FN FloatLanes load_partial(const float* x, int64_t left) {
    if (left >= lanes) return load<FloatLanes>(x);
    FloatLanes values = {};
    std::memcpy(&values, x, static_cast<size_t>(left) * sizeof(float));
    return values;
}

CFP_FN void store_partial(float* out, FloatLanes values, int64_t left) {
    if (left >= lanes)
        store(out, values);
    else
        std::memcpy(out, &values, static_cast<size_t>(left) * sizeof(float));
}

CFP_FN void store_bytes(u8* out, IntLanes values, int64_t left) {
    const ByteLanes bytes = __builtin_convertvector(values, ByteLanes);
    if (left >= lanes)
        std::memcpy(out, &bytes, lanes);
    else
        std::memcpy(out, &bytes, static_cast<size_t>(left));
}

CFP_FN i32 largest_of(IntLanes x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)x);
#else
    for (int apart = lanes / 2; apart; apart /= 2) {
        i32 values[2 * lanes] = {};
        std::memcpy(values, &x, sizeof x);
        IntLanes other;
        std::memcpy(&other, values + apart, sizeof other);
        x = Lanes::more(x, other);
    }
    return x[0];
#endif
}

}  // namespace
}  // namespace custom_fp
