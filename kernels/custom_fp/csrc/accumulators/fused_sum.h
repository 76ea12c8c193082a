// The sum of N float32 values, to be rounded once, as in a network switch that adds the values of all workers.
// accumulators/reference.py defines the result, bit for bit.
#pragma once

#include "accumulators/dot.h"

namespace custom_fp {

// Returns infinity unchanged, and any NaN as the canonical NaN.
CFP_FN double not_finite(double x) { return x != x ? from_bits(Bits<double>::nan) : x; }

// Returns the exact sum of value(0) to value(count - 1), rounded to odd. NaN and infinity are added as in IEEE 754.
template <class Value> CFP_FN double exact_total(const Value& value, int count) {
    ExactSum sum;
    sum.clear();
    double plain = 0;
    for (int r = 0; r < count; ++r) {
        const double x = static_cast<double>(value(r));
        plain += x;
        if (is_finite(x)) sum.add(x);
    }
    return is_finite(plain) ? sum.value() : not_finite(plain);
}

// Returns the exponent by which a value is aligned: at least `emin`, or zero_exponent for zero.
CFP_FN int exponent_to_align(float x, int emin) {
    const u32 magnitude = to_bits(x) & 0x7fffffffu, field = magnitude >> 23;
    const int exponent = field ? static_cast<int>(field) - 127 : -126;
    return magnitude == 0 ? zero_exponent : exponent < emin ? emin : exponent;
}

// Returns trunc(x * power) as a double. The product must be below 2^42. Adding and subtracting 2^52 rounds it to an
// integer.
CFP_FN double whole_part(double x, double power) {
    const double product = x * power, magnitude = from_bits(to_bits(product) & ~Bits<double>::sign);
    const double nearest = (magnitude + 0x1p52) - 0x1p52;
    const double kept = nearest > magnitude ? nearest - 1.0 : nearest;
    return from_bits(to_bits(kept) | (to_bits(product) & Bits<double>::sign));
}

// Returns the sum of the values after each is truncated (toward zero) below 2^(E - width), where E is their largest
// exponent. There must be few enough values that a double represents the sum. A zero sum is +0.
template <class Value> CFP_FN double aligned_total(const Value& value, int count, int width, int emin) {
    int largest = zero_exponent;
    double plain = 0;
    for (int r = 0; r < count; ++r) {
        const int exponent = exponent_to_align(value(r), emin);
        largest = exponent > largest ? exponent : largest;
        plain += static_cast<double>(value(r));
    }
    if (!is_finite(plain)) return not_finite(plain);
    const double power = power_of_two<double>(width - largest);
    double total = 0;
    for (int r = 0; r < count; ++r) total += whole_part(static_cast<double>(value(r)), power);
    return total * power_of_two<double>(largest - width) + 0.0;
}

}  // namespace custom_fp
