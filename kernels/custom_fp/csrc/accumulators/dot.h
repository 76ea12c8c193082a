// One dot product, summed as an Accumulator (accumulator.py) specifies: the general path on the CPU, and the work of a
// thread on a GPU. accumulators/reference.py defines the result, bit for bit.
#pragma once

#include "custom_fp.h"
#include "philox.h"
#include "tabulated/tabulated_rounding.h"

namespace custom_fp {

enum Order { sequential = 0, pairwise = 1, exact_order = 2 };

// The members of Accumulator.flat, and the members of its rule.
struct Summing {
    u32 sum, product, total;  // specs; product is 0 if products are exact
    int order, block, width;  // width < 0: terms are not aligned
    int emin_a, emin_b;       // the emin of the factors' formats
    int kahan;
    i64 chunk;                // 0 means no chunks
    int flush;
    int join, join_acc;       // join is 0 if acc is aligned with the terms
    int split;
    int group, scales;        // scales: the number of terms that share a scale, or 0 if there are no scales
    // Tables, for formats that are tables of values. The spec of such a format is that of float32. Null: no table.
    const i32 *sum_table, *product_table, *total_table;
    int mode, overflow;
    u64 seed;
    u32 mask;
};

// The exponents of the scales of one row of a, which are adjacent, and of one column of b.
struct Scales {
    const i32 *a, *b;  // null if there are no scales
    i64 b_step;

    // Returns the scales that start at these offsets.
    CFP_MEMBER Scales from(i64 of_a, i64 of_b) const { return a ? Scales{a + of_a, b + of_b, b_step} : *this; }
};

// Returns whether all formats are binary floating point with a sign and a -0, without scales, flush and join.
CFP_FN bool is_usual(const Summing& s) {
    const u32 specs = s.sum | s.product | s.total, unusual = 1u << 31 | 1u << 15;
    return !(specs & unusual) && !s.flush && !s.join && !s.scales && !s.sum_table && !s.product_table && !s.total_table;
}

constexpr int zero_exponent = -126;  // the exponent by which a factor or a partial sum of zero is aligned
constexpr int group_digits = 8;      // digits of a group's products below the sum of the exponents of their scales
constexpr i64 random_row = 128;      // columns are rounded up to a multiple of this to number results for random words

// The exact sum of doubles that are multiples of 2^-298 below 2^256, in fixed point (Kulisch).
struct ExactSum {
    static constexpr int words = 10, lowest = -298;
    u64 w[words];

