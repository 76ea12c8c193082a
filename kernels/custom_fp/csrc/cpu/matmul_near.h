// matmul to a format of at most 11 digits, rounded to nearest even, with as few instructions as possible. The
// properties of a row and of a panel of columns (ValueRange) determine which instructions can be omitted.
//
//   acc = Q(acc + Q(a b)), Q(x) = (x + y 2^(23 - m)) - y 2^(23 - m)
//
// y is 1.5 2^max(exponent(x), emin). The sum of two values does not need emin, because such a small sum is a value of
// the format. For a product of at most 23 digits, y can be x itself, or 2^emin. y 2^(23 - m) is then even, so ties are
// rounded correctly. If the sum is in the next binade, x is so close to that binade (m < 11) that it is rounded to it
// in any case.
//
// The sign is not restored. A product that became +0 instead of -0 does not change any sum, because acc is never -0: it
// starts as +0, and a nonzero sum of two values of the format is not rounded to zero.
#pragma once

#include "cpu/lanes.h"
#include "cpu/value_range.h"

namespace custom_fp {
namespace {

// A value of the format; at most 23 digits and not subnormal in the format; at most 23 digits; more digits.
enum Product { is_value, is_normal, is_float, is_longer };

struct NearMethod {
    Product product;
    bool easy;  // whether no sum can come near the largest value

    bool operator==(const NearMethod& other) const { return product == other.product && easy == other.easy; }
};

struct NearMatmul {
    i32 smallest;           // t of the smallest normal value
    float scale;            // 2^(23 - m)
    float least_normal;     // 2^emin
    int digits, emin, top;  // digits of a value, and exponents of the smallest normal and the largest value
    i32 limit;              // sums with a smaller t do not overflow

    explicit NearMatmul(const Spec& s, const NearRounder& r)
        : smallest((s.emin + 127) << 23 | 0x00400000), scale(power_of_two<float>(23 - s.mantissa_bits)),
          least_normal(power_of_two<float>(s.emin)),
          digits(s.mantissa_bits + 1), emin(s.emin), top((r.limit >> 23) - 127), limit(r.limit & 0x7f800000) {}

    // Chooses the method for a row. Returns false if no method is correct.
    bool takes(const ValueRange& a, const ValueRange& b, int64_t depth, NearMethod& method) const {
        if (!a.finite || !b.finite || a.most + b.most + 2 > top) return false;
        const int least = a.least + b.least, together = a.digits + b.digits;
        const int last = least - (a.digits - 1) - (b.digits - 1);  // the position of a product's last digit, or a lower one
        if (together <= digits && last >= emin - (digits - 1))
            method.product = is_value;
        else
            method.product = together > 23 || least < -100 ? is_longer : least < emin ? is_float : is_normal;
        // Rounding to nearest at most doubles a step, and rounding a term may have doubled it as well.
        const double sum = 4.0 * static_cast<double>(a.largest) * static_cast<double>(b.largest) * static_cast<double>(depth);
        method.easy = sum < static_cast<double>(from_bits(static_cast<u32>(limit)));
        return true;
    }
};

CFP_FN FloatLanes exponent_and_half(FloatLanes x, IntLanes smallest) {
    const IntLanes t = (IntLanes)(((UintLanes)x & 0x7f800000u) | 0x00400000u);
    return (FloatLanes)Integers<FloatLanes>::more(t, smallest);
}

// Returns x, or `least` with the sign of x if `least` is larger than the magnitude of x.
CFP_FN FloatLanes no_less(FloatLanes x, FloatLanes least) {
#if defined(__AVX512F__)
    return (FloatLanes)_mm512_range_ps((__m512)x, (__m512)least, 3);
#else
    const IntLanes magnitude = (IntLanes)((UintLanes)x & 0x7fffffffu);
    return (FloatLanes)((UintLanes)Integers<FloatLanes>::more(magnitude, (IntLanes)least) | ((UintLanes)x & 0x80000000u));
#endif
}

constexpr int rows_per_pass = lanes == 16 ? 2 : 1;  // rows whose sums are independent

// Multiplies R rows of a by a panel of b, which gives 64 results for each row. Returns false if they may be wrong.
template <Product kind, bool easy, int R>
bool near_rows(const float* a, const float* b_Kx64, float* out, int64_t K, const NearMatmul& r) {
    const IntLanes smallest = IntLanes{} + r.smallest;
    const FloatLanes scale = r.scale - FloatLanes{}, scale_and_half = 1.5f * scale, least = r.least_normal - FloatLanes{};
    IntLanes seen = {};
    for (int column = 0; column < panel; column += 4 * lanes) {
        FloatLanes acc[R][4] = {};
        for (int64_t k = 0; k < K; ++k)
            for (int v = 0; v < 4; ++v) {
                const FloatLanes y = load<FloatLanes>(b_Kx64 + k * panel + column + v * lanes);
                for (int i = 0; i < R; ++i) {
                    const FloatLanes x = a[i * K + k] - FloatLanes{};
                    FloatLanes sum;
                    if (kind == is_value) {
                        sum = multiply_add(x, y, acc[i][v]);
                    } else if (kind == is_longer) {
                        const FloatLanes t = exponent_and_half(x * y, smallest);
                        sum = acc[i][v] + multiply_add(-t, scale, multiply_add(x, y, t * scale));
                    } else {
                        const FloatLanes product = x * y, t = kind == is_normal ? product : no_less(product, least);
                        sum = acc[i][v] + multiply_add(-t, scale, multiply_add(t, scale, product));
                    }
                    const FloatLanes t = (FloatLanes)((UintLanes)sum & 0x7f800000u);
                    if (!easy) seen = Integers<FloatLanes>::more(seen, (IntLanes)t);
                    acc[i][v] = multiply_add(-t, scale_and_half, multiply_add(t, scale_and_half, sum));
                }
            }
        for (int i = 0; i < R; ++i)
            for (int v = 0; v < 4; ++v) store(out + i * panel + column + v * lanes, acc[i][v]);
    }
    i32 largest = 0;
    for (int i = 0; i < lanes; ++i) largest = largest > seen[i] ? largest : seen[i];
    return easy || largest < r.limit;
}

template <int R>
bool near_rows_of(const NearMethod& method, const float* a, const float* b_Kx64, float* out, int64_t K, const NearMatmul& r) {
    if (method.product == is_value && method.easy) return near_rows<is_value, true, R>(a, b_Kx64, out, K, r);
    if (method.product == is_value) return near_rows<is_value, false, R>(a, b_Kx64, out, K, r);
    if (method.product == is_normal && method.easy) return near_rows<is_normal, true, R>(a, b_Kx64, out, K, r);
    if (method.product == is_normal) return near_rows<is_normal, false, R>(a, b_Kx64, out, K, r);
    if (method.product == is_float && method.easy) return near_rows<is_float, true, R>(a, b_Kx64, out, K, r);
    if (method.product == is_float) return near_rows<is_float, false, R>(a, b_Kx64, out, K, r);
    return near_rows<is_longer, false, R>(a, b_Kx64, out, K, r);
}

}  // namespace
}  // namespace custom_fp
