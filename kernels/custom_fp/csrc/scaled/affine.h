// Integers with a scale and a zero point: formats/scaled.py defines what is computed (minmax).
#pragma once

#include "custom_fp.h"

namespace custom_fp {

// Of a block; the scale is NaN where a value or the range is not finite.
struct AffineScale {
    float scale, inverse, zero;
};

// To a whole number, half to even, for |x| below 2^22.
CFP_FN float round_whole(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// low <= 0 <= high; largest: the bits of the largest magnitude, at least infinity's where one is not finite.
CFP_FN AffineScale affine_scale(float low, float high, u32 largest, float levels) {
    const float range = (high - low) / levels, scale = range > 0x1p-126f ? range : 0x1p-126f;
    if (largest >= 0x7f800000u || to_bits(scale) >= 0x7f800000u) return {from_bits(0x7fc00000u), 0.0f, 0.0f};
    const float zero = 0.0f - round_whole(low / scale);
    return {scale, 1.0f / scale, zero > levels ? levels : zero};
}

// A whole number, 0 .. levels, of an x whose block is finite.
CFP_FN float affine_code(float x, const AffineScale& of, float levels) {
    const float code = round_whole(x * of.inverse) + of.zero;
    return code < 0.0f ? 0.0f : code > levels ? levels : code;
}

}  // namespace custom_fp
