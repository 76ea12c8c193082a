// Rounding to tables of values, as formats/tabulated_format.py and tabulated/rounding.py define it.
//
// Rounding without random bits is a step function of a number's bits. For each sign, there are ascending thresholds t_j
// of the magnitude (as an integer), and a result above each threshold. Overflow, infinity and NaN are also steps. The
// top bits of the magnitude select a cell, which has at most one threshold and the results on both sides of it. There
// are two kinds of cells:
//
// even       All cells have the same size, for tables with few values. The first cell also contains all smaller values,
//            and the last cell all larger values.
// by octave  The size depends on the float32 exponent, for formats with tapered precision.
//
// Numbers that are not float32 values (doubles, exact sums and products) are first rounded to odd in float32. This does
// not change the result, because thresholds and values have at least one digit fewer than float32. Stochastic rounding
// needs the distance of a double from the value below it. Rounding to odd needs to know whether this distance is zero.
//
// A table is one array of 32-bit words, which tabulated/step_arrays.py computes. It starts with a header (open_table)
// that contains the offsets of the parts.
#pragma once

#include "custom_fp.h"

namespace custom_fp {

enum TableKind { table_steps = 0, table_random = 1, table_odd = 2 };

struct Table {
    i32 kind, shift, first, last, half;  // half: the number of cells of each sign
    bool by_octave, narrow;              // narrow: sums stay within the range of float32
    i32 bits;
    const i32* octaves;                  // [256] first cell << 5 | shift
    const i32* thresholds;               // [2 half]
    const i32* values;                   // [2 half][2]: float32 bits for magnitudes up to the threshold, and above
    const i32* codes;                    // [2 half][2]
    // Kinds that need the distance have these parts instead of `values` and `codes`. A place is a magnitude's index.
    const i32* places;                   // [2 half][2]
    const double* lows;                  // by place: its magnitude
    const double* gaps;                  // by place: the distance to the next magnitude, or infinity if there is none
    const i32* goes_up;                  // by place: for table_odd, whether inexact numbers are rounded up
    const i32* place_values;             // by place
    const i32* place_codes;
    const i32* decoded;                  // [2^bits] float32 bits
    const i32* lifts;                    // for rounding to nearest without looking up values: see Lifts
};

// The parts of `lifts`. A lift is a float32 whose ulp is the step between values in a binade, or NaN if there is no
// such number. Adding it rounds to these steps. Binade 0 contains only zero (NaN). Binade b contains the magnitudes
// whose bits are above (b - 1) << 23 and at most b << 23.
enum Lifts {
    lift_use = 0,      // whether lifts are worth trying
    lift_first = 1,    // the first binade of the window
    lift_zero = 2,     // the bit of the sign, if the format has a -0
    lift_short = 3,    // whether values have at most 11 digits and steps 12, and no step is at or next to a value
    lift_window = 4,   // [64], of which the last one is NaN
    lift_binades = 68  // [257]
};

CFP_FN Table open_table(const i32* words) {
    const auto doubles = [&](int at) { return reinterpret_cast<const double*>(words + words[at]); };
    Table t;
    t.kind = words[0], t.by_octave = words[1] != 0, t.shift = words[2], t.first = words[3], t.last = words[4];
    t.half = words[5], t.bits = words[6], t.narrow = words[7] != 0;
    t.octaves = words + words[8];
    t.thresholds = words + words[9];
    t.values = words + words[10];
    t.codes = words + words[11];
    t.places = words + words[12];
    t.lows = doubles(13);
    t.gaps = doubles(14);
    t.goes_up = words + words[15];
    t.place_values = words + words[16];
    t.place_codes = words + words[17];
    t.decoded = words + words[18];
    t.lifts = words + words[19];
    return t;
}

// Returns x rounded to odd in float32: truncated, and with the last digit set if x is not a float32.
CFP_FN float to_odd_float32(double x) {
    const float near = static_cast<float>(x);
    const double back = static_cast<double>(near);
    const u32 bits = to_bits(near), inexact = static_cast<u32>(back < x) | static_cast<u32>(back > x);
    const double magnitude = from_bits(to_bits(x) & ~Bits<double>::sign);
    const u32 beyond = static_cast<u32>(from_bits(to_bits(back) & ~Bits<double>::sign) > magnitude);
    return from_bits((bits - beyond) | inexact);
}
CFP_FN float to_odd_float32(float x) { return x; }

// Returns 2 * cell, plus 1 if the number is above the threshold of the cell.
CFP_FN i32 side_of(float key, const Table& t) {
    const i32 bits = static_cast<i32>(to_bits(key)), magnitude = bits & 0x7fffffff;
    i32 cell;
    if (t.by_octave) {
        const i32 octave = t.octaves[magnitude >> 23];
        cell = (octave >> 5) + ((magnitude & 0x7fffff) >> (octave & 31));
    } else {
        cell = (magnitude >> t.shift) - t.first;
        cell = cell < 0 ? 0 : cell > t.last ? t.last : cell;
    }
    cell += bits < 0 ? t.half : 0;
    return 2 * cell + (magnitude > t.thresholds[cell]);
}

// For table_random: returns 1 if x is rounded up from the place at or below it, and else 0. `random` has 32 random
// bits, as in `round`. Values are selected with masks, so that compilers can vectorize the loops that call this
// function.
CFP_FN i32 goes_up(double x, double low, double gap, u32 random) {
    const double magnitude = from_bits(to_bits(x) & ~Bits<double>::sign), distance = (magnitude - low) / gap;
    const u64 below_one = 0 - static_cast<u64>(distance < 1.0);  // 0 for NaN, because there is no place above
    const double clipped = from_bits(to_bits(distance * 2147483648.0) & below_one);
    const i32 whole = static_cast<i32>(clipped);
    const u32 more = static_cast<u32>(clipped > static_cast<double>(whole)) & random & 1;
    const u32 digits = static_cast<u32>(whole) | static_cast<u32>(distance == 1.0) << 31;
    return static_cast<i32>((digits + (random >> 1) + more) >> 31);
}

CFP_FN i32 place_of(double x, const Table& t, u32 random) {
    const i32 place = t.places[side_of(to_odd_float32(x), t)];
    return place + goes_up(x, t.lows[place], t.gaps[place], random);
}

// For table_odd: returns the place of the rounded value.
CFP_FN i32 place_of(float key, const Table& t) {
    const i32 place = t.places[side_of(key, t)];
    const double magnitude = static_cast<double>(from_bits(to_bits(key) & 0x7fffffffu));
    return place + ((magnitude != t.lows[place]) & t.goes_up[place]);
}

// Returns the rounded value of an exact number, or its code. The number is a float for table_steps and table_odd, and a
// double for table_random.
CFP_FN float value_in(float key, const Table& t, u32) {
    const i32 bits = t.kind == table_odd ? t.place_values[place_of(key, t)] : t.values[side_of(key, t)];
    return from_bits(static_cast<u32>(bits));
}
CFP_FN u32 code_in(float key, const Table& t, u32) {
    return static_cast<u32>(t.kind == table_odd ? t.place_codes[place_of(key, t)] : t.codes[side_of(key, t)]);
}
CFP_FN float value_in(double x, const Table& t, u32 random) {
    return from_bits(static_cast<u32>(t.place_values[place_of(x, t, random)]));
}
CFP_FN u32 code_in(double x, const Table& t, u32 random) {
    return static_cast<u32>(t.place_codes[place_of(x, t, random)]);
}

CFP_FN float decoded_in(u32 code, const Table& t) {
    return from_bits(static_cast<u32>(t.decoded[code & ((1u << t.bits) - 1)]));
}

// Computes a + b as an exact number for the functions above.
CFP_FN void add_exactly(float a, float b, const Table& t, float& sum) {
    sum = t.narrow ? add_to_odd(a, b)
                   : to_odd_float32(add_to_odd(static_cast<double>(a), static_cast<double>(b)));
}
CFP_FN void add_exactly(double a, float b, const Table&, float& sum) {
    sum = to_odd_float32(add_to_odd(a, static_cast<double>(b)));
}
template <class F> CFP_FN void add_exactly(F a, float b, const Table&, double& sum) {
    sum = add_to_odd(static_cast<double>(a), static_cast<double>(b));
}

}  // namespace custom_fp
