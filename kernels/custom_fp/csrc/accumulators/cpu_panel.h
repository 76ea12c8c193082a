// Sums of terms one by one, in trees or in exact blocks. These are the same sums as in dot.h, but for 64 results of a
// row at a time.
//
// PanelRows implements the orders of summation. The arithmetic is in classes of sums. Such a class decides for which
// accumulators (`allowed`) and which factors (`takes`) it is correct, or whether it has been correct (`trusted`).
#pragma once

#include <type_traits>
#include <vector>

#include "accumulators/lane_sums.h"
#include "accumulators/kernels.h"
#include "cpu/fp_environment.h"

namespace custom_fp {
namespace {

constexpr u32 float32 = 23 << 8 | 8;  // the mantissa and exponent bits in the spec of float32

// Float32 arithmetic, rounded to nearest.
struct FloatSums : LaneSums<FloatLanes, 4> {
    static bool allowed(const Summing& s) {
        return is_usual(s) && adds_terms(s) && s.mode == nearest_even && s.overflow == infinity && s.sum == s.product &&
               (s.sum & 0xffff) == float32;
    }
    explicit FloatSums(const Summing& s) : LaneSums(s) {}
    bool takes(const ValueRange&, const ValueRange&, int64_t) const { return true; }
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
    static CFP_MEMBER Value round_again(const Value& x, u64, u32) { return x; }  // x is a product that is already rounded
    static CFP_MEMBER Value where_finite(const Value& t, Value x) {
        for (int i = 0; i < 4; ++i)
            x.v[i] = (FloatLanes)((IntLanes)x.v[i] & (IntLanes)(((UintLanes)t.v[i] & 0x7f800000u) != 0x7f800000u));
        return x;
    }
};

// Float32 arithmetic, rounded to nearest, in which subnormal factors, products and sums become zero.
struct FlushedSums : FloatSums {
    const float smallest_a_, smallest_b_;

