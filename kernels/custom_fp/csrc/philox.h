// Philox4x32-7, a counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011): seven rounds are the fewest that pass all of TestU01's BigCrush (their table 2). The tests hold
// it to the known-answer vectors of its authors' Random123 library.
//
// Element i of a tensor reads word (i / 16) % 4 of the counter (i / 64 * 16 + i % 16, stream) under key = seed: the
// four words of 16 neighbouring counters serve 64 neighbouring elements, which suits a vector unit (16 lanes, no
// shuffles) and a GPU thread (4 x 16 bytes) alike, and depends on neither.
#pragma once

#include "custom_fp.h"

namespace custom_fp {

struct Words {
    u32 w[4];
};

CFP_FN Words philox4x32(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
    for (int round = 0; round < 7; ++round) {
        const u64 a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
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

// The four words of lane 0..15 of a block of 64 elements.
CFP_FN Words random_words(u64 block, u32 lane, u32 stream, u64 seed) {
    const u64 counter = block * 16 + lane;
    return philox4x32(static_cast<u32>(counter), static_cast<u32>(counter >> 32), stream, 0, static_cast<u32>(seed),
                      static_cast<u32>(seed >> 32));
}

}  // namespace custom_fp
