// The Hadamard transform of blocks of n = 2^k values with random signs s:
//
//     y = 2^(-k/2) H (s x)          inverse: x = s 2^(-k/2) H y          H[i][j] = (-1)^(number of ones in i & j)
//
// reference.py defines the result. Additions are butterflies, (a, b) -> (a + b, a - b), in float32. They combine values
// with a distance of 1, then 2, 4, and so on to n/2. Finally, there is one multiplication by the scale, which is exact
// if k is even.
#pragma once

#include "philox.h"

namespace custom_fp {

constexpr u32 hadamard_stream = 0xffffffffu;  // of the generator; rounding uses other streams

// Returns 0x80000000 if value j of each block has a negative sign, and else 0. The sign is the value's first random
// bit.
CFP_FN u32 hadamard_sign(u64 j, u64 seed) {
    const u32 lane = static_cast<u32>(j % 16), place = static_cast<u32>(j / 16 % 8);
    const Words words = random_words(j / group, lane, hadamard_stream, 0, seed);
    const u32 low = place & 2 ? words.w[1] : words.w[0], high = place & 2 ? words.w[3] : words.w[2];
    return half_of(place & 4 ? high : low, place) << 16 & 0x80000000u;
}

// Returns the float32 nearest to 2^(-k/2).
CFP_FN float hadamard_scale(int k) { return power_of_two<float>(-(k / 2)) * (k % 2 ? 0x1.6a09e6p-1f : 1.0f); }

// F: float, or a register of floats that belong to as many blocks. from: the first distance.
template <class F> CFP_FN void butterflies(F* v, i64 n, i64 from) {
    for (i64 apart = from; apart < n; apart *= 2)
        for (i64 first = 0; first < n; first += 2 * apart)
            for (i64 i = first; i < first + apart; ++i) {
                const F a = v[i], b = v[i + apart];
                v[i] = a + b;
                v[i + apart] = a - b;
            }
}

// Performs the same additions for n values in registers, one distance after another.
template <int n, int apart = 1> CFP_FN void butterflies(float* v) {
    if constexpr (apart < n) {
#ifdef __CUDACC_RTC__
#pragma unroll
#endif
        for (int pair = 0; pair < n / 2; ++pair) {
            const int i = pair / apart * 2 * apart + pair % apart;
            const float a = v[i], b = v[i + apart];
            v[i] = a + b;
            v[i + apart] = a - b;
        }
        butterflies<n, 2 * apart>(v);
    }
}

}  // namespace custom_fp
