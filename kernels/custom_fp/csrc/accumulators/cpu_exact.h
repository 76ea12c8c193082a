// Exact sums, 64 results side by side: where products and sums are whole multiples of one power of two and few enough,
// float64 holds them all (53 bits), or 64-bit integers do. dot.h sums the others in ten words.
#pragma once

#include <vector>

#include "cpu/facts.h"
#include "accumulators/dot.h"

namespace custom_fp {
namespace {

template <Mode mode> class ExactRows {
    const Summing& s_;
    const Quantizer<mode> sum_;
    const Quantizer<nearest_even> total_;
    const int64_t depth_;
    Facts columns_;
    std::vector<double> b_;  // the panel, widened

public:
    // Of whole sums, and of blocks with the partial sum, which draw nothing here. A table's values need not be multiples of
    // what the products are.
    static bool allowed(const Summing& s) {
        const bool blocks = s.order == sequential && s.block > 1;
        if (s.flush || (blocks && !is_usual(s))) return false;
        return s.product == 0 && s.width < 0 && s.mode != stochastic && (s.order == exact_order || blocks);
    }

    ExactRows(const Summing& s, int64_t depth)
        : s_(s), sum_(make_quantizer<mode>(s, s.sum, s.sum_table)), total_(quantizer_of_total(s)), depth_(depth), b_(static_cast<size_t>(depth) * panel) {}

    void columns(const float* b_Kx64) {
        columns_ = facts_of(b_Kx64, depth_ * panel);
        for (int64_t i = 0; i < depth_ * panel; ++i) b_[i] = static_cast<double>(b_Kx64[i]);
    }

    bool row(const float* a, float* out) const {
        const Facts facts = facts_of(a, depth_);
        if (!facts.finite || !columns_.finite || facts.least < -126 || columns_.least < -126) return false;
        // The last digit of products, and of partial sums, which are multiples of it too; the first one of all of them.
        if (facts.least > 500 || columns_.least > 500) return sum<double>(a, out, 0);  // all zero
        const int last = facts.least + columns_.least - (facts.digits - 1) - (columns_.digits - 1);
        int first = facts.most + columns_.most + 4;  // a product is below 4, a rounded sum at most twice the sum
        for (int64_t n = depth_; n > 0; n >>= 1) ++first;
        if (first - last <= 53) return sum<double>(a, out, last);
        return first - last <= 62 && sum<int64_t>(a, out, last);
    }

private:
    // Whole: double or a 64-bit integer
    template <class Whole> bool sum(const float* a, float* out, int last) const {
        const double unit = power_of_two<double>(last), per_unit = power_of_two<double>(-last);
        const int64_t chunk = s_.chunk ? s_.chunk : depth_ > 0 ? depth_ : 1;
        double acc[panel] = {}, total[panel] = {};
        for (int64_t begin = 0; begin < depth_; begin += chunk) {
            const int64_t end = depth_ - begin < chunk ? depth_ : begin + chunk;
            const int64_t block = s_.order == exact_order ? end - begin : s_.block;
            for (int j = 0; j < panel; ++j) acc[j] = 0;
            for (int64_t first = begin; first < end; first += block) {
                const int64_t stop = end - first < block ? end : first + block;
                Whole whole[panel];
                for (int j = 0; j < panel; ++j) whole[j] = static_cast<Whole>(acc[j] * per_unit);
                for (int64_t k = first; k < stop; ++k) {
                    const double x = static_cast<double>(a[k]) * per_unit;
                    const double* b = b_.data() + k * panel;
                    for (int j = 0; j < panel; ++j) add_product(whole[j], x, b[j]);
                }
                round_all(whole, unit, acc);
                for (int j = 0; j < panel; ++j)
                    if (!is_finite(acc[j])) return false;
            }
            for (int j = 0; j < panel && s_.chunk; ++j)
                total[j] = total_(add_to_odd(total[j], acc[j]), 0);
        }
        for (int j = 0; j < panel; ++j) out[j] = canonical(static_cast<float>(s_.chunk ? total[j] : acc[j]));
        return true;
    }

    template <class Whole> void round_all(const Whole* whole, double unit, double* acc) const {
        if (is_usual(s_))  // in a loop that compilers vectorise
            for (int j = 0; j < panel; ++j) acc[j] = round<mode>(scaled(whole[j], unit), sum_.rounder, 0);
        else
            for (int j = 0; j < panel; ++j) acc[j] = sum_(scaled(whole[j], unit), 0);
    }

    static CFP_MEMBER void add_product(double& whole, double x, double y) {
#if defined(__FMA__) || defined(__aarch64__)
        whole = __builtin_fma(x, y, whole);  // nothing is rounded
#else
        whole += x * y;
#endif
    }
    static CFP_MEMBER void add_product(int64_t& whole, double x, double y) { whole += static_cast<int64_t>(x * y); }
    static double scaled(double whole, double unit) { return whole * unit; }
    static double scaled(int64_t whole, double unit) { return odd_double(whole, 0) * unit; }
};

}  // namespace
}  // namespace custom_fp
