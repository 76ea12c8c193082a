// Terms added one by one or in trees, 64 results side by side: dot.h's Dot, of a strip of columns at a time.
#pragma once

#include "accumulators/cpu_quick.h"
#include "accumulators/kernels.h"
#include "cpu/fp_environment.h"

namespace custom_fp {
namespace {

// Float32 itself, to nearest: the processor's own.
struct FloatSums : Quick<FloatLanes, 4> {
    static constexpr int direction = FE_TONEAREST;
    static bool allowed(const Summing& s) {
        constexpr u32 float32 = 23 << 8 | 8;
        return s.mode == nearest_even && s.overflow == infinity && s.sum == s.product && (s.sum & 0xffff) == float32;
    }
    explicit FloatSums(const Summing& s) : Quick(s) {}
    bool takes(const Facts&, const Facts&) const { return true; }
    bool trusted() const { return true; }
    static CFP_MEMBER Value product(float a, const float* b, u64, u32) {
        Value out;
        for (int i = 0; i < 4; ++i) out.v[i] = a * load<FloatLanes>(b + i * width);
        return out;
    }
    static CFP_MEMBER Value sum(const Value& a, const Value& b, u64, u32) {
        Value out;
        for (int i = 0; i < 4; ++i) out.v[i] = a.v[i] + b.v[i];
        return out;
    }
    static CFP_MEMBER Value round_again(const Value& x, u64, u32) { return x; }  // a product, which is rounded already
    static CFP_MEMBER Value where_finite(const Value& t, Value x) {
        for (int i = 0; i < 4; ++i)
            x.v[i] = (FloatLanes)((IntLanes)x.v[i] & (IntLanes)(((UintLanes)t.v[i] & 0x7f800000u) != 0x7f800000u));
        return x;
    }
};

// Any formats and rounding.
template <Mode mode> class GeneralSums {
    const Rounder<double> sum_, product_;
    const bool exact_;
    const u64 seed_;
    const u32 mask_;

public:
    static constexpr int columns = panel, direction = FE_TONEAREST;
    struct Value {
        double at[panel];
    };

    static bool allowed(const Summing&) { return true; }
    explicit GeneralSums(const Summing& s)
        : sum_(overflowing_rounder<double>(s.sum, s.mode, s.overflow)),
          product_(overflowing_rounder<double>(s.product ? s.product : s.sum, s.mode, s.overflow)),
          exact_(s.product == 0), seed_(s.seed), mask_(s.mask) {}
    void begin() {}
    void seen(const GeneralSums&) {}
    bool takes(const Facts&, const Facts&) const { return true; }
    bool trusted() const { return true; }

    CFP_MEMBER Value product(float a, const float* b, u64 element, u32 stream) const {
        Value out;
        for (int j = 0; j < panel; ++j) out.at[j] = static_cast<double>(a) * static_cast<double>(b[j]);
        return exact_ ? out : rounded(out, product_, element, stream);
    }
    CFP_MEMBER Value sum(const Value& a, const Value& b, u64 element, u32 stream) const {
        Value out;
        for (int j = 0; j < panel; ++j) out.at[j] = add_to_odd(a.at[j], b.at[j]);
        return rounded(out, sum_, element, stream);
    }
    CFP_MEMBER Value round_again(const Value& x, u64 element, u32 stream) const { return rounded(x, sum_, element, stream); }

    static CFP_MEMBER Value zero() { return Value{}; }
    static CFP_MEMBER Value negative(Value x) {
        for (double& v : x.at) v = -v;
        return x;
    }
    static CFP_MEMBER Value where_finite(const Value& t, Value x) {
        for (int j = 0; j < panel; ++j) x.at[j] = is_finite(t.at[j]) ? x.at[j] : 0.0;
        return x;
    }
    static CFP_MEMBER void store(const Value& x, double* to) { std::memcpy(to, x.at, sizeof x.at); }

private:
    CFP_MEMBER Value rounded(Value x, const Rounder<double>& r, u64 element, u32 stream) const {
        u32 random[panel] = {};
        if (mode == stochastic) random_panel(random, element, stream, seed_, mask_);
        for (int j = 0; j < panel; ++j) x.at[j] = round<mode>(x.at[j], r, random[j]);
        return x;
    }
};

// Whether terms are added one by one or in trees.
inline bool goes_in_panels(const Summing& s) {
    return s.width < 0 && (s.order == pairwise || (s.order == sequential && s.block == 1));
}

template <class Sums> class PanelRows {
    typedef typename Sums::Value Value;
    const Summing& s_;
    Sums sums_;
    const Rounder<double> total_;
    // of the strip at work
    const float *a_ = nullptr, *b_ = nullptr;
    u64 element_ = 0;
    u32 rounded_ = 0;
    Value waiting_[40];

public:
    static bool allowed(const Summing& s) { return goes_in_panels(s) && Sums::allowed(s); }

    explicit PanelRows(const Summing& s)
        : s_(s), sums_(s), total_(make_rounder<double>(unpack_spec(s.total), nearest_even, infinity)) {}

    bool takes(const Facts& a, const Facts& b) const { return sums_.takes(a, b); }

    // 64 results of a row, the first of which is `element` among random words; false where they cannot be trusted.
    bool row(const float* a, const float* b_Kx64, float* out, int64_t depth, u64 element) {
        sums_.begin();
        for (int j = 0; j < panel; j += Sums::columns) {
            a_ = a, b_ = b_Kx64 + j, element_ = element + static_cast<u64>(j), rounded_ = 0;
            strip(out + j, depth);
        }
        return sums_.trusted();
    }

private:
    void strip(float* out, int64_t depth) {
        double acc[Sums::columns], total[Sums::columns] = {};
        const int64_t chunk = s_.chunk ? s_.chunk : depth > 0 ? depth : 1;
        for (int64_t begin = 0; begin < depth; begin += chunk) {
            const int64_t end = depth - begin < chunk ? depth : begin + chunk;
            if (Sums::direction == FE_TONEAREST) {
                segment(begin, end, acc);
            } else {
                const RoundingDirection direction(Sums::direction);
                segment(begin, end, acc);
            }
            if (!s_.chunk)
                std::memcpy(total, acc, sizeof total);
            else
                for (int j = 0; j < Sums::columns; ++j)
                    total[j] = round<nearest_even>(add_to_odd(total[j], acc[j]), total_, 0);
        }
        for (int j = 0; j < Sums::columns; ++j) out[j] = canonical(static_cast<float>(total[j]));
    }

    CFP_MEMBER Value term(Sums& sums, int64_t k) { return sums.product(a_[k], b_ + k * panel, element_, static_cast<u32>(2 * k)); }
    CFP_MEMBER Value add(Sums& sums, const Value& a, const Value& b) { return sums.sum(a, b, element_, 2 * rounded_++ + 1); }

    __attribute__((noinline)) void segment(int64_t begin, int64_t end, double* out) {
        Sums sums = sums_;  // in registers meanwhile
        if (s_.order == pairwise && s_.block == 1)
            Sums::store(tree(sums, begin, end), out);
        else if (s_.order == pairwise)
            Sums::store(trees(sums, begin, end), out);
        else
            Sums::store(s_.kahan ? compensated(sums, begin, end) : one_by_one(sums, begin, end), out);
        sums_.seen(sums);
    }

    CFP_MEMBER Value one_by_one(Sums& sums, int64_t begin, int64_t end) {
        Value acc = Sums::zero();
        for (int64_t k = begin; k < end; ++k) acc = add(sums, acc, term(sums, k));
        return acc;
    }

    CFP_MEMBER Value trees(Sums& sums, int64_t begin, int64_t end) {
        Value acc = Sums::zero();
        for (int64_t first = begin; first < end; first += s_.block)
            acc = add(sums, acc, tree(sums, first, end - first < s_.block ? end : first + s_.block));
        return acc;
    }

    CFP_MEMBER Value tree(Sums& sums, int64_t begin, int64_t end) {
        int count = 0;
        for (int64_t k = begin; k < end; ++k) {
            Value x = term(sums, k);
            for (int64_t n = k - begin; n & 1; n >>= 1) x = add(sums, waiting_[--count], x);
            waiting_[count++] = x;
        }
        Value x = waiting_[--count];
        if (end - begin == 1) return sums.round_again(x, element_, 2 * rounded_++ + 1);
        while (count) x = add(sums, waiting_[--count], x);
        return x;
    }

    CFP_MEMBER Value compensated(Sums& sums, int64_t begin, int64_t end) {
        Value acc = Sums::zero(), c = Sums::zero();
        for (int64_t k = begin; k < end; ++k) {
            const Value y = add(sums, term(sums, k), Sums::negative(c));
            const Value t = add(sums, acc, y);
            const Value gained = add(sums, t, Sums::negative(acc));
            c = Sums::where_finite(t, add(sums, gained, Sums::negative(y)));
            acc = t;
        }
        return acc;
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
