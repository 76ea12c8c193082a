// Codebooks: the nearest of at most 256 values, times the largest magnitude of a block.
//
// y = x / scale, then i = #{t_j < y} over the ascending thresholds t_j (formats/codebook.py makes them, and defines the
// result; scaled/codebook.py says the same in torch). Three ways to i, without a branch:
//
// few     at most 16 values: in 4 halvings, the thresholds in a register.
// cells   by the top bits of y: the two halves of the table are for y >= 0 and y < 0, each cell holds at most one
//         threshold (infinity for none) and the values and codes on either side of it. Those of the smallest y share a
//         cell.
// search  in 8 halvings, for tables whose values stand too close for that; `cells.half` is 0.
#pragma once

#include "custom_fp.h"

namespace custom_fp {

struct Cells {
    const float* thresholds;  // [2 half]
    const float* values;      // [2 half][2]: where y is not above the threshold, and above it
    const i32* codes;         // [2 half][2]
    i32 shift, first, half;   // cell (magnitude >> shift) - first, at least 0; + half for negative y
};

struct CodebookTables {
    Cells cells;
    const float* thresholds;  // [256] ascending, filled up with infinity
    const float* ascending;   // [256] the i-th value
    const i32* codes;         // [256] of the i-th value
    i32 size;                 // how many values
};

// A block's scale, from the bits of its largest magnitude: NaN where one is not finite.
CFP_FN float codebook_scale(u32 largest) { return from_bits(largest < 0x7f800000u ? largest : 0x7fc00000u); }

}  // namespace custom_fp
