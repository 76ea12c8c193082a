// The CPU matrix product with rounded products and sums:
//   out[i, j] = acc after acc = Q(acc + Q(a[i, k] * b[k, j])) for k = 0 to K-1, or Kahan's version of this sum.
// It is vectorized over columns. A panel of 64 columns of b is copied into a dense buffer and used for all rows.
#pragma once

#include <optional>

#include "cpu/elementwise.h"
#include "cpu/matmul_near.h"

namespace custom_fp {
namespace {

// Value: the type of partial sums. Seen: the largest magnitude, as bits.
struct NearArithmetic {
    typedef float Value;
    typedef i32 Seen;
    NearRounder r;
    explicit NearArithmetic(const Spec& s) : r(make_near_rounder(s, infinity)) {}
    CFP_MEMBER float product(float a, float b, i32& seen) const {
        BlockChecks<float> checks;
        checks.largest = seen;
        const float product = multiply_near(a, b, r, checks);
        seen = checks.largest;
        return product;
    }
    CFP_MEMBER float sum(float a, float b, i32& seen) const {
        BlockChecks<float> checks;
        checks.largest = seen;
        const float sum = round_near(a + b, r, checks);
        seen = checks.largest;
        return sum;
    }
    bool trusted(i32 seen) const { return seen <= r.limit; }
};

struct WideNearArithmetic {
    typedef double Value;
    typedef i64 Seen;
    WideNearRounder r;
    explicit WideNearArithmetic(const Spec& s) : r(make_wide_near_rounder(s)) {}
    CFP_MEMBER double product(float a, float b, i64& seen) const {
        return round_near_wide(static_cast<double>(a) * static_cast<double>(b), r, seen);
    }
    CFP_MEMBER double sum(double a, double b, i64& seen) const { return round_near_wide(a + b, r, seen); }
    bool trusted(i64 seen) const { return seen <= r.limit; }
};

struct Float32Arithmetic {
    typedef float Value;
    typedef i32 Seen;
    CFP_MEMBER float product(float a, float b, i32&) const { return a * b; }
    CFP_MEMBER float sum(float a, float b, i32&) const { return a + b; }
    bool trusted(i32) const { return true; }
};

struct WideArithmetic {
    typedef float Value;
    typedef i32 Seen;
    Rounder<double> r;
    explicit WideArithmetic(const Spec& s) : r(make_rounder<double>(s, nearest_even, infinity)) {}
    CFP_MEMBER float product(float a, float b, i32&) const {
        return static_cast<float>(round<nearest_even>(static_cast<double>(a) * static_cast<double>(b), r, 0));
    }
    CFP_MEMBER float sum(float a, float b, i32&) const {
        const double exact = add_to_odd(static_cast<double>(a), static_cast<double>(b));
        return static_cast<float>(round<nearest_even>(exact, r, 0));
    }
    bool trusted(i32) const { return true; }
};

// For formats without a sign, whose sums are never negative.
struct UnsignedArithmetic : WideArithmetic {
    explicit UnsignedArithmetic(const Spec& s) : WideArithmetic(s) {}
    CFP_MEMBER float product(float a, float b, i32& seen) const { return settle(WideArithmetic::product(a, b, seen), r); }
    CFP_MEMBER float sum(float a, float b, i32& seen) const { return settle(WideArithmetic::sum(a, b, seen), r); }
};

// Multiplies one row of a by a panel of b, which gives 64 results. Returns false if they may be wrong.
template <class Arithmetic>
bool one_row(const float* a, const float* b_Kx64, float* out, int64_t K, const Arithmetic& arithmetic) {
    typename Arithmetic::Value acc[panel] = {};
    typename Arithmetic::Seen seen[panel] = {};
    for (int64_t k = 0; k < K; ++k)
        for (int j = 0; j < panel; ++j)
            acc[j] = arithmetic.sum(acc[j], arithmetic.product(a[k], b_Kx64[k * panel + j], seen[j]), seen[j]);
    typename Arithmetic::Seen largest = 0;
    for (int j = 0; j < panel; ++j) {
        out[j] = canonical(static_cast<float>(acc[j]));
        largest = largest > seen[j] ? largest : seen[j];
    }
    return arithmetic.trusted(largest);
}

template <class Arithmetic>
bool one_row_kahan(const float* a, const float* b_Kx64, float* out, int64_t K, const Arithmetic& arithmetic) {
    typedef typename Arithmetic::Value Value;
    typedef typename Arithmetic::Seen Seen;
    typedef Bits<Value> B;
    Value acc[panel] = {}, c[panel] = {};
    Seen seen[panel] = {};
    for (int64_t k = 0; k < K; ++k)
        for (int j = 0; j < panel; ++j) {
            Seen largest = seen[j];
            const Value old = acc[j];
            const Value term = arithmetic.product(a[k], b_Kx64[k * panel + j], largest);
            const Value y = arithmetic.sum(term, -c[j], largest);
            const Value t = arithmetic.sum(old, y, largest);
            const Value lost = arithmetic.sum(arithmetic.sum(t, -old, largest), -y, largest);
            const typename B::U finite = static_cast<typename B::I>(to_bits(t) & ~B::sign) <
                                         static_cast<typename B::I>(B::infinity);
            acc[j] = t;
            c[j] = from_bits(to_bits(lost) & (typename B::U(0) - finite));
            seen[j] = largest;
        }
    typename Arithmetic::Seen largest = 0;
    for (int j = 0; j < panel; ++j) {
        out[j] = canonical(static_cast<float>(acc[j]));
        largest = largest > seen[j] ? largest : seen[j];
    }
    return arithmetic.trusted(largest);
}

// Multiplies `count` (1 or rows_per_pass) rows of a by a panel. Returns false if the results may be wrong.
inline bool fast_rows(const float* a, const ValueRange& columns, int count, const float* b_Kx64, float* out, int64_t K,
                       const NearMatmul& fast) {
    NearMethod method, other;
    if (!fast.takes(value_range(a, K), columns, K, method)) return false;
    if (count == 1) return near_rows_of<1>(method, a, b_Kx64, out, K, fast);
    if (!fast.takes(value_range(a + K, K), columns, K, other)) return false;
    if (method == other) return near_rows_of<rows_per_pass>(method, a, b_Kx64, out, K, fast);
    return near_rows_of<1>(method, a, b_Kx64, out, K, fast) && near_rows_of<1>(other, a + K, b_Kx64, out + panel, K, fast);
}

// Multiplies rows begin to end - 1 of a (MxK) by b (KxN). `buffer` has room for K * 64 values. `fast` is tried first if
// it is not null, and then `first`. `second` is always correct.
template <class First, class Second>
void matmul_rows(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                 bool kahan, bool has_negative_zero, float* buffer, const First& first, const Second& second,
                 const NearMatmul* fast) {
    float rows[rows_per_pass * panel];
    for (int64_t column = 0; column < N; column += panel) {
        const size_t width = static_cast<size_t>(N - column < panel ? N - column : panel);
        for (int64_t k = 0; k < K; ++k) {
            std::memset(buffer + k * panel, 0, panel * sizeof(float));
            std::memcpy(buffer + k * panel, b + k * N + column, width * sizeof(float));
        }
        const ValueRange range = fast ? value_range(buffer, K * panel) : ValueRange();
        for (int64_t i = begin; i < end;) {
            const float* a_row = a + i * K;
            const int count = end - i < rows_per_pass ? 1 : rows_per_pass;
            if (fast && fast_rows(a_row, range, count, buffer, rows, K, *fast)) {
            } else {
                for (int r = 0; r < count; ++r) {
                    const float* at = a_row + r * K;
                    float* row = rows + r * panel;
                    if (kahan)
                        one_row_kahan(at, buffer, row, K, first) || one_row_kahan(at, buffer, row, K, second);
                    else
                        one_row(at, buffer, row, K, first) || one_row(at, buffer, row, K, second);
                }
            }
            if (!has_negative_zero)
                for (float& value : rows) value += 0.0f;
            for (int r = 0; r < count; ++r)
                std::memcpy(out + (i + r) * N + column, rows + r * panel, width * sizeof(float));
            i += count;
        }
    }
}

void matmul_range(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                  const Rule& rule, bool kahan, float* buffer) {
    const Spec spec = unpack_spec(rule.spec);
    std::optional<NearMatmul> fast;
    if (has_fma && !kahan && spec.is_plain && NearRounder::allowed(spec))
        fast.emplace(spec, make_near_rounder(spec, infinity));
    const auto run = [&](const auto& first, const auto& second) {
        matmul_rows(a, b, out, begin, end, K, N, kahan, spec.is_plain, buffer, first, second, fast ? &*fast : nullptr);
    };
    if (!spec.is_signed)
        run(UnsignedArithmetic(spec), UnsignedArithmetic(spec));
    else if (spec.exponent_bits == 8 && spec.mantissa_bits == 23)
        run(Float32Arithmetic(), Float32Arithmetic());
    else if (has_fma && NearRounder::allowed(spec))
        run(NearArithmetic(spec), WideArithmetic(spec));
    else
        run(WideNearArithmetic(spec), WideArithmetic(spec));
}

}  // namespace
}  // namespace custom_fp
