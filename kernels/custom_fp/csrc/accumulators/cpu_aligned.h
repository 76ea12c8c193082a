// Sums of aligned products: the products of a block are aligned to their largest exponent, truncated, and added to the
// partial sum. This file computes 64 results of a row at a time, in float64, with the same bits as dot.h. Unlike
// cpu_blocks.h, it also handles scales, groups, and `join`, which aligns the terms and the partial sum separately (see
// Summing in dot.h).
//
// A product of two float32 values is exact in float64. It is multiplied by a power of two, so that the last digit that is
// kept has the value 1, and then truncated to an integer. Sums of these integers are exact if they are below 2^53, which
// `row` checks.
#pragma once

#include <vector>

#include "accumulators/cpu_panel.h"

namespace custom_fp {
namespace {

CFP_FN DoubleLanes truncated(DoubleLanes x) {
#if defined(__AVX512F__)
    return (DoubleLanes)_mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (DoubleLanes)_mm256_round_pd((__m256d)x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
#else
    for (int i = 0; i < lanes / 2; ++i) x[i] = __builtin_trunc(x[i]);
    return x;
#endif
}

template <Mode mode> class AlignedPanel {
    static constexpr int width = lanes / 2, vectors = 4, columns = vectors * width;  // the columns that are computed together
    struct Strip {
        DoubleLanes v[vectors];
    };

    const Summing& s_;
    const Quantizer<mode> sum_;
    const Quantizer<nearest_even> total_;
    const int emin_;
    const bool is_float32_;  // whether a cast rounds a sum
    std::vector<double> a_, b_;
    std::vector<i32> a_exponents_, b_exponents_;  // the exponents by which factors are aligned
    int a_excess_ = 0, b_excess_ = 0;              // see `prepare`
    bool has_columns_ = false;

public:
    static bool allowed(const Summing& s) {
        return s.order == sequential && s.width >= 0 && s.width <= 40 && s.block <= 256 && s.mode != stochastic && !s.flush;
    }
    explicit AlignedPanel(const Summing& s)
        : s_(s), sum_(make_quantizer<mode>(s, s.sum, s.sum_table)), total_(quantizer_of_total(s)),
          emin_(unpack_spec(s.sum).emin),
          is_float32_(mode == nearest_even && s.overflow == infinity && is_usual_sum(s) && (s.sum & 0xffff) == float32) {}

    void new_columns() { has_columns_ = false; }

    // Whether the ranges of the factors allow this path. With `join`, a product past float32's range is infinite.
    bool takes(const ValueRange& a, const ValueRange& b) const {
        return a.finite && b.finite && (!s_.join || a.most + b.most + 2 <= 128);
    }

    // Computes 64 results of a row, of which the first `count` are needed. Returns false if the results may be wrong.
    bool row(const float* a, const float* b_Kx64, float* out, int64_t depth, const Scales& scales, int64_t count) {
        if (!has_columns_) {
            b_excess_ = prepare(b_, b_exponents_, b_Kx64, depth, panel, s_.emin_b, [&](int64_t k, int64_t j) {
                return scales.a && j < count ? scales.b[k / s_.scales * scales.b_step + j] : 0;
            });
            has_columns_ = true;
        }
        a_excess_ = prepare(a_, a_exponents_, a, depth, 1, s_.emin_a,
                            [&](int64_t k, int64_t) { return scales.a ? scales.a[k / s_.scales] : 0; });
        // A product is below 2^(width + 2), or more in groups. There are `block` products, a partial sum, and a sign. With
        // `join`, the sum gets more digits if that is larger than the width.
        int digits = larger(s_.width, s_.join) + 2 + a_excess_ + b_excess_ + 1;
        for (int n = s_.block; n > 0; n >>= 1) ++digits;
        if (digits > 53) return false;
        for (int j = 0; j < panel; j += columns)
            if (!strip(out + j, j, depth)) return false;
        return true;
    }

private:
    static bool is_usual_sum(const Summing& s) { return !s.sum_table && unpack_spec(s.sum).is_plain; }

    // Converts factors to doubles, and computes the exponents by which they are aligned. Returns the largest amount by
    // which the exponent of a factor exceeds that. Without groups this is 0. Groups are aligned by their scales.
    template <class Scale>
    int prepare(std::vector<double>& to, std::vector<i32>& exponents, const float* x, int64_t depth, int64_t n, int emin,
                const Scale& scale) const {
        to.resize(static_cast<size_t>(depth * n));
        exponents.resize(static_cast<size_t>(depth * n));
        int excess = 0;
        for (int64_t k = 0; k < depth; ++k)
            for (int64_t j = 0; j < n; ++j) {
                const int of_scale = scale(k, j);
                const double value = static_cast<double>(x[k * n + j]);
                const int exponent = aligned_exponent(value, emin + of_scale, zero_exponent + of_scale);
                to[static_cast<size_t>(k * n + j)] = value;
                exponents[static_cast<size_t>(k * n + j)] = s_.group > 1 ? of_scale : exponent;
                if (s_.group > 1 && value != 0) excess = larger(excess, exponent - of_scale);
            }
        return excess;
    }
    static CFP_MEMBER int aligned_exponent(double x, int least, int of_zero) {
        const u64 magnitude = to_bits(x) & ~Bits<double>::sign;
        return magnitude ? larger(static_cast<int>(magnitude >> 52) - 1023, least) : of_zero;
    }

    // Computes the results of `columns` columns. Returns false if the results may be wrong.
    bool strip(float* out, int column, int64_t depth) {
        double acc[columns], total[columns] = {};
        const int64_t chunk = s_.chunk ? s_.chunk : depth > 0 ? depth : 1;
        for (int64_t begin = 0; begin < depth; begin += chunk) {
            const int64_t end = depth - begin < chunk ? depth : begin + chunk;
            for (double& x : acc) x = 0;
            for (int64_t first = begin; first < end; first += s_.block) {
                const int64_t last = end - first < s_.block ? end : first + s_.block;
                if (s_.join)
                    joined(acc, column, first, last);
                else
                    together(acc, column, first, last);
                if (!round_sums(acc)) return false;
            }
            if (s_.chunk)
                add_to_totals<columns>(total, acc, total_);
            else
                std::memcpy(total, acc, sizeof total);
        }
        for (int j = 0; j < columns; ++j) out[j] = canonical(static_cast<float>(total[j]));
        return true;
    }

    // Rounds the sums of a block, and makes -0 positive. Returns false if a sum is infinite, because the next block would
    // need special cases.
    bool round_sums(double* acc) const {
        if (is_float32_)
            for (int j = 0; j < columns; ++j) acc[j] = static_cast<double>(static_cast<float>(acc[j]));
        else
            round_columns<columns>(acc, sum_, is_usual_sum(s_));
        for (int j = 0; j < columns; ++j) acc[j] += 0.0;
        return all_finite<columns>(acc);
    }

    // Raises `largest` to the largest exponent of every step-th product.
    CFP_MEMBER void find_largest(int* largest, int column, int64_t begin, int64_t end, int64_t step) const {
        for (int64_t k = begin; k < end; k += step) {
            const i32 x = a_exponents_[static_cast<size_t>(k)], *y = b_exponents_.data() + k * panel + column;
            for (int j = 0; j < columns; ++j) largest[j] = larger(largest[j], x + y[j]);
        }
    }
    static CFP_MEMBER void load_powers(Strip& to, const int* exponents, int sign, int plus) {
        double powers[columns];
        for (int j = 0; j < columns; ++j) powers[j] = power_of_two<double>(sign * exponents[j] + plus);
        std::memcpy(&to, powers, sizeof to);
    }
    // Multiplies every step-th product by the power of two of its column, truncates it, and adds it to the sum.
    CFP_MEMBER void add_products(Strip& sum, const Strip& power, int column, int64_t begin, int64_t end, int64_t step) const {
        const double* b = b_.data() + column;
        for (int64_t k = begin; k < end; k += step) {
            const DoubleLanes x = a_[static_cast<size_t>(k)] - DoubleLanes{};
            for (int i = 0; i < vectors; ++i) {
                DoubleLanes y;
                std::memcpy(&y, b + k * panel + i * width, sizeof y);
                sum.v[i] += truncated(x * y * power.v[i]);
            }
        }
    }

    // Aligns acc and the terms by the same exponent and adds them, as in dot.h.
    __attribute__((noinline)) void together(double* acc, int column, int64_t begin, int64_t end) const {
        int largest[columns];
        for (int j = 0; j < columns; ++j) largest[j] = aligned_exponent(acc[j], emin_, zero_exponent);
        find_largest(largest, column, begin, end, s_.group);
        Strip power, sum, unit;
        load_powers(power, largest, -1, s_.width);
        load_powers(unit, largest, 1, -s_.width);
        std::memcpy(&sum, acc, sizeof sum);
        for (int i = 0; i < vectors; ++i) sum.v[i] = truncated(sum.v[i] * power.v[i]);
        if (s_.group == 1) {
            add_products(sum, power, column, begin, end, 1);
        } else {
            for (int64_t first = begin; first < end; first += s_.group) {
                int exact[columns];
                for (int j = 0; j < columns; ++j)
                    exact[j] = a_exponents_[static_cast<size_t>(first)] + b_exponents_[static_cast<size_t>(first * panel + column + j)];
                Strip digits, back, group = {};
                load_powers(digits, exact, -1, group_digits);
                load_powers(back, exact, 1, -group_digits);
                add_products(group, digits, column, first, end - first < s_.group ? end : first + s_.group, 1);
                for (int i = 0; i < vectors; ++i) sum.v[i] += truncated(group.v[i] * back.v[i] * power.v[i]);
            }
        }
        for (int i = 0; i < vectors; ++i) sum.v[i] *= unit.v[i];
        std::memcpy(acc, &sum, sizeof sum);
    }

    // Aligns and adds the terms, and then aligns and adds their sum and acc, by another exponent, as in dot.h. The second
    // step rounds down instead of toward zero.
    __attribute__((noinline)) void joined(double* acc, int column, int64_t begin, int64_t end) const {
        int top[columns];
        for (int& e : top) e = 2 * zero_exponent;
        find_largest(top, column, begin, end, 1);
        double sum[columns] = {};
        for (int64_t first = begin; first < begin + s_.split && first < end; ++first) {
            int largest[columns];
            for (int& e : largest) e = 2 * zero_exponent;
            find_largest(largest, column, first, end, s_.split);
            Strip power, part = {};
            load_powers(power, largest, -1, s_.width);
            add_products(part, power, column, first, end, s_.split);
            double parts[columns];
            std::memcpy(parts, &part, sizeof parts);
            for (int j = 0; j < columns; ++j) sum[j] += __builtin_floor(parts[j] * power_of_two<double>(largest[j] - top[j]));
        }
        for (int j = 0; j < columns; ++j) {
            const int exponent = aligned_exponent(acc[j], emin_, zero_exponent), largest = larger(top[j], exponent);
            const int unit = largest - s_.join, last = largest - s_.join_acc;
            double x = __builtin_floor(sum[j] * power_of_two<double>(top[j] - s_.width - unit));
            if (s_.split == 1 || exponent >= last - 1)
                x += __builtin_floor(acc[j] * power_of_two<double>(-last)) * power_of_two<double>(last - unit);
            acc[j] = x * power_of_two<double>(unit);
        }
    }
};

}  // namespace
}  // namespace custom_fp