    CFP_MEMBER void clear() {
        for (int i = 0; i < words; ++i) w[i] = 0;
    }
    CFP_MEMBER void add(double x) {  // x must be finite
        const u64 bits = to_bits(x), magnitude = bits & ~Bits<double>::sign;
        if (magnitude == 0) return;  // other terms are never subnormal
        u64 digits = (magnitude & 0xfffffffffffffull) | 0x10000000000000ull;
        int place = static_cast<int>(magnitude >> 52) - 1023 - 52 - lowest;
        if (place < 0) digits >>= -place, place = 0;  // removes only zeros
        const int first = place >> 6, shift = place & 63;
        const u64 low = digits << shift, high = shift ? digits >> (64 - shift) : 0;
        if (bits >> 63) {
            u64 borrow = w[first] < low;
            w[first] -= low;
            for (int i = first + 1; i < words; ++i) {
                const u64 take = (i == first + 1 ? high : 0), old = w[i];
                w[i] = old - take - borrow;
                borrow = old < take || (old == take && borrow);
                if (!borrow && i > first) break;
            }
        } else {
            w[first] += low;
            u64 carry = w[first] < low;
            for (int i = first + 1; i < words; ++i) {
                const u64 more = (i == first + 1 ? high : 0) + carry;  // high is below 2^53
                w[i] += more;
                carry = w[i] < more;
                if (!carry) break;
            }
        }
    }
    // Returns the sum, rounded to odd.
    CFP_MEMBER double value() const {
        u64 v[words], carry = 1;
        const u64 negative = w[words - 1] >> 63;
        for (int i = 0; i < words; ++i) {
            v[i] = negative ? ~w[i] + carry : w[i];
            if (negative) carry = carry && v[i] == 0;
        }
        int top = words - 1;
        while (top >= 0 && v[top] == 0) --top;
        if (top < 0) return 0.0;
        int bit = 63;
        while (!(v[top] >> bit)) --bit;
        const int last = top * 64 + bit - 52;  // the position of the last of 53 digits
        u64 digits, rest = 0;
        if (last <= 0) {
            digits = v[0];  // exact
            return with_sign_of(static_cast<double>(digits) * power_of_two<double>(lowest), negative);
        }
        const int word = last >> 6, shift = last & 63;
        digits = v[word] >> shift;
        if (shift && word + 1 < words) digits |= v[word + 1] << (64 - shift);
        digits &= 0x1fffffffffffffull;
        if (shift) rest = v[word] << (64 - shift);
        for (int i = 0; i < word; ++i) rest |= v[i];
        digits |= rest != 0;
        return with_sign_of(static_cast<double>(digits) * power_of_two<double>(last + lowest), negative);
    }
    CFP_MEMBER static double with_sign_of(double x, u64 negative) { return from_bits(to_bits(x) | negative << 63); }
};

// A finite float32 as significand * 2^unit, and the exponent by which it is aligned.
struct Digits {
    i64 significand;
    int unit, exponent;
};

// scale: the exponent of the scale by which a code was multiplied. emin and zero_exponent refer to codes.
CFP_FN Digits digits_of(float x, int emin, int scale = 0) {
    const u32 bits = to_bits(x), magnitude = bits & 0x7fffffffu, field = magnitude >> 23;
    const i64 significand = (magnitude & 0x7fffffu) | (field ? 0x800000u : 0);
    const int least = emin + scale, unit = (field ? static_cast<int>(field) - 127 : -126) - 23;
    if (magnitude == 0) return {0, zero_exponent - 23, zero_exponent + scale};
    int exponent = unit + 23;  // without scales, emin is at least the exponent of any subnormal
    if (!field && least < exponent)
        for (u32 first = 0x800000u; !(magnitude & first); first >>= 1) --exponent;
    return {bits >> 31 ? -significand : significand, unit, exponent < least ? least : exponent};
}

// Returns trunc(significand * 2^shift). If the shift is to the left, the result must fit.
CFP_FN i64 cut(i64 significand, int shift) {
    const i64 magnitude = significand < 0 ? -significand : significand;
    const i64 kept = shift >= 0 ? magnitude << shift : shift < -62 ? 0 : magnitude >> -shift;
    return significand < 0 ? -kept : kept;
}

// Returns a 64-bit integer times 2^unit as a double, rounded to odd.
CFP_FN double odd_double(i64 s, int unit) {
    const i64 magnitude = s < 0 ? -s : s;
    if (magnitude >> 53) {
        s = (s >> 8) | ((magnitude & 0xff) != 0);
        unit += 8;
    }
    return static_cast<double>(s) * power_of_two<double>(unit);
}

// Returns the random bits of the element with an index. Bits that `mask` (Rule::mask) omits are zero.
CFP_FN u32 bits_of_element(u64 index, u32 stream, u64 seed, u32 mask) {
    const u32 lane = static_cast<u32>(index % 16), place = static_cast<u32>(index / 16 % 8);
    const u32 upper = half_of(random_words(index / group, lane, stream, 0, seed).w[place / 2], place);
    const u32 lower = counted(mask) & 0xffffu ? half_of(random_words(index / group, lane, stream, 1, seed).w[place / 2], place) : 0;
    return rounding_bits(upper << 16 | lower, mask);
}

CFP_FN bool is_finite(double x) { return (to_bits(x) & Bits<double>::infinity) != Bits<double>::infinity; }

// Like make_rounder, but toward_zero also overflows if it truncates a value past the largest one.
template <class F> CFP_FN Rounder<F> overflowing_rounder(u32 spec, int mode, int overflow) {
    Rounder<F> r = make_rounder<F>(unpack_spec(spec), mode, overflow);
    if (mode == toward_zero && overflow == infinity) r.overflow = r.overflow_below = r.infinity;
    return r;
}

CFP_FN double magnitude_of(double x) { return from_bits(to_bits(x) & ~Bits<double>::sign); }
CFP_FN float magnitude_of(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }

// Rounds to one format of any kind.
template <Mode mode> struct Quantizer {
    Rounder<double> rounder;
    const i32* table;
    double smallest;  // smaller magnitudes become zero; 0 keeps all

    CFP_MEMBER double operator()(double x, u32 random) const {
        if (table) return in_table(x, random);
        double y = round<mode>(x, rounder, random);
        if (!rounder.is_plain) y = settled(x, y);
        return magnitude_of(y) < smallest ? from_bits(to_bits(y) & Bits<double>::sign) : y;
    }

private:
    CFP_MEMBER double in_table(double x, u32 random) const {
        const Table t = open_table(table);
        return static_cast<double>(mode == stochastic ? value_in(x, t, random) : value_in(to_odd_float32(x), t, 0));
    }
    // Like settle(), but decides by x, because finite numbers may overflow here although toward_zero does not overflow.
    CFP_MEMBER double settled(double x, double y) const {
        const u64 bits = to_bits(y);
        if (!(bits >> 63)) return y;
        if (bits << 1 == 0) return 0.0;
        if (rounder.is_signed) return y;
        const bool is_infinite = (to_bits(x) & ~Bits<double>::sign) == Bits<double>::infinity;
        return static_cast<double>(from_bits(is_infinite ? rounder.below_zero_infinity : rounder.below_zero));
    }
};

template <Mode mode> CFP_LARGE_FN Quantizer<mode> make_quantizer(const Summing& s, u32 spec, const i32* table) {
    return {overflowing_rounder<double>(spec, s.mode, s.overflow), table,
            s.flush ? power_of_two<double>(unpack_spec(spec).emin) : 0.0};
}

CFP_LARGE_FN Quantizer<nearest_even> quantizer_of_total(const Summing& s) {
    return {make_rounder<double>(unpack_spec(s.total), nearest_even, infinity), s.total_table, 0.0};
}

// Returns floor(s * 2^shift). If the shift is to the left, the result must fit.
CFP_FN i64 lowered(i64 s, int shift) { return shift >= 0 ? s << shift : s >> (shift < -62 ? 62 : -shift); }

// mode: template_of(mode, overflow, true) for the Summing.
template <Mode mode> class Dot {
    const Summing& s_;
    const Quantizer<mode> sum_, product_;
    const Quantizer<nearest_even> total_;
    const int emin_;
    const float smallest_a_, smallest_b_;  // smaller factors become zero, as in Quantizer

public:
    CFP_MEMBER explicit Dot(const Summing& s)
        : s_(s), sum_(make_quantizer<mode>(s, s.sum, s.sum_table)),
          product_(make_quantizer<mode>(s, s.product ? s.product : s.sum, s.product_table)),
          total_(quantizer_of_total(s)), emin_(unpack_spec(s.sum).emin),
          smallest_a_(s.flush ? power_of_two<float>(s.emin_a) : 0.0f),
          smallest_b_(s.flush ? power_of_two<float>(s.emin_b) : 0.0f) {}

    // Returns the sum of a[k * a_step] * b[k * b_step]. element: the index of the result, for its random words.
    CFP_MEMBER float operator()(const float* a, i64 a_step, const float* b, i64 b_step, i64 depth, u64 element,
                                const Scales& scales) const {
        const Call call = {a, b, a_step, b_step, element, scales};
        u32 sums = 0;  // the number of sums that have been rounded so far
        if (s_.chunk == 0) return canonical(static_cast<float>(segment(call, 0, depth, sums)));
        double total = 0;
        for (i64 begin = 0; begin < depth; begin += s_.chunk) {
            const i64 end = depth - begin < s_.chunk ? depth : begin + s_.chunk;
            total = total_(add_to_odd(total, segment(call, begin, end, sums)), 0);
        }
        return canonical(static_cast<float>(total));
    }

private:
    struct Call {
        const float *a, *b;
        i64 a_step, b_step;
        u64 element;
        Scales scales;

        CFP_MEMBER float x(i64 k) const { return a[k * a_step]; }
        CFP_MEMBER float y(i64 k) const { return b[k * b_step]; }
    };

    CFP_MEMBER u32 random(const Call& call, u32 stream) const {
        return mode == stochastic ? bits_of_element(call.element, stream, s_.seed, s_.mask) : 0;
    }
    CFP_LARGE_MEMBER double rounded(double x, const Call& call, u32& sums) const {
        return sum_(x, random(call, 2 * sums++ + 1));
    }
    CFP_MEMBER double exact_term(const Call& call, i64 k) const {
        const float x = call.x(k), y = call.y(k);
        return static_cast<double>(magnitude_of(x) < smallest_a_ ? 0.0f : x) *
               static_cast<double>(magnitude_of(y) < smallest_b_ ? 0.0f : y);
    }
    CFP_LARGE_MEMBER double term(const Call& call, i64 k) const {
        const double product = exact_term(call, k);
        return s_.product ? product_(product, random(call, static_cast<u32>(2 * k))) : product;
    }

    CFP_LARGE_MEMBER double segment(const Call& call, i64 begin, i64 end, u32& sums) const {
        if (s_.order == exact_order) return exactly(call, 0.0, begin, end, sums);
        if (s_.order == pairwise && s_.block == 1) return end > begin ? tree(call, begin, end, sums) : 0.0;
        if (s_.kahan) return compensated(call, begin, end, sums);
        double acc = 0;
        for (i64 first = begin; first < end; first += s_.block) {
            const i64 last = end - first < s_.block ? end : first + s_.block;
            if (s_.order == pairwise) {
                const double together = tree(call, first, last, sums);
                acc = rounded(add_to_odd(acc, together), call, sums);
            } else if (s_.width >= 0) {
                acc = aligned(call, acc, first, last, sums);
            } else if (s_.block == 1) {
                acc = rounded(add_to_odd(acc, term(call, first)), call, sums);
            } else {
                acc = exactly(call, acc, first, last, sums);
            }
        }
        return acc;
    }

    CFP_LARGE_MEMBER double exactly(const Call& call, double acc, i64 begin, i64 end, u32& sums) const {
        ExactSum sum;
        sum.clear();
        double plain = acc;  // becomes infinite or NaN only if a term is
        if (is_finite(acc)) sum.add(acc);
        for (i64 k = begin; k < end; ++k) {
            const double x = term(call, k);
            plain += x;
            if (is_finite(x)) sum.add(x);
        }
        return rounded(is_finite(plain) ? sum.value() : plain, call, sums);
    }

    // Adds terms in a tree. Two sums of equally many terms are added as soon as both exist.
    CFP_LARGE_MEMBER double tree(const Call& call, i64 begin, i64 end, u32& sums) const {
        double waiting[40];
        int count = 0;
        for (i64 k = begin; k < end; ++k) {
            double x = term(call, k);
            for (i64 n = k - begin; n & 1; n >>= 1) x = rounded(add_to_odd(waiting[--count], x), call, sums);
            waiting[count++] = x;
        }
        double x = waiting[--count];
        if (end - begin == 1) return rounded(x, call, sums);
        while (count) x = rounded(add_to_odd(waiting[--count], x), call, sums);
        return x;
    }

    CFP_LARGE_MEMBER double compensated(const Call& call, i64 begin, i64 end, u32& sums) const {
        double acc = 0, c = 0;
        for (i64 k = begin; k < end; ++k) {
            const double y = rounded(add_to_odd(term(call, k), -c), call, sums);
            const double t = rounded(add_to_odd(acc, y), call, sums);
            const double gained = rounded(add_to_odd(t, -acc), call, sums);
            const double lost = rounded(add_to_odd(gained, -y), call, sums);
            c = is_finite(t) ? lost : 0.0;
            acc = t;
        }
        return acc;
    }

    // Return the exponents of the scales of product k's factors.
    CFP_MEMBER int scale_a(const Call& call, i64 k) const { return s_.scales ? call.scales.a[k / s_.scales] : 0; }
    CFP_MEMBER int scale_b(const Call& call, i64 k) const {
        return s_.scales ? call.scales.b[k / s_.scales * call.scales.b_step] : 0;
    }
    CFP_MEMBER Digits digits_a(const Call& call, i64 k) const { return digits_of(call.x(k), s_.emin_a, scale_a(call, k)); }
    CFP_MEMBER Digits digits_b(const Call& call, i64 k) const { return digits_of(call.y(k), s_.emin_b, scale_b(call, k)); }
    // Returns the exponent by which product k, or the group that starts with it, is aligned.
    CFP_MEMBER int exponent(const Call& call, i64 k) const {
        if (s_.group > 1) return scale_a(call, k) + scale_b(call, k);
        return digits_a(call, k).exponent + digits_b(call, k).exponent;
    }
    // Returns product k in units of 2^unit, truncated.
    CFP_MEMBER i64 cut_product(const Call& call, i64 k, int unit) const {
        const Digits x = digits_a(call, k), y = digits_b(call, k);
        return cut(x.significand * y.significand, x.unit + y.unit - unit);
    }
    // Returns the exact sum of the products of the group that starts with k, in units of 2^unit, truncated.
    CFP_MEMBER i64 cut_group(const Call& call, i64 k, i64 end, int unit) const {
        if (s_.group == 1) return cut_product(call, k, unit);
        const int exact = exponent(call, k) - group_digits;
        const i64 last = end - k < s_.group ? end : k + s_.group;
        i64 sum = 0;
        for (i64 i = k; i < last; ++i) sum += cut_product(call, i, exact);
        return cut(sum, exact - unit);
    }

    CFP_MEMBER double aligned(const Call& call, double acc, i64 begin, i64 end, u32& sums) const {
        double plain = acc, past = 0;  // past: sums an infinity for each product past float32's range
        for (i64 k = begin; k < end; ++k) {
            const double product = exact_term(call, k);
            plain += product;
            if (s_.join && magnitude_of(product) >= power_of_two<double>(128))
                past += from_bits((to_bits(product) & Bits<double>::sign) | Bits<double>::infinity);
        }
        if (!is_finite(plain)) return rounded(plain, call, sums);
        if (past != 0) return rounded(past, call, sums);
        const Digits c = digits_of(static_cast<float>(acc), emin_);
        return s_.join ? joined(call, c, begin, end, sums) : together(call, c, begin, end, sums);
    }

    // Aligns acc and the terms by the same exponent and adds them.
    CFP_MEMBER double together(const Call& call, const Digits& c, i64 begin, i64 end, u32& sums) const {
        int largest = c.exponent;
        for (i64 k = begin; k < end; k += s_.group) {
            const int e = exponent(call, k);
            largest = e > largest ? e : largest;
        }
        const int unit = largest - s_.width;
        i64 sum = cut(c.significand, c.unit - unit);
        for (i64 k = begin; k < end; k += s_.group) sum += cut_group(call, k, end, unit);
        return rounded(odd_double(sum, unit), call, sums) + 0.0;
    }

    // Aligns and adds the terms, and then aligns and adds their sum and acc, by another exponent.
    CFP_MEMBER double joined(const Call& call, const Digits& c, i64 begin, i64 end, u32& sums) const {
        i64 sum = 0;
        int top = 2 * zero_exponent;
        for (i64 k = begin; k < end; ++k) {
            const int e = exponent(call, k);
            top = e > top ? e : top;
        }
        for (i64 first = begin; first < begin + s_.split && first < end; ++first) {
            int largest = 2 * zero_exponent;
            for (i64 k = first; k < end; k += s_.split) {
                const int e = exponent(call, k);
                largest = e > largest ? e : largest;
            }
            i64 part = 0;
            for (i64 k = first; k < end; k += s_.split) part += cut_product(call, k, largest - s_.width);
            sum += lowered(part, largest - top);
        }
        const int largest = top > c.exponent ? top : c.exponent, unit = largest - s_.join, last = largest - s_.join_acc;
        sum = lowered(sum, top - s_.width - unit);
        if (s_.split == 1 || c.exponent >= last - 1) sum += lowered(c.significand, c.unit - last) << (last - unit);
        return rounded(odd_double(sum, unit), call, sums) + 0.0;
    }
};

}  // namespace custom_fp
