// Faster versions of the functions in custom_fp.h, for loops that should be limited only by the speed of memory. Each
// is correct for elements that satisfy a condition, and records for a whole block of elements whether all of them do.
// If they do not, the caller computes the block again with the general functions. Most GPU kernels do not repeat
// blocks. They use the checked form of NearRounder instead.
//
// F is float, or a vector of floats if the compiler supports vectors (cpu/lanes.h).
#pragma once

#include "custom_fp.h"

namespace custom_fp {

template <class T> CFP_FN T smaller(T a, T b) { return a < b ? a : b; }
template <class T> CFP_FN T larger(T a, T b) { return a > b ? a : b; }

template <class F> struct Integers;
template <> struct Integers<float> {
    typedef i32 I;
    typedef u32 U;
    static CFP_MEMBER U bits(float x) { return to_bits(x); }
    static CFP_MEMBER float value(U bits) { return from_bits(bits); }
    static CFP_MEMBER I more(I a, I b) { return larger(a, b); }
};

// Data about the elements of a block, by which callers check afterwards whether the fast version was correct for all.
template <class F> struct BlockChecks {
    typedef typename Integers<F>::I I;
    typedef typename Integers<F>::U U;
    I largest = I{};                  // magnitude, as bits
    I tie = I{} - 0x7fffffff;         // how close any element is to a tie (NearRounder::tie)
    U digits = U{};                   // the bits of all terms, combined by bitwise or
    U carry = ~U{};                   // how close any element is to an undecided carry (RandomRounder)
    i64 wide_largest = 0;             // magnitude, as bits of a double
};

// ---- rounding to nearest ---------------------------------------------------------------------------------------

// Adding a number whose ulp is the quantum of x's binade rounds x to this quantum. There are two forms. The unchecked
// form is correct if no magnitude exceeds `limit`. The checked form, for formats that are `checkable`, is correct for
// any x, except that NaN keeps its sign and payload, so callers must apply `canonical`.
struct NearRounder {
    i32 min_exponent, offset;  // exponents in place in the bits of a float32
    i32 limit;                 // the largest value, or the largest one for which a number to add exists
    i32 past_top;
    float max;
    u32 overflow;
    u32 beyond;  // bits that are zero in all values of the format

