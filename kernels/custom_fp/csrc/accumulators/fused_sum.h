// The sum of N float32 values, to be rounded once: what a network switch computes that adds the values of all workers.
// accumulators/reference.py defines it, bit for bit.
#pragma once

#include "accumulators/dot.h"

namespace custom_fp {

// Returns infinity unchanged, and any NaN as the canonical one.
CFP_FN double not_finite(double x) { return x != x ? from_bits(Bits<double>::nan) : x; }

// The exact sum of value(0) to value(count - 1), rounded to odd. NaN and infinity are added as in IEEE 754.
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

// The exponent by which a value is aligned: at least `emin`, or zero_exponent for zero.
CFP_FN int exponent_to_align(float x, int emin) {
    const u32 magnitude = to_bits(x) & 0x7fffffffu, field = magnitude >> 23;
    const int exponent = field ? static_cast<int>(field) - 127 : -126;
    return magnitude == 0 ? zero_exponent : exponent < emin ? emin : exponent;
}

// trunc(x * power) as a double. The product is below 2^42, so that adding and subtracting 2^52 rounds it to an integer.
CFP_FN double whole_part(double x, double power) {
    const double product = x * power, magnitude = from_bits(to_bits(product) & ~Bits<double>::sign);
    const double nearest = (magnitude + 0x1p52) - 0x1p52;
    const double kept = nearest > magnitude ? nearest - 1.0 : nearest;
    return from_bits(to_bits(kept) | (to_bits(product) & Bits<double>::sign));
}

// The sum of the values after each is cut off (toward zero) below 2^(E - width), where E is their largest exponent.
// There are few enough of them that a double holds the sum. Zero is +0.
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