    static bool allowed(const Summing& s) {
        Summing kept = s;
        kept.flush = 0;
        return s.flush && FloatSums::allowed(kept);
    }
    explicit FlushedSums(const Summing& s)
        : FloatSums(s), smallest_a_(power_of_two<float>(s.emin_a)), smallest_b_(power_of_two<float>(s.emin_b)) {}
    CFP_MEMBER Value product(float a, const float* b, u64, u32) const {
        const float x = magnitude_of(a) < smallest_a_ ? 0.0f : a;
        Value out;
        for (int i = 0; i < 4; ++i) {
            const FloatLanes y = load<FloatLanes>(b + i * width);
            const UintLanes is_zero = (UintLanes)((FloatLanes)((UintLanes)y & 0x7fffffffu) < smallest_b_);
            out.v[i] = flushed(x * (FloatLanes)((UintLanes)y & ~is_zero));
        }
        return out;
    }
    static CFP_MEMBER Value sum(const Value& a, const Value& b, u64, u32) {
        Value out;
        for (int i = 0; i < 4; ++i) out.v[i] = flushed(a.v[i] + b.v[i]);
        return out;
    }

private:
    static CFP_MEMBER FloatLanes flushed(FloatLanes x) {
        const UintLanes is_normal = (UintLanes)(((UintLanes)x & 0x7f800000u) != 0);
        return (FloatLanes)((UintLanes)x & (is_normal | 0x80000000u));
    }
};

// Exact products that are added to float32 sums, rounded to nearest: fused multiply-adds if the processor has them.
struct FusedSums : LaneSums<FloatLanes, 4> {
    static constexpr bool in_blocks = true;
    static bool allowed(const Summing& s) {
        return has_fma && is_usual(s) && s.order == sequential && s.block == 1 && s.width < 0 && s.product == 0 &&
               !s.kahan && s.mode == nearest_even && s.overflow == infinity && (s.sum & 0xffff) == float32;
    }
    explicit FusedSums(const Summing& s) : LaneSums(s) {}
    bool takes(const ValueRange&, const ValueRange&, int64_t) const { return true; }
    bool trusted() const { return true; }
    static CFP_MEMBER void add_product(Value& acc, float a, const float* b) {
        for (int i = 0; i < 4; ++i) acc.v[i] = multiply_add(a - FloatLanes{}, load<FloatLanes>(b + i * width), acc.v[i]);
    }
    static CFP_MEMBER void begin_block(Value&) {}
    static CFP_MEMBER void round_block(Value&) {}
};

// Rounds the sums of some columns. is_simple: the format has a sign and a -0, is not a table, and keeps subnormals. Then a
// loop that compilers vectorize is enough.
template <int columns, Mode mode> CFP_FN void round_columns(double* sum, const Quantizer<mode>& quantizer, bool is_simple) {
    if (is_simple)
        for (int j = 0; j < columns; ++j) sum[j] = round<mode>(sum[j], quantizer.rounder, 0);
    else
        for (int j = 0; j < columns; ++j) sum[j] = quantizer(sum[j], 0);
}

template <int columns> CFP_FN bool all_finite(const double* sum) {
    u64 infinite = 0;
    for (int j = 0; j < columns; ++j)
        infinite |= static_cast<u64>((to_bits(sum[j]) & Bits<double>::infinity) == Bits<double>::infinity);
    return !infinite;
}

// Adds the sums of a chunk to the totals, and rounds the totals.
template <int columns> CFP_FN void add_to_totals(double* total, const double* sum, const Quantizer<nearest_even>& quantizer) {
    for (int j = 0; j < columns; ++j) total[j] = add_to_odd(total[j], sum[j]);
    round_columns<columns>(total, quantizer, !quantizer.table);
}

// Exact sums, of whole rows or of blocks with the partial sum. If all products and sums are multiples of one power of
// two, and there are few enough digits, a double represents them. This works for any formats. The values of a table
// need not be multiples of the same power as the products, so only the last sum is rounded to a table.
//
// `wide` sums consist of two doubles. The first one starts as an anchor, which keeps it in one binade. A fused
// multiply-add then rounds the product to a multiple of that binade's ulp. The second double is the sum of the errors,
// which are exact.
template <Mode mode, bool wide> class ExactSums {
    static constexpr int vectors = wide ? 4 : 8, width = lanes / 2;
    const Quantizer<mode> quantizer_;
    const bool is_usual_;
    DoubleLanes anchor_ = {};
    bool finite_ = true;

public:
    static constexpr bool in_blocks = true;
    static constexpr int columns = vectors * width, direction = FE_TONEAREST;
    typedef double Factor;
    struct Value {
        DoubleLanes sum[vectors], error[wide ? vectors : 1];
    };

    static bool allowed(const Summing& s) {
        const bool blocks = s.order == sequential && s.block > 1 && is_usual(s);
        return !s.flush && s.product == 0 && s.width < 0 && s.mode != stochastic && (s.order == exact_order || blocks) &&
               (has_fma || !wide);
    }
    explicit ExactSums(const Summing& s)
        : quantizer_(make_quantizer<mode>(s, s.sum, s.sum_table)), is_usual_(is_usual(s)) {}
    void begin() { finite_ = true; }
    void seen(const ExactSums& by) { finite_ = by.finite_; }
    bool trusted() const { return finite_; }
    bool takes(const ValueRange& a, const ValueRange& b, int64_t depth) {
        if (!a.finite || !b.finite || a.least < -126 || b.least < -126) return false;
        if (a.least > 500 || b.least > 500) return !wide;  // all products are zero
        const int last = a.least + b.least - (a.digits - 1) - (b.digits - 1);
        int first = a.most + b.most + 4;  // a product is below 4 * 2^exponent, and a rounded sum is at most twice the sum
        int depth_bits = 1;
        for (int64_t n = depth; n > 0; n >>= 1) ++depth_bits;
        first += depth_bits;
        if (!wide) return first - last <= 53;
        const int ulp = last + 53 - depth_bits;  // the errors and their sum are multiples of 2^last, and below 2^53 such units
        anchor_ = 0x1.8p52 * power_of_two<double>(ulp) - DoubleLanes{};
        return first <= ulp + 51;
    }

    static CFP_MEMBER Value zero() { return Value{}; }
    static CFP_MEMBER void store(const Value& x, double* to) { std::memcpy(to, x.sum, sizeof x.sum); }
    CFP_MEMBER void begin_block(Value& acc) const {
        for (int i = 0; i < vectors && wide; ++i) {
            const DoubleLanes start = anchor_ + acc.sum[i];
            acc.error[i] = acc.sum[i] - (start - anchor_);
            acc.sum[i] = start;
        }
    }
    static CFP_MEMBER void add_product(Value& acc, float a, const double* b) {
        const DoubleLanes x = static_cast<double>(a) - DoubleLanes{};
        for (int i = 0; i < vectors; ++i) {
            DoubleLanes y;
            std::memcpy(&y, b + i * width, sizeof y);
            const DoubleLanes sum = multiply_add(x, y, acc.sum[i]);
            if (wide) acc.error[i] += multiply_add(x, y, acc.sum[i] - sum);
            acc.sum[i] = sum;
        }
    }
    void round_block(Value& acc) {
        double sum[columns], error[columns];
        for (int i = 0; i < vectors && wide; ++i) acc.sum[i] -= anchor_;
        std::memcpy(sum, acc.sum, sizeof sum);
        if (wide) {
            std::memcpy(error, acc.error, sizeof acc.error);
            for (int j = 0; j < columns; ++j) sum[j] = add_to_odd(sum[j], error[j]);
        }
        round_columns<columns>(sum, quantizer_, is_usual_);
        finite_ = finite_ && all_finite<columns>(sum);
        std::memcpy(acc.sum, sum, sizeof sum);
    }
};

// For any usual formats and any rounding mode.
template <Mode mode> class GeneralSums {
    const Rounder<double> sum_, product_;
    const bool exact_;
    const u64 seed_;
    const u32 mask_;

public:
    static constexpr bool in_blocks = false;
    static constexpr int columns = panel, direction = FE_TONEAREST;
    typedef float Factor;
    struct Value {
        double at[panel];
    };

    static bool allowed(const Summing& s) { return is_usual(s) && adds_terms(s); }
    explicit GeneralSums(const Summing& s)
        : sum_(overflowing_rounder<double>(s.sum, s.mode, s.overflow)),
          product_(overflowing_rounder<double>(s.product ? s.product : s.sum, s.mode, s.overflow)),
          exact_(s.product == 0), seed_(s.seed), mask_(s.mask) {}
    void begin() {}
    void seen(const GeneralSums&) {}
    bool takes(const ValueRange&, const ValueRange&, int64_t) const { return true; }
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
    // Not inlined, because it is long and is called in many places.
    __attribute__((noinline)) Value rounded(Value x, const Rounder<double>& r, u64 element, u32 stream) const {
        u32 random[panel] = {};
        if (mode == stochastic) random_panel(random, element, stream, seed_, mask_);
        for (int j = 0; j < panel; ++j) x.at[j] = round<mode>(x.at[j], r, random[j]);
        return x;
    }
};

template <class Sums> class PanelRows {
    typedef typename Sums::Value Value;
    typedef typename Sums::Factor Factor;
    const Summing& s_;
    Sums sums_;
    const Quantizer<nearest_even> total_;
    std::vector<Factor> widened_;
    const Factor* b_Kx64_ = nullptr;
    // These belong to the strip of columns that is being computed.
    const float* a_ = nullptr;
    const Factor* b_ = nullptr;
    u64 element_ = 0;
    u32 rounded_ = 0;
    Value waiting_[Sums::in_blocks ? 1 : 40];

public:
    static bool allowed(const Summing& s) { return Sums::allowed(s); }

    explicit PanelRows(const Summing& s) : s_(s), sums_(s), total_(quantizer_of_total(s)) {}

    void new_columns() { b_Kx64_ = nullptr; }
    bool takes(const ValueRange& a, const ValueRange& b, int64_t depth) { return sums_.takes(a, b, depth); }

    // Computes 64 results of a row. `element` is the index of the first result, for its random words. Returns false if
    // the results may be wrong.
    bool row(const float* a, const float* b_Kx64, float* out, int64_t depth, u64 element) {
        sums_.begin();
        if (!b_Kx64_) set_columns(b_Kx64, depth);
        for (int j = 0; j < panel; j += Sums::columns) {
            a_ = a, b_ = b_Kx64_ + j, element_ = element + static_cast<u64>(j), rounded_ = 0;
            strip(out + j, depth);
        }
        return sums_.trusted();
    }

private:
    void set_columns(const float* b_Kx64, int64_t depth) {
        if constexpr (std::is_same<Factor, float>::value) {
            b_Kx64_ = b_Kx64;
        } else {
            widened_.resize(static_cast<size_t>(depth) * panel);
            for (int64_t i = 0; i < depth * panel; ++i) widened_[static_cast<size_t>(i)] = static_cast<Factor>(b_Kx64[i]);
            b_Kx64_ = widened_.data();
        }
    }

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
            if (s_.chunk)
                add_to_totals<Sums::columns>(total, acc, total_);
            else
                std::memcpy(total, acc, sizeof total);
        }
        for (int j = 0; j < Sums::columns; ++j) out[j] = canonical(static_cast<float>(total[j]));
    }

