// The arithmetic of custom_fp: formats, rounding and codes. The CPU extension (g++, clang) and the CUDA kernels include
// this file. It has no #include, because NVRTC has no standard headers. reference.py defines the results, bit for bit.
//
// Rules of this file: Select values with masks, because g++ 12 does not vectorize ternaries. Operations must not be
// contracted (-ffp-contract=off, --fmad=false), so a fused multiply-add must be written explicitly. CPU code that calls
// these functions must round to nearest and must not flush to zero (cpu/fp_environment.h). On GPUs, --ftz=false is
// NVRTC's default.
#pragma once

// Functions and members are inlined. On the CPU, the _LARGE ones are not, because they run only once per call or for
// many values, and would take long to compile in every place that calls them.
#if defined(__CUDACC__)
#define CFP_FN __device__ __forceinline__
#define CFP_MEMBER __device__ __forceinline__
#define CFP_LARGE_FN __device__ __forceinline__
#define CFP_LARGE_MEMBER __device__ __forceinline__
#else
#define CFP_FN static inline __attribute__((always_inline))
#define CFP_MEMBER inline __attribute__((always_inline))
#define CFP_LARGE_FN static __attribute__((noinline, unused))
#define CFP_LARGE_MEMBER __attribute__((noinline))
#endif

namespace custom_fp {

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8, "the codes below count on these widths");

// ---- floats as bits --------------------------------------------------------------------------------------------

template <class F> struct Bits;
template <> struct Bits<float> {
    typedef u32 U;
    typedef i32 I;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr U sign = 0x80000000u, infinity = 0x7f800000u, nan = 0x7fc00000u, one = 1u;
};
template <> struct Bits<double> {
    typedef u64 U;
    typedef i64 I;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr U sign = 0x8000000000000000ull, infinity = 0x7ff0000000000000ull, nan = 0x7ff8000000000000ull,
                       one = 1ull;
};

#if defined(__CUDACC__)
CFP_FN u32 to_bits(float x) { return __float_as_uint(x); }
CFP_FN u64 to_bits(double x) { return static_cast<u64>(__double_as_longlong(x)); }
CFP_FN float from_bits(u32 x) { return __uint_as_float(x); }
CFP_FN double from_bits(u64 x) { return __longlong_as_double(static_cast<i64>(x)); }
CFP_FN float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#else
CFP_FN u32 to_bits(float x) { return __builtin_bit_cast(u32, x); }
CFP_FN u64 to_bits(double x) { return __builtin_bit_cast(u64, x); }
CFP_FN float from_bits(u32 x) { return __builtin_bit_cast(float, x); }
CFP_FN double from_bits(u64 x) { return __builtin_bit_cast(double, x); }
CFP_FN float fused_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif

// Returns a if the condition is 1, and b if it is 0.
template <class U> CFP_FN U select(U condition, U a, U b) { return b ^ ((a ^ b) & (U(0) - condition)); }

// Returns 2^n, where n is the exponent of a normal value.
template <class F> CFP_FN F power_of_two(int n) {
    typedef Bits<F> B;
    return from_bits(static_cast<typename B::U>(n + B::bias) << B::mantissa);
}

// Returns x, or the canonical NaN if x is any NaN.
CFP_FN float canonical(float x) { return from_bits(select(static_cast<u32>(x != x), 0x7fc00000u, to_bits(x))); }

// Converts a float64 that float32 can represent. CFP_CAST is the conversion itself. A test replaces it by the
// conversion of a GPU, which turns any NaN into 0x7fffffff.
#if !defined(CFP_CAST)
#define CFP_CAST(x) static_cast<float>(x)
#endif
CFP_FN float to_float32(double x) { return canonical(CFP_CAST(x)); }
CFP_FN float to_float32(float x) { return x; }

// ---- formats ---------------------------------------------------------------------------------------------------

// A format, unpacked from `Format.spec` (formats/scalar.py).
struct Spec {
    int exponent_bits, mantissa_bits, emin, bits;
    u32 has_inf, has_nan, is_signed;
    u32 is_fnuz;   // the code of -0 is NaN
    u32 is_plain;  // has a sign and a -0
    // Codes without the sign, except for nan_code of fnuz. If the format has no infinity or NaN, inf_code and nan_code
    // are the codes of the values that replace them.
    u32 max_code, inf_code, nan_code;
};