    // Whether the number to add has enough digits for x.
    static CFP_MEMBER bool fits(const Spec& s) { return s.mantissa_bits <= 21; }
    // Whether sums can be rounded twice. The sum of two values of p digits, rounded to 24 digits and then to p digits,
    // equals the sum rounded once if 24 >= 2 p + 2 (Figueroa 1995).
    static CFP_MEMBER bool allowed(const Spec& s) { return s.mantissa_bits <= 10; }
    static CFP_MEMBER bool checkable(const Spec& s) {
        return s.is_signed && allowed(s) && s.has_nan && s.max_code > 0 &&
               s.emin + (1 << s.exponent_bits) + 24 - s.mantissa_bits <= 127;
    }
    // The value of BlockChecks::tie for a tie. Smaller values mean no tie. Half a quantum must be a normal float32.
    static constexpr i32 tie = -((24 << 23) + 0x00400000);
    static CFP_MEMBER bool detects_ties(const Spec& s) { return s.emin - s.mantissa_bits - 1 >= -126; }
};

CFP_FN NearRounder make_near_rounder(const Spec& s, int overflow) {
    NearRounder r;
    r.min_exponent = (s.emin + 127) << 23;
    r.offset = ((23 - s.mantissa_bits) << 23) | 0x00400000;  // 1.5 * 2^(23 - m): the half keeps negative sums in place
    const u32 max = magnitude_of<float>(s, s.max_code);
    r.limit = smaller(static_cast<i32>(max), ((105 + s.mantissa_bits + 127) << 23) - 1);
    r.past_top = static_cast<i32>(max & 0x7f800000u) + 0x00800000;
    r.max = from_bits(max);
    r.overflow = overflow != infinity ? max : special_of<float>(s, s.inf_code);
    r.beyond = ((1u << (23 - s.mantissa_bits)) - 1) | (s.is_signed ^ 1) << 31;
    return r;
}

template <bool checked, class F> CFP_FN F near_magic(F x, const NearRounder& r, BlockChecks<F>& checks) {
    typedef Integers<F> N;
    typedef typename N::I I;
    typedef typename N::U U;
    const I magnitude = (I)(N::bits(x) & 0x7fffffffu);
    I exponent = N::more(magnitude & 0x7f800000, I{} + r.min_exponent);
    if (checked)
        exponent = smaller<I>(exponent, I{} + r.past_top);
    else
        checks.largest = N::more(checks.largest, magnitude);
    return N::value((U)(exponent + r.offset));
}

CFP_FN float near_overflow(float x, const NearRounder& r) {
    const u32 bits = to_bits(x);
    return from_bits(select(static_cast<u32>(from_bits(bits & 0x7fffffffu) > r.max), r.overflow, bits));
}

template <class F> CFP_FN F with_sign(F x, F sign_of) {
    typedef Integers<F> N;
    return N::value(N::bits(x) | (N::bits(sign_of) & 0x80000000u));
}

template <class F> CFP_FN F round_near(F x, const NearRounder& r, BlockChecks<F>& checks) {
    const F magic = near_magic<false>(x, r, checks);
    return with_sign<F>((x + magic) - magic, x);
}

CFP_FN float round_near_checked(float x, const NearRounder& r) {
    BlockChecks<float> unused;
    const float magic = near_magic<true>(x, r, unused);
    return with_sign(near_overflow((x + magic) - magic, r), x);
}

// Rounds a sum that was already rounded to float32. This is correct unless the first rounding produced a tie.
template <class F> CFP_FN F round_near_again(F x, const NearRounder& r, BlockChecks<F>& checks) {
    typedef Integers<F> N;
    const F magic = near_magic<false>(x, r, checks), rounded = (x + magic) - magic;
    const typename N::U error = N::bits(x - rounded) & 0x7fffffffu;  // at most half a quantum
    checks.tie = N::more(checks.tie, (typename N::I)(error - N::bits(magic)));
    return with_sign<F>(rounded, x);
}

// Returns a * b, rounded once, because the fused addition rounds the exact product.
CFP_FN float multiply_near(float a, float b, const NearRounder& r, BlockChecks<float>& checks) {
    const float product = a * b, magic = near_magic<false>(product, r, checks);
    return with_sign(fused_multiply_add(a, b, magic) - magic, product);
}

CFP_FN float multiply_near_checked(float a, float b, const NearRounder& r) {
    BlockChecks<float> unused;
    const float product = a * b, magic = near_magic<true>(product, r, unused);
    return with_sign(near_overflow(fused_multiply_add(a, b, magic) - magic, r), product);
}

// Returns encode(round_near(x)). The last digits of the sum with the magic number are the code within a binade.
CFP_FN u32 round_and_encode_near(float x, const NearRounder& r, const Coder& c, BlockChecks<float>& checks) {
    const u32 bits = to_bits(x);
    const float magic = near_magic<false>(x, r, checks);
    const u32 quanta = to_bits(from_bits(bits & 0x7fffffffu) + magic) - to_bits(magic);
    const u32 binade = to_bits(magic) - static_cast<u32>(r.min_exponent + r.offset);
    return ((binade >> c.drop) + quanta) | (bits & 0x80000000u) >> c.sign_shift;
}

// The same in double, for any m, because 53 >= 2 p + 2 for up to 24 digits. If no magnitude exceeds `limit`, the
// largest value, it is correct for products of two floats (which are exact in double), for sums of two values of the
// format, and for any sum that was rounded to odd.
struct WideNearRounder {
    i64 min_exponent, offset, limit;
};

CFP_FN WideNearRounder make_wide_near_rounder(const Spec& s) {
    WideNearRounder r;
    r.min_exponent = static_cast<i64>(s.emin + 1023) << 52;
    r.offset = (static_cast<i64>(52 - s.mantissa_bits) << 52) | 0x0008000000000000ll;
    r.limit = static_cast<i64>(magnitude_of<double>(s, s.max_code));
    return r;
}

CFP_FN double with_sign(double x, double sign_of) {
    return from_bits(to_bits(x) | (to_bits(sign_of) & Bits<double>::sign));
}

CFP_FN double round_near_wide(double x, const WideNearRounder& r, i64& largest) {
    const i64 magnitude = static_cast<i64>(to_bits(x) & ~Bits<double>::sign);
    largest = larger(largest, magnitude);
    const i64 exponent = larger<i64>(magnitude & 0x7ff0000000000000ll, r.min_exponent);
    const double magic = from_bits(static_cast<u64>(exponent + r.offset));
    return with_sign((x + magic) - magic, x);
}

// ---- codes of finite values ------------------------------------------------------------------------------------

CFP_FN u32 encode_number(float value, const Coder& c) {
    const u32 bits = to_bits(value);
    return encode_magnitude(bits & 0x7fffffffu, c) | (bits & 0x80000000u) >> c.sign_shift;
}

// For plain formats. BlockChecks::largest records the magnitude of the code, which must not exceed max_code.
CFP_FN float decode_number(u32 code, const Coder& c, BlockChecks<float>& checks) {
    const u32 magnitude = code & c.magnitude_mask;
    checks.largest = larger(checks.largest, static_cast<i32>(magnitude));
    return from_bits(decode_magnitude(magnitude, c) | (code << c.sign_shift & 0x80000000u));
}

// ---- stochastic rounding ---------------------------------------------------------------------------------------

// Stochastic rounding that uses only the first 16 random bits if they decide whether a magnitude is rounded up. There
// are two cases in which they do not decide: their sum with the first 16 discarded digits is one less than a carry, or
// it barely carries and the digits may have been rounded. (The digits may be rounded because min_normal is added to
// smaller magnitudes, which moves their digits to the position of a normal value's.) With `few`, there are no more
// random bits, so the first ones decide if the addition was exact.
struct RandomRounder {
    u32 min_normal, keep, unit, undecided, max;
    int shift;

