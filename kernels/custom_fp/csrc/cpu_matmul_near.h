// matmul to a format of at most 11 digits, nearest even, as few instructions as there can be: what one row and one panel
// of columns are (Facts) says which of these can be left out.
//
//   acc = Q(acc + Q(a b)), Q(x) = (x + magic) - magic with magic = t 2^(23 - m), t = 1.5 2^max(exponent(x), emin)
//
// No sign is put back: a product that became +0 for -0 changes no sum, for acc is never -0; it starts as +0, and a sum of
// two values of the format that is not zero is not rounded to zero.
#pragma once

#include "cpu_lanes.h"
#include "cpu_facts.h"

namespace custom_fp {
namespace {

CFP_FN FloatLanes fused(FloatLanes a, FloatLanes b, FloatLanes c) {  // a b + c
#if defined(__AVX512F__)
    return (FloatLanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (FloatLanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < lanes; ++i) c[i] = fused_multiply_add(a[i], b[i], c[i]);
    return c;
#endif
}

enum Product { is_value, is_float, is_longer };  // of two factors: of the format; of float32, exactly; neither

struct NearMatmul {
    i32 smallest;          // t of the smallest normal value
    float scale;           // 2^(23 - m)
    int digits, emin, last, top;  // of values; the last digit of the smallest, the exponent of the largest
    i32 limit;             // t below it is of a sum that cannot overflow

    explicit NearMatmul(const Spec& s, const NearRounder& r)
        : smallest((s.emin + 127) << 23 | 0x00400000), scale(power_of_two<float>(23 - s.mantissa_bits)),
          digits(s.mantissa_bits + 1), emin(s.emin), last(s.emin - s.mantissa_bits), top((r.limit >> 23) - 127),
          limit(r.limit & 0x7f800000) {}

    // Which way a row goes; false: none of these.
    bool takes(const Facts& a, const Facts& b, Product& product) const {
        if (!a.finite || !b.finite || a.most + b.most + 2 > top) return false;
        const int least = a.least + b.least, together = a.digits + b.digits;
        if (together <= digits && least >= emin)
            product = is_value;
        else
            product = together <= 24 && least >= -100 ? is_float : is_longer;
        return true;
    }
};

CFP_FN FloatLanes exponent_and_half(FloatLanes x, IntLanes smallest) {
    const IntLanes t = (IntLanes)(((UintLanes)x & 0x7f800000u) | 0x00400000u);
    return (FloatLanes)Integers<FloatLanes>::more(t, smallest);
}

// A row of a times a panel of b: 64 results. False if they cannot be trusted.
template <Product kind>
bool near_row(const float* a, const float* b_Kx64, float* out, int64_t K, const NearMatmul& r) {
    const IntLanes smallest = IntLanes{} + r.smallest;
    const FloatLanes scale = r.scale - FloatLanes{};
    IntLanes seen = {};
    for (int column = 0; column < panel; column += 4 * lanes) {
        FloatLanes acc[4] = {};
        for (int64_t k = 0; k < K; ++k) {
            const FloatLanes x = a[k] - FloatLanes{};
            for (int v = 0; v < 4; ++v) {
                const FloatLanes y = load<FloatLanes>(b_Kx64 + k * panel + column + v * lanes);
                FloatLanes sum;
                if (kind == is_value) {
                    sum = fused(x, y, acc[v]);
                } else {
                    const FloatLanes product = x * y, t = exponent_and_half(product, smallest), magic = t * scale;
                    sum = acc[v] + (((kind == is_float ? product + magic : fused(x, y, magic))) - magic);
                }
                const FloatLanes t = exponent_and_half(sum, smallest);
                seen = Integers<FloatLanes>::more(seen, (IntLanes)t);
                acc[v] = fused(-t, scale, fused(t, scale, sum));
            }
        }
        for (int v = 0; v < 4; ++v) store(out + column + v * lanes, acc[v]);
    }
    i32 largest = 0;
    for (int i = 0; i < lanes; ++i) largest = largest > seen[i] ? largest : seen[i];
    return largest < r.limit;
}

CFP_FN bool near_row_of(Product product, const float* a, const float* b_Kx64, float* out, int64_t K,
                        const NearMatmul& r) {
    if (product == is_value) return near_row<is_value>(a, b_Kx64, out, K, r);
    if (product == is_float) return near_row<is_float>(a, b_Kx64, out, K, r);
    return near_row<is_longer>(a, b_Kx64, out, K, r);
}

}  // namespace
}  // namespace custom_fp
