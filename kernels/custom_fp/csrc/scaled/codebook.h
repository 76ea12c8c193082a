// Codebooks: the nearest of at most 256 values, times the largest magnitude of a block.
//
// y = x / scale, and then i = #{t_j < y} over the ascending thresholds t_j. formats/elements.py computes the thresholds
// and defines the result. There are three methods that find i without a branch:
//
// few     For at most 16 values: 4 bisections, with the thresholds in a register.
//
// cells   The top bits of y select a cell. One half of the table is for y >= 0, and the other half for y < 0. Each cell
//         has at most one threshold (infinity if there is none), and the values and codes on both sides of it. The
//         smallest y share a cell.
//
// search  8 bisections, for tables whose values are too close for cells. `cells.half` is 0.
#pragma once

#include "custom_fp.h"

namespace custom_fp {

struct Cells {
    const float* thresholds;  // [2 half]
    const float* values;      // [2 half][2]: for y not above the threshold, and above it
    const i32* codes;         // [2 half][2]
    i32 shift, first, half;   // the cell is max((magnitude >> shift) - first, 0), plus half for negative y
};

struct CodebookTables {
    Cells cells;
    const float* thresholds;  // [256] ascending, padded with infinity
    const float* ascending;   // [256] value i
    const i32* codes;         // [256] the code of value i
    i32 size;                 // number of values
};

// Returns the scale of a block with these bits of the largest magnitude, or NaN if a value is not finite.
CFP_FN float codebook_scale(u32 largest) { return from_bits(largest < 0x7f800000u ? largest : 0x7fc00000u); }

// Returns the index of the entry nearest to y, for its value and its code. cpu_codebook.h does this for many y at once.
CFP_FN i32 codebook_place(float y, const CodebookTables& t) {
    i32 place = 0;
    if (!t.cells.half) {
        for (i32 step = 128; step; step /= 2) place += y > t.thresholds[place + step - 1] ? step : 0;
        return place;
    }
    const i32 bits = static_cast<i32>(to_bits(y)), above_first = ((bits & 0x7fffffff) >> t.cells.shift) - t.cells.first;
    const i32 cell = (above_first > 0 ? above_first : 0) + (bits < 0 ? t.cells.half : 0);
    return 2 * cell + (y > t.cells.thresholds[cell]);
}

CFP_FN float codebook_value(i32 place, const CodebookTables& t) {
    return t.cells.half ? t.cells.values[place] : t.ascending[place];
}

CFP_FN i32 codebook_code(i32 place, const CodebookTables& t) {
    return t.cells.half ? t.cells.codes[place] : t.codes[place];
}

}  // namespace custom_fp