    static CFP_MEMBER bool allowed(const Spec& s) { return s.mantissa_bits <= 7; }  // 16 discarded digits or more
    CFP_MEMBER bool are_exact(const BlockChecks<float>& checks) const { return checks.largest <= static_cast<i32>(max) && checks.carry != 0; }
};

CFP_FN RandomRounder make_random_rounder(const Spec& s) {
    RandomRounder r;
    const int drop = 23 - s.mantissa_bits;
    r.min_normal = static_cast<u32>(s.emin + 127) << 23;
    r.keep = ~((1u << drop) - 1);
    r.unit = drop < 16 ? 0 : 1u << (drop - 16);
    r.undecided = 0xfffe * r.unit;
    r.max = magnitude_of<float>(s, s.max_code);
    r.shift = 32 - drop;
    return r;
}

// random: 16 bits, in the upper half of the word. is_exact: x is the exact value to be rounded.
template <bool few = false>
CFP_FN float round_randomly(float x, const RandomRounder& r, u32 random, BlockChecks<float>& checks, bool is_exact = true) {
    const u32 magnitude = to_bits(x) & 0x7fffffffu;
    const u32 is_subnormal = 0u - static_cast<u32>(static_cast<i32>(magnitude) < static_cast<i32>(r.min_normal));
    const float lift = from_bits(r.min_normal & is_subnormal), lifted = from_bits(magnitude) + lift;
    const u32 sum = to_bits(lifted) + (random >> r.shift);
    u32 carry = (sum + r.unit) & r.undecided;
    if (few) carry |= 0u - static_cast<u32>((to_bits(lifted - lift) == magnitude) & is_exact);
    checks.largest = larger(checks.largest, static_cast<i32>(magnitude));
    checks.carry = smaller(checks.carry, carry);
    return from_bits(to_bits(from_bits(sum & r.keep) - lift) | (to_bits(x) & 0x80000000u));
}

}  // namespace custom_fp
