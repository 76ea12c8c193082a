// Terms added one by one or in trees, 64 results side by side: dot.h's Dot, with loops over columns that compilers
// vectorise.
#pragma once

#include "cpu/facts.h"
#include "accumulators/kernels.h"
#include "cpu/philox.h"

namespace custom_fp {
namespace {

// Float32 itself, to nearest: the processor's own.
struct FloatSums {
    typedef float Value;
    static bool allowed(const Summing& s) {
        constexpr u32 float32 = 23 << 8 | 8;
        return s.mode == nearest_even && s.overflow == infinity && s.sum == s.product && (s.sum & 0xffff) == float32;
    }
    explicit FloatSums(const Summing&) {}
    CFP_MEMBER void product(float a, const float* b, float* out, u64, u32) const {
        for (int j = 0; j < panel; ++j) out[j] = a * b[j];
    }
    CFP_MEMBER void sum(const float* a, const float* b, float* out, u64, u32) const {
        float sums[panel];  // out may be a or b
        for (int j = 0; j < panel; ++j) sums[j] = a[j] + b[j];
        std::memcpy(out, sums, sizeof sums);
    }
    CFP_MEMBER void round_again(float*, u64, u32) const {}  // of one product alone, which is rounded already
};

// Any formats and rounding.
template <Mode mode> struct GeneralSums {
    typedef double Value;
    const Rounder<double> sum_, product_;
    const bool exact_;
    const u64 seed_;
    const u32 mask_;

    explicit GeneralSums(const Summing& s)
        : sum_(overflowing_rounder<double>(s.sum, s.mode, s.overflow)),
          product_(overflowing_rounder<double>(s.product ? s.product : s.sum, s.mode, s.overflow)),
          exact_(s.product == 0), seed_(s.seed), mask_(s.mask) {}

    CFP_MEMBER void product(float a, const float* b, double* out, u64 element, u32 stream) const {
        for (int j = 0; j < panel; ++j) out[j] = static_cast<double>(a) * static_cast<double>(b[j]);
        if (!exact_) round_all(out, product_, element, stream);
    }
    CFP_MEMBER void sum(const double* a, const double* b, double* out, u64 element, u32 stream) const {
        double sums[panel];  // out may be a or b
        for (int j = 0; j < panel; ++j) sums[j] = add_to_odd(a[j], b[j]);
        round_all(sums, sum_, element, stream);
        std::memcpy(out, sums, sizeof sums);
    }
    CFP_MEMBER void round_again(double* x, u64 element, u32 stream) const { round_all(x, sum_, element, stream); }

private:
    // Columns are half a group of random words, whose first element is a multiple of 128.
    CFP_MEMBER void round_all(double* x, const Rounder<double>& r, u64 element, u32 stream) const {
        u32 random[panel] = {};
        if (mode == stochastic) {
            u32 upper[group], lower[group];
            const u64 first = element / group * group, skip = element - first;
            fill_half(upper, first, stream, 0, seed_, mask_);
            fill_half(lower, first, stream, 1, seed_, mask_);
            join_halves(upper, lower, mask_);
            for (int j = 0; j < panel; ++j) random[j] = upper[skip + j];
        }
        for (int j = 0; j < panel; ++j) x[j] = round<mode>(x[j], r, random[j]);
    }
};

template <class Sums> class PanelRows {
    typedef typename Sums::Value Value;
    const Summing& s_;
    const Sums sums_;
    const Rounder<double> total_;
    // of the row at work
    const float *a_ = nullptr, *b_ = nullptr;
    u64 element_ = 0;
    u32 rounded_ = 0;
    Value waiting_[40][panel];

public:
    static bool allowed(const Summing& s) {
        return s.width < 0 && (s.order == pairwise || (s.order == sequential && s.block == 1));
    }

    explicit PanelRows(const Summing& s)
        : s_(s), sums_(s), total_(make_rounder<double>(unpack_spec(s.total), nearest_even, infinity)) {}

    // 64 results of a row, the first of which is `element` among random words
    void row(const float* a, const float* b_Kx64, float* out, int64_t depth, u64 element) {
        a_ = a, b_ = b_Kx64, element_ = element, rounded_ = 0;
        Value acc[panel];
        const int64_t chunk = s_.chunk ? s_.chunk : depth > 0 ? depth : 1;
        double total[panel] = {};
        for (int64_t begin = 0; begin < depth; begin += chunk) {
            segment(begin, depth - begin < chunk ? depth : begin + chunk, acc);
            if (!s_.chunk) {
                for (int j = 0; j < panel; ++j) total[j] = static_cast<double>(acc[j]);
                continue;
            }
            for (int j = 0; j < panel; ++j)
                total[j] = round<nearest_even>(add_to_odd(total[j], static_cast<double>(acc[j])), total_, 0);
        }
        for (int j = 0; j < panel; ++j) out[j] = canonical(static_cast<float>(total[j]));
    }

private:
    void term(int64_t k, Value* out) { sums_.product(a_[k], b_ + k * panel, out, element_, static_cast<u32>(2 * k)); }
    void add(const Value* a, const Value* b, Value* out) { sums_.sum(a, b, out, element_, 2 * rounded_++ + 1); }

    void segment(int64_t begin, int64_t end, Value* acc) {
        if (s_.order == pairwise && s_.block == 1) return tree(begin, end, acc);
        for (int j = 0; j < panel; ++j) acc[j] = 0;
        if (s_.kahan) return compensated(begin, end, acc);
        Value next[panel];
        for (int64_t first = begin; first < end; first += s_.block) {
            if (s_.order == pairwise)
                tree(first, end - first < s_.block ? end : first + s_.block, next);
            else
                term(first, next);
            add(acc, next, acc);
        }
    }

    void tree(int64_t begin, int64_t end, Value* out) {
        int count = 0;
        for (int64_t k = begin; k < end; ++k) {
            term(k, waiting_[count++]);
            for (int64_t n = k - begin; n & 1; n >>= 1) merge(count);
        }
        if (end - begin == 1) sums_.round_again(waiting_[0], element_, 2 * rounded_++ + 1);
        while (count > 1) merge(count);
        for (int j = 0; j < panel; ++j) out[j] = waiting_[0][j];
    }

    void merge(int& count) {
        --count;
        add(waiting_[count - 1], waiting_[count], waiting_[count - 1]);
    }

    void compensated(int64_t begin, int64_t end, Value* acc) {
        Value c[panel] = {}, y[panel], t[panel], lost[panel];
        for (int64_t k = begin; k < end; ++k) {
            term(k, y);
            for (int j = 0; j < panel; ++j) c[j] = -c[j];
            add(y, c, y);
            add(acc, y, t);
            for (int j = 0; j < panel; ++j) acc[j] = -acc[j], y[j] = -y[j];
            add(t, acc, lost);
            add(lost, y, c);
            for (int j = 0; j < panel; ++j) {
                acc[j] = t[j];
                c[j] = is_finite(static_cast<double>(t[j])) ? c[j] : Value(0);
            }
        }
    }
};

// Exact products added to float32 to nearest: fused multiply-adds, where the processor has them.
CFP_FN bool fused_row(const Summing& s, const float* a, const float* b_Kx64, float* out, int64_t depth) {
#if defined(__FMA__) || defined(__aarch64__)
    constexpr u32 float32 = 23 << 8 | 8;
    const bool takes = s.order == sequential && s.block == 1 && s.width < 0 && s.product == 0 && !s.kahan && !s.chunk &&
                       s.mode == nearest_even && s.overflow == infinity && (s.sum & 0xffff) == float32;
    if (!takes) return false;
    float acc[panel] = {};
    for (int64_t k = 0; k < depth; ++k)
        for (int j = 0; j < panel; ++j) acc[j] = fused_multiply_add(a[k], b_Kx64[k * panel + j], acc[j]);
    for (int j = 0; j < panel; ++j) out[j] = canonical(acc[j]);
    return true;
#else
    return false;
#endif
}

}  // namespace
}  // namespace custom_fp
