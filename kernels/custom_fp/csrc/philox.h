// Philox4x32-7, a counter-based random number generator by Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). Seven rounds are the fewest that pass all of TestU01's BigCrush (their table 2). The
// tests compare the generator with the known-answer vectors of the authors' Random123 library.
//
// Element i has 32 random bits. They are drawn in two halves, because the first half alone is nearly always enough
// (RandomRounder). Half h is part of word (i / 32) % 4 of the counter (i / 128 * 16 + i % 16, stream, h) with the seed
// as the key: the upper half of the word if i / 16 is even, and otherwise the lower half. The words of 16 adjacent
// counters are therefore used by 128 adjacent elements, which suits both a vector unit (16 lanes without shuffles) and
// a GPU thread.
//
// If only N bits are used, `mask` (Rule.flat in rounding.py) has ones for the first N bits, and the other bits become
// zeros. With R < 2^N and D = floor(2^31 d), D + 2^(31 - N) R carries past 2^31 if and only if floor(2^N d) + R carries
// past 2^N.
//
// Some forms of stochastic rounding first round d to N bits (rounding.py: Form). For these forms, other digits follow
// R. d is rounded up if d + u carries past 1, where 2^N u is
//
//     fast   R + 1/2
//     even   R + 1/2 if R is even. If R is odd, infinitely little less: R, followed by a 0 and infinitely many ones.
//     odd    R + 1/2 if R is odd, and infinitely little less if R is even
//
// The reason is that d is rounded up if 2^N d, rounded to an integer, is at least n = 2^N - R. If ties are rounded to
// n, n - 1/2 is enough. n is even if and only if R is even.
#pragma once

#include "custom_fp.h"

namespace custom_fp {

struct Words {
    u32 w[4];
};

// Returns the 64-bit product of two 32-bit integers. The assembly is one instruction. From the C++ expression, NVRTC
// 13.2 generates two if a factor is a constant above 2^31.
CFP_FN u64 multiply_wide(u32 a, u32 b) {
#if defined(__CUDACC__)
    u64 product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return static_cast<u64>(a) * b;
#endif
}

CFP_FN Words philox4x32(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
    for (int round = 0; round < 7; ++round) {
        const u64 a = multiply_wide(0xD2511F53u, c0), b = multiply_wide(0xCD9E8D57u, c2);
        const u32 n0 = static_cast<u32>(b >> 32) ^ c1 ^ k0, n2 = static_cast<u32>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<u32>(b);
        c3 = static_cast<u32>(a);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Words out = {{c0, c1, c2, c3}};
    return out;
}

constexpr int group = 128;  // number of elements that use the same counters

// Returns the words of lane 0 to 15 in a group of 128 elements.
CFP_FN Words random_words(u64 group_index, u32 lane, u32 stream, u32 half, u64 seed) {
    const u64 counter = group_index * 16 + lane;
    return philox4x32(static_cast<u32>(counter), static_cast<u32>(counter >> 32), stream, half, static_cast<u32>(seed),
                      static_cast<u32>(seed >> 32));
}

// Returns the bits of a mask that select random bits.
CFP_FN u32 counted(u32 mask) { return mask & 1 ? mask & ~7u : mask; }

// Returns the 32 random bits in the form that `round` needs: the selected bits, followed by the bits of the form. The
// last three bits of a mask mean: not CUT, not FAST, ODD. Callers may first pass only the upper half of the bits, and
// then both halves.
CFP_FN u32 rounding_bits(u32 random, u32 mask) {
    if (!(mask & 1)) return random & mask;
    const u32 bits = mask & ~7u, unit = 0u - bits;
    const u32 is_odd = static_cast<u32>((random & unit) != 0);
    const u32 less = (mask >> 1 & 1) & (is_odd ^ (mask >> 2 & 1));
    return (random & bits) | ((unit >> 1) ^ ((unit - 1) & (0u - less)));
}

// Returns the half of a word that belongs to an element at `place` = i / 16 % 8 of its group.
CFP_FN u32 half_of(u32 word, u32 place) { return place % 2 ? word & 0xffffu : word >> 16; }

}  // namespace custom_fp