    CFP_MEMBER Value term(Sums& sums, int64_t k) { return sums.product(a_[k], b_ + k * panel, element_, static_cast<u32>(2 * k)); }
    CFP_MEMBER Value add(Sums& sums, const Value& a, const Value& b) { return sums.sum(a, b, element_, 2 * rounded_++ + 1); }

    __attribute__((noinline)) void segment(int64_t begin, int64_t end, double* out) {
        Sums sums = sums_;  // a local copy, which is kept in registers
        if constexpr (Sums::in_blocks)
            Sums::store(blocks(sums, begin, end), out);
        else if (s_.order == pairwise && s_.block == 1)
            Sums::store(tree(sums, begin, end), out);
        else if (s_.order == pairwise)
            Sums::store(trees(sums, begin, end), out);
        else
            Sums::store(s_.kahan ? compensated(sums, begin, end) : one_by_one(sums, begin, end), out);
        sums_.seen(sums);
    }

    CFP_MEMBER Value blocks(Sums& sums, int64_t begin, int64_t end) {
        const bool is_one = s_.order == exact_order || std::is_same<Sums, FusedSums>::value;  // for FusedSums, a block is a term
        const int64_t block = is_one ? end - begin : s_.block;
        Value acc = Sums::zero();
        for (int64_t first = begin; first < end; first += block) {
            const int64_t last = end - first < block ? end : first + block;
            sums.begin_block(acc);
            for (int64_t k = first; k < last; ++k) sums.add_product(acc, a_[k], b_ + k * panel);
            sums.round_block(acc);
        }
        return acc;
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

}  // namespace
}  // namespace custom_fp