CFP_FN Spec unpack_spec(u32 spec) {
    Spec s;
    s.exponent_bits = static_cast<int>(spec & 0xff);
    s.mantissa_bits = static_cast<int>(spec >> 8 & 0x7f);
    s.is_signed = (spec >> 15 & 1) ^ 1;
    s.emin = static_cast<int>(spec >> 16 & 0x1fff) - 512;
    s.is_fnuz = spec >> 31;
    s.is_plain = s.is_signed & (s.is_fnuz ^ 1);
    s.bits = static_cast<int>(s.is_signed) + s.exponent_bits + s.mantissa_bits;
    s.has_nan = spec >> 29 & 1;
    s.has_inf = spec >> 30 & 1;
    const u32 top = ((1u << s.exponent_bits) - 1) << s.mantissa_bits, all_ones = top | ((1u << s.mantissa_bits) - 1);
    s.max_code = s.has_inf ? top - 1 : all_ones - (s.has_nan & (s.is_fnuz ^ 1));
    const u32 nan = s.has_inf ? top | (1u << s.mantissa_bits) >> 1 : all_ones + s.is_fnuz;
    s.inf_code = s.has_inf ? top : s.has_nan ? nan : s.max_code;
    s.nan_code = s.has_nan ? nan : s.has_inf ? top : s.max_code;
    return s;
}

// Returns the magnitude of a finite code as the bits of an F.
template <class F> CFP_FN typename Bits<F>::U magnitude_of(const Spec& s, u32 code) {
    typedef Bits<F> B;
    typedef typename B::U U;
    if (code >> s.mantissa_bits)
        return (static_cast<U>(code) << (B::mantissa - s.mantissa_bits)) +
               (static_cast<U>(s.emin - 1 + B::bias) << B::mantissa);
    const F magic = power_of_two<F>(s.emin - s.mantissa_bits + B::mantissa);
    return to_bits(from_bits(to_bits(magic) | code) - magic);
}

// Returns the magnitude of inf_code or nan_code as the bits of an F.
template <class F> CFP_FN typename Bits<F>::U special_of(const Spec& s, u32 code) {
    if (code <= s.max_code) return magnitude_of<F>(s, code);
    return s.has_inf && code == s.inf_code ? Bits<F>::infinity : Bits<F>::nan;
}

// ---- rounding --------------------------------------------------------------------------------------------------

// The rounding modes, with the same numbers as in rounding.py.
enum Mode {
    nearest_even = 0, toward_zero = 1, stochastic = 2, nearest_away = 3, toward_positive = 4, toward_negative = 5,
    to_odd = 6
};
enum Overflow { infinity = 0, saturate = 1, propagate = 2 };

// Three modes have their own template instances. The other modes, and formats without a sign or without -0, share the
// instance `otherwise`, which reads the mode from its Rounder (any mode except stochastic).
constexpr Mode otherwise = static_cast<Mode>(7);

CFP_FN Mode template_of(int mode, int overflow, bool is_plain) {
    if (mode == stochastic) return stochastic;
    const bool is_own = mode == toward_zero || (mode == nearest_even && overflow != propagate);
    return is_own && is_plain ? static_cast<Mode>(mode) : otherwise;
}

// Everything that `round` needs, computed once per call.
template <class F> struct Rounder {
    typedef typename Bits<F>::U U;
    U half, odd, keep;              // numbers to add to the mantissa before it is truncated to m bits
    U min_normal, max;              // magnitudes
    U overflow, infinity, nan;      // the results for a finite value past max, infinity and NaN
    U overflow_below;               // the magnitude of the result for a finite value past -max
    F magic, quantum;               // quantum = 2^(emin - m); adding magic rounds to multiples of the quantum
    F scale_a, scale_b;             // scale_a * scale_b = 2^31 / quantum
    int drop;                       // mantissa bits of F that the format does not have
    // For `otherwise`: 1 for each case in which the mode rounds up, and else 0.
    U half_unit, even_is_one;       // the only digit of m = 0
    U nearest, ties_up, up, down, odd_up;
    // For settle(): the float32 bits of the results for a negative number and for -infinity.
    u32 below_zero, below_zero_infinity, is_signed, is_plain;
};

