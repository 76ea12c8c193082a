// Integers with a scale and a zero point, as formats/scaled_format.py defines them (rule minmax).
#pragma once

#include "custom_fp.h"

namespace custom_fp {

// The scale and the zero point of a block. The scale is NaN if a value or the range is not finite.
struct AffineScale {
    float scale, inverse, zero;
};

// Rounds to an integer, with ties to even, for |x| below 2^22.
CFP_FN float round_whole(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

// Requires low <= 0 <= high. largest: the bits of the largest magnitude, at least those of infinity if a value is not
// finite.
CFP_FN AffineScale affine_scale(float low, float high, u32 largest, float levels) {
    const float range = (high - low) / levels, scale = range > 0x1p-126f ? range : 0x1p-126f;
    if (largest >= 0x7f800000u || to_bits(scale) >= 0x7f800000u) return {from_bits(0x7fc00000u), 0.0f, 0.0f};
    const float zero = 0.0f - round_whole(low / scale);
    return {scale, 1.0f / scale, zero > levels ? levels : zero};
}

// Returns the code of x, an integer from 0 to `levels`, if all values of the block are finite.
CFP_FN float affine_code(float x, const AffineScale& of, float levels) {
    const float code = round_whole(x * of.inverse) + of.zero;
    return code < 0.0f ? 0.0f : code > levels ? levels : code;
}

}  // namespace custom_fp
