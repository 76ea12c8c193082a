// Sums for cpu_panel.h with a strip of columns in registers. To round to nearest, they add a power of two
// (shortcuts.h). To round toward zero and stochastically, they let the processor round toward zero.
//
// V is FloatLanes if 24 digits are enough, and otherwise DoubleLanes. Results that are not `trusted` are computed again
// by GeneralSums.
#pragma once

#include <cfenv>

#include "accumulators/dot.h"
#include "cpu/value_range.h"
#include "cpu/lanes.h"
#include "cpu/philox.h"

namespace custom_fp {
namespace {

typedef double DoubleLanes __attribute__((vector_size(4 * lanes)));
typedef i64 LongLanes __attribute__((vector_size(4 * lanes)));
typedef u64 UlongLanes __attribute__((vector_size(4 * lanes)));
typedef float HalfFloatLanes __attribute__((vector_size(2 * lanes)));

template <class V> struct Lane;
template <> struct Lane<FloatLanes> {
    typedef float F;
    typedef IntLanes I;
    typedef UintLanes U;
    static CFP_MEMBER FloatLanes load(const float* from) { return custom_fp::load<FloatLanes>(from); }
};
template <> struct Lane<DoubleLanes> {
    typedef double F;
    typedef LongLanes I;
    typedef UlongLanes U;
    static CFP_MEMBER DoubleLanes load(const float* from) {
        return __builtin_convertvector(custom_fp::load<HalfFloatLanes>(from), DoubleLanes);
    }
};

CFP_FN IntLanes larger_of(IntLanes a, IntLanes b) { return Integers<FloatLanes>::more(a, b); }
CFP_FN LongLanes larger_of(LongLanes a, LongLanes b) { return a > b ? a : b; }
CFP_FN IntLanes smaller_of(IntLanes a, IntLanes b) {
#if defined(__AVX512F__)
    return (IntLanes)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (IntLanes)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
    return a < b ? a : b;
#endif
}
CFP_FN LongLanes smaller_of(LongLanes a, LongLanes b) { return a < b ? a : b; }

// Writes the random bits of 64 elements, which are half a group. `element` must be a multiple of 64.
CFP_LARGE_FN void random_panel(u32* out, u64 element, u32 stream, u64 seed, u32 mask) {
    u32 upper[group], lower[group];
    const u64 first = element / group * group, skip = element - first;
    fill_half(upper, first, stream, 0, seed, mask);
    if (mask & 0xffffu) {
        fill_half(lower, first, stream, 1, seed, mask);
        join_halves(upper, lower, mask);
    }
    std::memcpy(out, upper + skip, panel * sizeof(u32));
}

CFP_FN DoubleLanes multiply_add(DoubleLanes a, DoubleLanes b, DoubleLanes c) {
#if defined(__AVX512F__)
    return (DoubleLanes)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (DoubleLanes)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

// `vectors` registers with one column in each lane.
template <class V, int vectors> struct Strip {
    V v[vectors];
};

// Returns whether terms are added one by one or in trees.
inline bool adds_terms(const Summing& s) {
    return s.width < 0 && (s.order == pairwise || (s.order == sequential && s.block == 1));
}

// The common part of all classes of sums in this file.
template <class V, int vectors> class LaneSums {
public:
    static constexpr bool in_blocks = false;  // whether products are added to exact or fused sums
    static constexpr int direction = FE_TONEAREST;
    typedef float Factor;
    typedef Strip<V, vectors> Value;
    typedef Lane<V> L;
    typedef typename L::F F;
    typedef typename L::I I;
    typedef typename L::U U;
    typedef Bits<F> B;
    typedef typename B::I Integer;
    static constexpr int width = sizeof(V) / sizeof(F), columns = vectors * width;
    static constexpr bool is_float = sizeof(F) == 4;

protected:
    const Spec spec_;
    const bool exact_;
    const Integer max_;
    const I top_;  // the magnitude at which values saturate
    I seen_ = {};  // the largest magnitude

    explicit LaneSums(const Summing& s)
        : spec_(unpack_spec(s.sum)), exact_(s.product == 0),
          max_(static_cast<Integer>(magnitude_of<F>(spec_, spec_.max_code))),
          top_((s.overflow == saturate ? max_ : static_cast<Integer>(~B::sign)) - I{}) {}

    static bool allowed(const Summing& s) {
        return is_usual(s) && adds_terms(s) && unpack_spec(s.sum).is_plain && (s.product == 0 || s.product == s.sum) && s.overflow != propagate;
    }
    bool seen_at_most(Integer limit) const {
        bool all = true;
        for (int i = 0; i < width; ++i) all = all && seen_[i] <= limit;
        return all;
    }
    // Returns whether all products are values of F.
    static bool holds_products(const ValueRange& a, const ValueRange& b) {
        return !is_float || (a.digits + b.digits <= 24 && a.least + b.least >= -98 && a.most + b.most <= 124);
    }
    static CFP_MEMBER V with_sign_of(U magnitude, V x) { return (V)(magnitude | ((U)x & B::sign)); }

public:
    void begin() { seen_ = I{}; }
    void seen(const LaneSums& by) { seen_ = by.seen_; }

    static CFP_MEMBER Value zero() { return Value{}; }
    static CFP_MEMBER Value negative(Value x) {
        for (V& v : x.v) v = -v;
        return x;
    }
    static CFP_MEMBER Value where_finite(const Value&, const Value& x) { return x; }  // results that are not finite are not trusted
    static CFP_MEMBER void store(const Value& x, double* to) {
        for (int i = 0; i < columns; ++i) to[i] = static_cast<double>(x.v[i / width][i % width]);
    }
};

// Sums that are rounded to nearest, with ties to even.
template <class V, bool exact> class NearSums : public LaneSums<V, 4> {
    typedef LaneSums<V, 4> Q;
    typedef typename Q::I I;
    typedef typename Q::U U;
    typedef typename Q::B B;
    typedef typename Q::Integer Integer;
    const I min_exponent_, offset_;  // see NearRounder
    const Integer limit_;

public:
    typedef typename Q::Value Value;

    // Sums of values need 2 p + 2 digits, and sums that are rounded to odd need p + 2.
    static bool allowed(const Summing& s) {
        return Q::allowed(s) && s.mode == nearest_even && exact == (s.product == 0) &&
               unpack_spec(s.sum).mantissa_bits <= (Q::is_float ? 10 : 23);
    }
    explicit NearSums(const Summing& s)
        : Q(s), min_exponent_((static_cast<Integer>(this->spec_.emin + B::bias) << B::mantissa) - I{}),
          offset_(((static_cast<Integer>(B::mantissa - this->spec_.mantissa_bits) << B::mantissa) +
                   (Integer(1) << (B::mantissa - 1))) - I{}),
          limit_(smaller<Integer>(this->max_, (static_cast<Integer>(2 * B::bias - B::mantissa + this->spec_.mantissa_bits + 1)
                                               << B::mantissa) - 1)) {}

    bool takes(const ValueRange& a, const ValueRange& b, int64_t) const {
        return a.finite && b.finite && ((has_fma && !exact) || Q::holds_products(a, b));
    }
    bool trusted() const { return this->seen_at_most(limit_); }

    CFP_MEMBER Value product(float a, const float* b, u64, u32) {
        const V x = static_cast<typename Q::F>(a) - V{};
        Value out;
        for (int i = 0; i < 4; ++i) {
            const V y = Q::L::load(b + i * Q::width), product = x * y;
            out.v[i] = exact ? product : rounded(product, [&](V magic) { return multiply_add(x, y, magic); });
        }
        return out;
    }
    CFP_MEMBER Value sum(const Value& a, const Value& b, u64, u32) {
        Value out;
        for (int i = 0; i < 4; ++i) {
            const V sum = exact ? odd_sum(a.v[i], b.v[i]) : a.v[i] + b.v[i];
            out.v[i] = rounded(sum, [&](V magic) { return sum + magic; });
        }
        return out;
    }
    CFP_MEMBER Value round_again(const Value& x, u64, u32) {
        Value out;
        for (int i = 0; i < 4; ++i) out.v[i] = rounded(x.v[i], [&](V magic) { return x.v[i] + magic; });
        return out;
    }

private:
    // add(magic) must return the sum of magic and the exact value of which x is the rounded one.
    template <class Add> CFP_MEMBER V rounded(V x, const Add& add) {
        const I magnitude = smaller_of((I)((U)x & ~B::sign), this->top_);
        this->seen_ = larger_of(this->seen_, magnitude);
        const I exponent = larger_of(magnitude & static_cast<Integer>(B::infinity), min_exponent_);
        const V magic = (V)(exponent + offset_), near = add(magic) - magic;
        return Q::with_sign_of((U)smaller_of((I)((U)near & ~B::sign), this->top_), x);
    }
    static CFP_MEMBER V odd_sum(V a, V b) {  // add_to_odd
        const V sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
        const U inexact = (U)(error != V{}), away = (U)((I)((U)sum ^ (U)error) >> (8 * sizeof(typename Q::F) - 1));
        return (V)(((U)sum + (away & inexact)) | (inexact & B::one));
    }
};

// Sums that are rounded toward zero or stochastically. The processor rounds toward zero, so the digits that it returns
// are correct. Random bits are added to them before they are truncated.
template <class V, bool random> class CutSums : public LaneSums<V, panel * sizeof(typename Lane<V>::F) / sizeof(V)> {
    static constexpr int vectors = panel * sizeof(typename Lane<V>::F) / sizeof(V);
    typedef LaneSums<V, vectors> Q;
    typedef typename Q::U U;
    typedef typename Q::I I;
    typedef typename Q::B B;
    typedef typename Q::Integer Integer;
    const I min_normal_;
    const U keep_;
    const u64 seed_;
    const u32 mask_;
    const int drop_;

public:
    typedef typename Q::Value Value;
    static constexpr int direction = FE_TOWARDZERO;

    static bool allowed(const Summing& s) {
        const int bits = random ? __builtin_popcount(s.mask) : 0, digits = unpack_spec(s.sum).mantissa_bits + bits;
        const bool cuts = !random || !(s.mask & 1);  // only Form.CUT of stochastic rounding
        return Q::allowed(s) && cuts && s.mode == (random ? stochastic : toward_zero) && digits <= (Q::is_float ? 22 : 51);
    }
    explicit CutSums(const Summing& s)
        : Q(s), min_normal_((static_cast<Integer>(this->spec_.emin + B::bias) << B::mantissa) - I{}),
          keep_(~((B::one << (B::mantissa - this->spec_.mantissa_bits)) - 1) - U{}), seed_(s.seed), mask_(s.mask),
          drop_(B::mantissa - this->spec_.mantissa_bits) {}

    bool takes(const ValueRange& a, const ValueRange& b, int64_t) const {
        return a.finite && b.finite && (!this->exact_ || Q::holds_products(a, b));
    }
    // Rounding toward zero never gives infinity, so float32's last binade is excluded.
    bool trusted() const { return this->seen_at_most(smaller<Integer>(this->max_, Q::is_float ? 0x7effffff : this->max_)); }

    CFP_MEMBER Value product(float a, const float* b, u64 element, u32 stream) {
        const V x = static_cast<typename Q::F>(a) - V{};
        Value out;
        for (int i = 0; i < vectors; ++i) out.v[i] = x * Q::L::load(b + i * Q::width);
        return this->exact_ ? out : rounded(out, element, stream);
    }
    CFP_MEMBER Value sum(const Value& a, const Value& b, u64 element, u32 stream) {
        Value out;
        for (int i = 0; i < vectors; ++i) out.v[i] = a.v[i] + b.v[i];
        return rounded(out, element, stream);
    }
    CFP_MEMBER Value round_again(const Value& x, u64 element, u32 stream) { return rounded(x, element, stream); }

private:
    CFP_MEMBER Value rounded(Value x, u64 element, u32 stream) {
        u32 words[panel];
        if (random) random_panel(words, element, stream, seed_, mask_);
        for (int i = 0; i < vectors; ++i) {
            const U magnitude = (U)x.v[i] & ~B::sign;
            const V lift = (V)((U)((I)magnitude < min_normal_) & (U)min_normal_);  // aligns the digits of a subnormal
            U digits = (U)((V)magnitude + lift);
            if (random) digits += added(words + i * Q::width);
            const I kept = smaller_of((I)((V)(digits & keep_) - lift), this->top_);
            this->seen_ = larger_of(this->seen_, kept);
            x.v[i] = Q::with_sign_of((U)kept, x.v[i]);
        }
        return x;
    }
    // Aligns the first random bit with the first digit that is truncated.
    CFP_MEMBER U added(const u32* words) const {
        if constexpr (Q::is_float) {
            UintLanes word;
            std::memcpy(&word, words, sizeof word);
            return word >> (32 - drop_);
        } else {
            typedef u32 HalfLanes __attribute__((vector_size(2 * lanes)));
            HalfLanes word;
            std::memcpy(&word, words, sizeof word);
            const UlongLanes wide = __builtin_convertvector(word >> 1, UlongLanes);
            return drop_ >= 31 ? wide << (drop_ - 31) : wide >> (31 - drop_);
        }
    }
};

}  // namespace
}  // namespace custom_fp