template <class F> CFP_FN Rounder<F> make_rounder(const Spec& s, int mode, int overflow) {
    typedef Bits<F> B;
    typedef typename B::U U;
    Rounder<F> r;
    const int quantum_exponent = s.emin - s.mantissa_bits;
    r.drop = B::mantissa - s.mantissa_bits;
    r.keep = ~((B::one << r.drop) - 1);
    // m = 0: both neighbors of a tie have an odd digit (1), so IEEE 754 chooses the one with the larger magnitude.
    r.odd = s.mantissa_bits > 0 && r.drop > 0;
    r.half = r.drop > 0 ? (B::one << (r.drop - 1)) - r.odd : 0;
    r.min_normal = static_cast<U>(s.emin + B::bias) << B::mantissa;
    r.max = magnitude_of<F>(s, s.max_code);
    const bool keeps = overflow == saturate || (overflow == propagate && !s.has_inf);
    r.infinity = keeps ? r.max : special_of<F>(s, s.inf_code);
    const bool max_is_odd = s.mantissa_bits > 0 ? s.max_code & 1 : s.max_code > 0;
    const bool stays = overflow != infinity || mode == toward_zero || (mode == to_odd && max_is_odd);
    r.overflow = stays || mode == toward_negative ? r.max : r.infinity;
    r.overflow_below = stays || mode == toward_positive ? r.max : r.infinity;
    r.nan = special_of<F>(s, s.nan_code);
    r.quantum = from_bits(magnitude_of<F>(s, 1));
    if (s.mantissa_bits == 0) r.quantum = power_of_two<F>(s.emin);
    r.magic = power_of_two<F>(quantum_exponent + B::mantissa);
    const int scale = 31 - quantum_exponent;
    r.scale_a = power_of_two<F>(scale / 2);
    r.scale_b = power_of_two<F>(scale - scale / 2);
    r.half_unit = r.drop > 0 ? B::one << (r.drop - 1) : B::one;
    r.even_is_one = s.mantissa_bits == 0;
    r.nearest = mode == nearest_even || mode == nearest_away;
    r.ties_up = mode == nearest_away;
    r.up = mode == toward_positive;
    r.down = mode == toward_negative;
    r.odd_up = mode == to_odd;
    r.below_zero_infinity = overflow == infinity && s.has_nan ? Bits<float>::nan : 0;
    r.below_zero = mode == toward_zero || mode == toward_positive ? 0 : r.below_zero_infinity;
    r.is_signed = s.is_signed;
    r.is_plain = s.is_plain;
    return r;
}

// Returns whether a magnitude is rounded up to the next multiple of the quantum. Each argument is 0 or 1. `odd` refers
// to the multiple below.
template <class F, class U>
CFP_FN U goes_up(U above_half, U half, U inexact, U odd, U negative, const Rounder<F>& r) {
    const U away = (above_half | (half & (odd | r.ties_up))) & r.nearest;
    const U directed = ((negative ^ 1) & r.up) | (negative & r.down) | ((odd ^ 1) & r.odd_up);
    return away | (directed & inexact);
}

