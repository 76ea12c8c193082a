// Sums of N tensors that are rounded once (fused_sum.h), computed in blocks of elements.
#pragma once

#include <cstdint>

#include "accumulators/fused_sum.h"

namespace custom_fp {
namespace {

constexpr int64_t sum_part = 256;  // number of elements whose sums stay in the first-level cache

// Float64 represents most sums exactly. Knuth's TwoSum detects the others, which are added in fixed point.
inline void add_exactly(const float* const* x, int tensors, double* out, int64_t begin, int64_t end) {
    double lost[sum_part];
    for (int64_t start = begin; start < end; start += sum_part) {
        const int64_t count = end - start < sum_part ? end - start : sum_part;
        double* const acc = out + start;
        for (int64_t i = 0; i < count; ++i) acc[i] = lost[i] = 0.0;
        for (int r = 0; r < tensors; ++r) {
            const float* const g = x[r] + start;
            for (int64_t i = 0; i < count; ++i) {
                const double a = acc[i], b = g[i], total = a + b, b_part = total - a;
                const double error = (a - (total - b_part)) + (b - b_part);
                lost[i] = from_bits(to_bits(lost[i]) | to_bits(error + 0.0));
                acc[i] = total;
            }
        }
        for (int64_t i = 0; i < count; ++i)
            if (to_bits(lost[i]) != 0) acc[i] = exact_total([&](int r) { return x[r][start + i]; }, tensors);
    }
}

inline void add_aligned(const float* const* x, int tensors, double* out, int64_t begin, int64_t end, int width, int emin) {
    int largest[sum_part];
    double plain[sum_part], power[sum_part];
    for (int64_t start = begin; start < end; start += sum_part) {
        const int64_t count = end - start < sum_part ? end - start : sum_part;
        double* const acc = out + start;
        for (int64_t i = 0; i < count; ++i) largest[i] = zero_exponent, plain[i] = acc[i] = 0.0;
        for (int r = 0; r < tensors; ++r) {
            const float* const g = x[r] + start;
            for (int64_t i = 0; i < count; ++i) {
                const int exponent = exponent_to_align(g[i], emin);
                largest[i] = exponent > largest[i] ? exponent : largest[i];
                plain[i] += static_cast<double>(g[i]);
            }
        }
        for (int64_t i = 0; i < count; ++i) power[i] = power_of_two<double>(width - largest[i]);
        for (int r = 0; r < tensors; ++r) {
            const float* const g = x[r] + start;
            for (int64_t i = 0; i < count; ++i) acc[i] += whole_part(static_cast<double>(g[i]), power[i]);
        }
        for (int64_t i = 0; i < count; ++i)
            acc[i] = is_finite(plain[i]) ? acc[i] * power_of_two<double>(largest[i] - width) + 0.0 : not_finite(plain[i]);
    }
}

// width < 0: exact sums.
void fused_sum(const float* const* x, int tensors, double* out, int64_t begin, int64_t end, int width, int emin) {
    if (width < 0)
        add_exactly(x, tensors, out, begin, end);
    else
        add_aligned(x, tensors, out, begin, end, width, emin);
}

}  // namespace
}  // namespace custom_fp
