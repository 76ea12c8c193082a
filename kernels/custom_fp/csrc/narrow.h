// Float32 arithmetic that replaces float64, which is slow on many GPUs. Sums, products, and products with powers of two
// are rounded to odd in float32. Rounding the result to a format then equals rounding the exact number once (Boldo,
// Melquiond 2008). There are two conditions. The format must have at least two digits fewer than float32, which means
// at most 21 mantissa bits, and its smallest step must be at least 2^-147. Stochastic rounding needs more digits. A
// finite number that exceeds the largest float32 becomes the largest float32, which is odd.
#pragma once

#include "custom_fp.h"
#include "tabulated/tabulated_rounding.h"

namespace custom_fp {

CFP_FN bool is_narrow(const Spec& s) { return s.mantissa_bits <= 21; }

CFP_FN float absolute(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }

// Adds with Dekker's Fast2Sum, which needs the larger magnitude first. Including the comparison, it has as many
// operations as Knuth's TwoSum. If the sum overflows, its error is -infinity instead of NaN.
CFP_FN float add_to_odd_narrow(float a, float b) {
    const bool swapped = absolute(b) > absolute(a);
    const float large = swapped ? b : a, small = swapped ? a : b, sum = large + small;
    return make_odd(sum, small - (sum - large));
}

// Multiplies with a separate case for small products, because their error is not a float32.
CFP_FN float multiply_to_odd_narrow(float a, float b) {
    const float product = a * b;
    if (absolute(product) < 0x1p-100f && a != 0.0f && b != 0.0f)
        return to_odd_float32(static_cast<double>(a) * static_cast<double>(b));
    return make_odd(product, fused_multiply_add(a, b, -product));
}

// 2^shift as three factors. Only multiplying by the last one can round a product, unless the product becomes zero in
// any case, because the last factor is 2^-126 if the others are below 1.
struct PowerOfTwo {
    float factors[3], inverses[3];

    CFP_MEMBER explicit PowerOfTwo(int shift) {
#pragma unroll
        for (int i = 2; i >= 0; --i) {
            const int part = shift < -126 ? -126 : shift > 126 ? 126 : shift;
            factors[i] = power_of_two<float>(part);
            inverses[i] = power_of_two<float>(-part);
            shift -= part;
        }
    }
    CFP_MEMBER float product(float x) const { return x * factors[0] * factors[1] * factors[2]; }

    // Returns x * 2^shift, rounded once.
    CFP_MEMBER float times(float x) const { return canonical(product(x)); }

    CFP_MEMBER float times_to_odd(float x) const {
        const float near = product(x), back = absolute(near * inverses[2] * inverses[1] * inverses[0]);
        const u32 less = static_cast<u32>(back < absolute(x)), beyond = static_cast<u32>(back > absolute(x));
        return from_bits((to_bits(near) - beyond) | less | beyond);
    }
};

}  // namespace custom_fp