// Rounds x to the format. Only stochastic rounding reads `random`, which has 32 random bits. It adds the upper 31 bits
// to the discarded digits of the magnitude, and rounds up if this carries. For uniform bits, the probability is
// floor(2^31 distance) / 2^31. If the last bit is set, it stands for infinitely many ones, which carry if any lower
// digit is lost (`rounding_bits` in philox.h). NaN loses its sign and payload, so that all backends return the same
// bits. With detects_infinity, infinity is distinguished from finite values past max. Sums omit this check if the
// results are the same without it. With is_multiple, the caller guarantees that any |x| below min_normal is a multiple
// of the format's smallest positive value, as in sums of values of the format. It is then a value of the format itself.
template <Mode mode, bool detects_infinity = mode != nearest_even, bool is_multiple = false, class F>
CFP_FN F round(F x, const Rounder<F>& r, u32 random) {
    typedef Bits<F> B;
    typedef typename B::U U;
    typedef typename B::I I;
    const U bits = to_bits(x), sign = bits & B::sign, magnitude = bits ^ sign;
    const F absolute = from_bits(magnitude);

    U add = 0;
    if (mode == nearest_even) add = r.half + (magnitude >> r.drop & r.odd);
    if (mode == stochastic) {
        if (sizeof(F) == 4) add = static_cast<U>(random >> 1) >> (31 - r.drop);
        else if (r.drop >= 31) add = ((static_cast<U>(random >> 1) + (random & 1)) << (r.drop - 31)) - (random & 1);
        else add = static_cast<U>(random >> 1) >> (31 - r.drop);
    }
    if (mode == otherwise) {
        const U rest = magnitude & ~r.keep, odd = (magnitude >> r.drop & 1) | r.even_is_one;
        const U up = goes_up<F, U>(static_cast<I>(rest) > static_cast<I>(r.half_unit), rest == r.half_unit, rest != 0,
                                   odd, sign != 0, r);
        add = up << r.drop;
    }
    const U normal = (magnitude + add) & r.keep;

    // Below min_normal, the quantum is constant. Adding magic, whose ulp is the quantum, rounds to multiples of it.
    F multiple = (absolute + r.magic) - r.magic;
    if (mode != nearest_even) {
        const U too_large = static_cast<U>(multiple > absolute);
        multiple -= from_bits(to_bits(r.quantum) & (U(0) - too_large));
    }
    if (mode == stochastic) {
        const F distance = (absolute - multiple) * r.scale_a * r.scale_b;  // in units of quantum / 2^31
        const i32 digits = static_cast<i32>(distance);
        const u32 more = static_cast<u32>(distance > static_cast<F>(digits)) & random & 1;
        const U up = static_cast<U>(((static_cast<u32>(digits) & 0x7fffffffu) + (random >> 1) + more) >> 31);
        multiple += from_bits(to_bits(r.quantum) & (U(0) - up));
    }
    if (mode == otherwise) {
        const F distance = absolute - multiple, twice = distance + distance;
        const U odd = to_bits(multiple + r.magic) & 1;
        const U up = goes_up<F, U>(twice > r.quantum, twice == r.quantum, distance > F(0), odd, sign != 0, r);
        multiple += from_bits(to_bits(r.quantum) & (U(0) - up));
    }
    const U is_subnormal = static_cast<U>(static_cast<I>(magnitude) < static_cast<I>(r.min_normal));
    U result = is_multiple ? normal : select(is_subnormal, to_bits(multiple), normal);

    const U overflow = mode == otherwise ? select(static_cast<U>(sign != 0), r.overflow_below, r.overflow) : r.overflow;
    result = select(static_cast<U>(static_cast<I>(result) > static_cast<I>(r.max)), overflow, result);
    if (detects_infinity) result = select(static_cast<U>(magnitude == B::infinity), r.infinity, result);
    result = select(static_cast<U>(static_cast<I>(magnitude) > static_cast<I>(B::infinity)), r.nan, result);
    const U is_number = static_cast<U>(static_cast<I>(result) <= static_cast<I>(B::infinity)) &
                        static_cast<U>(static_cast<I>(magnitude) <= static_cast<I>(B::infinity));
    return from_bits(result | (sign & (U(0) - is_number)));
}

// Adjusts a rounded value for formats without -0 or without a sign. -0 becomes 0, and in a format without a sign, a
// negative value becomes the result that the rule specifies. Values of other formats are not changed.
template <class F> CFP_FN float settle(float value, const Rounder<F>& r) {
    const u32 bits = to_bits(value), magnitude = bits & 0x7fffffffu;
    const u32 below = select(static_cast<u32>(magnitude == 0x7f800000u), r.below_zero_infinity, r.below_zero);
    const u32 settled = select(static_cast<u32>(magnitude == 0), 0u, select(r.is_signed, bits, below));
    return from_bits(select((bits >> 31) & (r.is_plain ^ 1), settled, bits));
}

// ---- exact sums and products -----------------------------------------------------------------------------------

