// Formats with scales: the scale of a block, and the factor of its elements. formats/scaled_format.py defines the
// steps, and scaled/scales.py implements them in PyTorch. `Scaling` has the members of ScaledFormat.parts.
#pragma once

#include "shortcuts.h"

namespace custom_fp {

enum ScaleKind { power_scale = 0, small_scale = 1, float_scale = 2 };
enum ScaleRule { of_power = 0, of_ratio_up = 1, of_amax = 2, four_over_six = 3 };

struct Scaling {
    u32 element;         // Format.spec or Integer.spec
    i32 bits;            // the bits of an element's code
    u32 is_integer;      // elements are two's complement integers, without -0
    float least, most;   // the range of elements
    float unit;          // the value of the last digit of an integer
    i32 kind;            // ScaleKind
    u32 scale;           // for small_scale: the spec of the format whose magnitudes the scales are
    u32 nan_code;
    float smallest, largest;  // the range of scales
    i32 rule;            // ScaleRule
    u32 added;           // the number to add to the bits of a float before its mantissa is cleared
    i32 emax;
    float target;        // the value to which amax is mapped
    float tensor_target; // target times the largest scale, or 0 if the tensor has no scale
};

constexpr float largest_float = 0x1.fffffep127f, smallest_tensor_scale = 0x1p-126f;

// Step 1: returns the scale of a tensor with this largest finite magnitude.
CFP_FN float tensor_scale(float amax, const Scaling& f) { return larger(amax / f.tensor_target, smallest_tensor_scale); }

// Returns floor(log2) of a positive value after `added` is added to its bits. Small values are multiplied first,
// because the bits of subnormal values have no exponent.
CFP_FN i32 raised_exponent(float value, u32 added) {
    const u32 is_small = 0u - static_cast<u32>(value < 0x1p-100f);
    const float factor = from_bits(0x3f800000u + (is_small & 24u << 23));
    return static_cast<i32>((to_bits(value * factor) + added) >> 23) - 127 - static_cast<i32>(is_small & 24u);
}

CFP_FN u32 power_code(i32 exponent) { return static_cast<u32>(smaller(larger(exponent + 127, 0), 254)); }

// Step 2: returns the code of a block's scale, or the bits of the scale for float_scale. amax: the bits of the largest
// magnitude, which may be NaN or infinity. t: the tensor's scale, or 1. times: a factor of the scale.
CFP_FN u32 block_scale(u32 amax, float t, float times, const Scaling& f, const Rounder<float>& rounder,
                       const Coder& coder) {
    const u32 is_nan = static_cast<u32>(static_cast<i32>(amax) >= 0x7f800000);
    const float magnitude = from_bits(select(is_nan, 0u, amax));
    u32 code;
    if (f.rule == of_power || f.rule == of_ratio_up) {
        const float wanted = f.rule == of_power ? magnitude : magnitude / f.most;
        code = power_code(raised_exponent(wanted, f.added) - (f.rule == of_power ? f.emax : 0));
        code = select(static_cast<u32>(wanted > 0.0f), code, 0u);
    } else {
        const float wanted = smaller(larger(magnitude / f.target / t * times, f.smallest), f.largest);
        if (f.kind == float_scale)
            code = to_bits(wanted);
        else
            code = f.kind == power_scale ? power_code(raised_exponent(wanted, f.added))
                                         : round_and_encode(wanted, rounder, coder);
    }
    return select(is_nan, f.nan_code, code);
}

// Returns the value of a scale's code.
CFP_FN float scale_value(u32 code, const Scaling& f, const Coder& coder) {
    if (f.kind == float_scale) return canonical(from_bits(code));
    const u32 bits = f.kind == small_scale ? to_bits(decode(code, coder))
                                           : select(static_cast<u32>(code == 0), 0x00400000u, code << 23);
    return from_bits(select(static_cast<u32>(code >= f.nan_code), 0x7fc00000u, bits));
}

// Step 3: returns the factor for the values of a block, or 0 if the scale is NaN, so that products are numbers.
CFP_FN float scale_reciprocal(float scale, float t) {
    const float r = smaller(1.0f / t / scale, largest_float);
    return from_bits(select(static_cast<u32>(scale == scale), to_bits(r), 0u));
}

// Step 4, for floats or lanes of floats. NaN becomes `most`.
template <class F> CFP_FN F clamp(F q, F least, F most) { return larger(smaller(q, most), least); }

// Converts the value of an integer to its code, and a code to its value.
CFP_FN u32 encode_integer(float value, const Scaling& f) {
    return static_cast<u32>(static_cast<i32>(value / f.unit)) & ((1u << f.bits) - 1);
}

CFP_FN float decode_integer(u32 code, const Scaling& f) {
    const int unused = 32 - f.bits;
    return static_cast<float>(static_cast<i32>(code << unused) >> unused) * f.unit;
}

}  // namespace custom_fp