// Rounds the exact value sum + error to odd: truncates it to the digits of F, and sets the last digit if any digit was
// lost. Rounding the result to a format with at least two digits fewer equals rounding the exact value (Boldo,
// Melquiond 2008).
template <class F> CFP_FN F make_odd(F sum, F error) {
    typedef Bits<F> B;
    typedef typename B::U U;
    const U bits = to_bits(sum);
    const U inexact = static_cast<U>(from_bits(to_bits(error) & ~B::sign) > F(0));  // 0 if the error is NaN (infinite sum)
    const U beyond = ((bits ^ to_bits(error)) >> (8 * sizeof(F) - 1)) & inexact;     // rounded away from zero
    return from_bits((bits - beyond) | inexact);
}

// Returns a + b, rounded to odd. The error is computed with Knuth's TwoSum.
template <class F> CFP_FN F add_to_odd(F a, F b) {
    const F sum = a + b, b_part = sum - a, error = (a - (sum - b_part)) + (b - b_part);
    return make_odd(sum, error);
}

// Returns whether F is certain to represent all sums of two finite values of the format exactly.
template <class F> CFP_FN bool has_exact_sums(const Spec& s) {
    return (1 << s.exponent_bits) + s.mantissa_bits <= Bits<F>::mantissa + 1;
}

// Returns x * 2^shift, rounded once, for |shift| <= 400. Larger shifts give the same float32 results as 400.
CFP_FN float scale(float x, double power) { return to_float32(static_cast<double>(x) * power); }

// ---- codes -----------------------------------------------------------------------------------------------------

// Conversion between codes and values of the format, including infinity and NaN. To move the digits of a subnormal
// magnitude to the position of a normal value's digits, min_normal is added to it, which sets the hidden bit.
struct Coder {
    int drop, sign_shift;
    u32 sign;            // bit 31, or 0 if the format has no sign
    u32 min_normal, hidden, magnitude_mask;
    u32 rebias;  // the difference between the bits of a code and those of float32, shifted by `drop`
    u32 inf_code, nan_code, max_code;
    u32 last_number;  // the largest code that is not NaN
    u32 infinity, nan;  // float32 bits of the values of inf_code and nan_code
    u32 is_plain;
    u32 first_special, special_mask, specials, infinities;  // the number of special codes, from the first on
};

CFP_FN Coder make_coder(const Spec& s) {
    Coder c;
    c.drop = 23 - s.mantissa_bits;
    c.sign_shift = 32 - s.bits;
    c.min_normal = static_cast<u32>(s.emin + 127) << 23;
    c.hidden = 1u << s.mantissa_bits;
    c.sign = s.is_signed << 31;
    c.magnitude_mask = (1u << (s.exponent_bits + s.mantissa_bits)) - 1;
    c.rebias = static_cast<u32>(s.emin + 126) << s.mantissa_bits;
    c.inf_code = s.inf_code;
    c.nan_code = s.nan_code;
    c.max_code = s.max_code;
    c.last_number = s.has_inf ? s.inf_code : s.max_code;
    c.infinity = special_of<float>(s, s.inf_code);
    c.nan = special_of<float>(s, s.nan_code);
    c.first_special = s.is_fnuz ? s.nan_code : s.max_code + 1;
    c.special_mask = c.magnitude_mask | (s.is_fnuz ? s.nan_code : 0);
    c.specials = s.is_fnuz ? 1 : c.magnitude_mask - s.max_code;
    c.infinities = s.has_inf;
    c.is_plain = s.is_plain;
    return c;
}

// Converts the bits of a finite magnitude to its code, and a code to the bits of its magnitude.
CFP_FN u32 encode_magnitude(u32 magnitude, const Coder& c) {
    const u32 is_subnormal = 0u - static_cast<u32>(static_cast<i32>(magnitude) < static_cast<i32>(c.min_normal));
    const u32 lifted = to_bits(from_bits(magnitude) + from_bits(c.min_normal & is_subnormal));
    return (lifted >> c.drop) - c.rebias - (c.hidden & is_subnormal);
}

CFP_FN u32 decode_magnitude(u32 code, const Coder& c) {
    const u32 is_subnormal = 0u - static_cast<u32>(static_cast<i32>(code) < static_cast<i32>(c.hidden));
    const u32 lifted = ((code | (c.hidden & is_subnormal)) + c.rebias) << c.drop;
    return to_bits(from_bits(lifted) - from_bits(c.min_normal & is_subnormal));
}

// Returns the code of a value that settle() returned.
CFP_FN u32 encode(float value, const Coder& c) {
    const u32 bits = to_bits(value), magnitude = bits & 0x7fffffffu;
    u32 code = encode_magnitude(magnitude, c);
    code = select(static_cast<u32>(static_cast<i32>(magnitude) >= 0x7f800000), c.inf_code, code);
    code = select(static_cast<u32>(static_cast<i32>(magnitude) > 0x7f800000), c.nan_code, code);
    return code | (bits & 0x80000000u) >> c.sign_shift;
}

// Returns the value of a code, whose higher bits are ignored. is_plain: the format is plain (see Spec).
template <bool is_plain> CFP_FN float decode(u32 code, const Coder& c) {
    if (is_plain) {
        const u32 magnitude = code & c.magnitude_mask, sign = code << c.sign_shift & 0x80000000u;
        u32 bits = decode_magnitude(magnitude, c);
        bits = select(static_cast<u32>(magnitude > c.max_code), c.nan, bits);
        bits = select(static_cast<u32>(magnitude > c.max_code) & static_cast<u32>(magnitude == c.inf_code), c.infinity, bits);
        return from_bits(bits | (sign & (0u - static_cast<u32>(static_cast<i32>(bits) <= 0x7f800000))));
    }
    const u32 sign = code << c.sign_shift & c.sign, special = (code - c.first_special) & c.special_mask;
    u32 bits = decode_magnitude(code & c.magnitude_mask, c);
    bits = select(static_cast<u32>(static_cast<i32>(special) < static_cast<i32>(c.specials)), 0x7fc00000u, bits);
    bits = select(static_cast<u32>(static_cast<i32>(special) < static_cast<i32>(c.infinities)), 0x7f800000u, bits);
    const u32 is_number = static_cast<u32>(static_cast<i32>(bits) <= 0x7f800000);
    return from_bits(bits | (sign & (0u - is_number)));
}

CFP_FN float decode(u32 code, const Coder& c) { return c.is_plain ? decode<true>(code, c) : decode<false>(code, c); }

// Returns encode(round<nearest_even>(x)) in one step, for formats with a sign. is_plain: the format also has -0.
template <bool is_plain = true> CFP_FN u32 round_and_encode(float x, const Rounder<float>& r, const Coder& c) {
    const u32 bits = to_bits(x), magnitude = bits & 0x7fffffffu;
    const u32 normal = ((magnitude + r.half + (magnitude >> r.drop & r.odd)) >> r.drop) - c.rebias;
    const u32 subnormal = to_bits(from_bits(magnitude) + r.magic) - to_bits(r.magic);
    u32 code = select(static_cast<u32>(static_cast<i32>(magnitude) < static_cast<i32>(c.min_normal)), subnormal, normal);
    code = select(static_cast<u32>(static_cast<i32>(code) > static_cast<i32>(c.max_code)), c.inf_code, code);
    const u32 is_nan = static_cast<u32>(static_cast<i32>(magnitude) > 0x7f800000);
    code = select(is_nan, c.nan_code, code);
    u32 is_number = (is_nan ^ 1) & static_cast<u32>(static_cast<i32>(code) <= static_cast<i32>(c.last_number));
    if (!is_plain) is_number &= static_cast<u32>(code != 0);
    return code | ((bits & 0x80000000u) >> c.sign_shift & (0u - is_number));
}

// Returns ceil(log2(magnitude)) for a nonzero finite float64, given as bits. Convert a float32 to float64 first.
CFP_FN int ceil_log2(u64 magnitude) {
    if (magnitude >> 52) return static_cast<int>(magnitude >> 52) - 1023 + ((magnitude & 0xfffffffffffffull) != 0);
    int exponent = -1075;
    for (u64 rest = magnitude; rest; rest >>= 1) ++exponent;
    return exponent + ((magnitude & (magnitude - 1)) != 0);
}

}  // namespace custom_fp
