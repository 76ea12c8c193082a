// Quick sums of cpu_panel.h, a strip of columns in registers: to nearest by the addition of a power of two
// (shortcuts.h), toward zero and stochastic by what the processor cuts off.
//
// V is FloatLanes where 24 digits are enough, DoubleLanes where they are not. Results count where `trusted`: the others
// are GeneralSums'.
#pragma once

#include <cfenv>

#include "accumulators/dot.h"
#include "cpu/facts.h"
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

// The random bits of 64 elements: half a group, from a multiple of 64 on.
inline void random_panel(u32* out, u64 element, u32 stream, u64 seed, u32 mask) {
    u32 upper[group], lower[group];
    const u64 first = element / group * group, skip = element - first;
    fill_half(upper, first, stream, 0, seed, mask);
    if (mask & 0xffffu) {
        fill_half(lower, first, stream, 1, seed, mask);
        join_halves(upper, lower, mask);
    }
    std::memcpy(out, upper + skip, panel * sizeof(u32));
}

// `vectors` registers, one column a lane
template <class V, int vectors> struct Strip {
    V v[vectors];
};

// What both ways have in common.
template <class V, int vectors> class Quick {
public:
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
    const I top_;  // what saturates there
    I seen_ = {};  // the largest magnitude

    explicit Quick(const Summing& s)
        : spec_(unpack_spec(s.sum)), exact_(s.product == 0),
          max_(static_cast<Integer>(magnitude_of<F>(spec_, spec_.max_code))),
          top_((s.overflow == saturate ? max_ : static_cast<Integer>(~B::sign)) - I{}) {}

    static bool allowed(const Summing& s) {
        return unpack_spec(s.sum).is_plain && (s.product == 0 || s.product == s.sum) && s.overflow != propagate;
    }
    bool seen_at_most(Integer limit) const {
        bool all = true;
        for (int i = 0; i < width; ++i) all = all && seen_[i] <= limit;
        return all;
    }
    // Whether products are values of F, and nothing of them is lost below it.
    static bool holds_products(const Facts& a, const Facts& b) {
        return !is_float || (a.digits + b.digits <= 24 && a.least + b.least >= -98 && a.most + b.most <= 124);
    }
    static CFP_MEMBER V with_sign_of(U magnitude, V x) { return (V)(magnitude | ((U)x & B::sign)); }

public:
    void begin() { seen_ = I{}; }
    void seen(const Quick& by) { seen_ = by.seen_; }

    static CFP_MEMBER Value zero() { return Value{}; }
    static CFP_MEMBER Value negative(Value x) {
        for (V& v : x.v) v = -v;
        return x;
    }
    static CFP_MEMBER Value where_finite(const Value&, const Value& x) { return x; }  // others are not trusted
    static CFP_MEMBER void store(const Value& x, double* to) {
        for (int i = 0; i < columns; ++i) to[i] = static_cast<double>(x.v[i / width][i % width]);
    }
};

// To nearest, ties to even.
template <class V, bool exact> class NearSums : public Quick<V, 4> {
    typedef Quick<V, 4> Q;
    typedef typename Q::I I;
    typedef typename Q::U U;
    typedef typename Q::B B;
    typedef typename Q::Integer Integer;
    const I min_exponent_, offset_;  // see NearRounder
    const Integer limit_;

public:
    typedef typename Q::Value Value;
    static constexpr int direction = FE_TONEAREST;

    // 2 p + 2 digits are enough of sums of values, p + 2 of sums to odd.
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

    bool takes(const Facts& a, const Facts& b) const {
#if defined(__FMA__) || defined(__aarch64__)
        return a.finite && b.finite && (!exact || Q::holds_products(a, b));
#else
        return a.finite && b.finite && Q::holds_products(a, b);
#endif
    }
    bool trusted() const { return this->seen_at_most(limit_); }

    CFP_MEMBER Value product(float a, const float* b, u64, u32) {
        const V x = static_cast<typename Q::F>(a) - V{};
        Value out;
        for (int i = 0; i < 4; ++i) {
            const V y = Q::L::load(b + i * Q::width), product = x * y;
            out.v[i] = exact ? product : rounded(product, [&](V magic) { return add_product(x, y, product, magic); });
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
    // add(magic): x, before float32 rounded it, and magic
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
    static CFP_MEMBER FloatLanes add_product([[maybe_unused]] FloatLanes x, [[maybe_unused]] FloatLanes y,
                                              [[maybe_unused]] FloatLanes product, FloatLanes magic) {
#if defined(__AVX512F__)
        return (FloatLanes)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)magic);
#elif defined(__FMA__)
        return (FloatLanes)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)magic);
#elif defined(__aarch64__)
        for (int i = 0; i < lanes; ++i) magic[i] = fused_multiply_add(x[i], y[i], magic[i]);
        return magic;
#else
        return product + magic;
#endif
    }
    static CFP_MEMBER DoubleLanes add_product(DoubleLanes, DoubleLanes, DoubleLanes product, DoubleLanes magic) {
        return product + magic;
    }
};

// Toward zero, and stochastic: the processor rounds toward zero, so that digits are right as far as there are any, and
// random bits are added to them before they are cut off.
template <class V, bool random> class CutSums : public Quick<V, panel * sizeof(typename Lane<V>::F) / sizeof(V)> {
    static constexpr int vectors = panel * sizeof(typename Lane<V>::F) / sizeof(V);
    typedef Quick<V, vectors> Q;
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
        const bool cuts = !random || !(s.mask & 1);  // not of a form of stochastic rounding that rounds what is left
        return Q::allowed(s) && cuts && s.mode == (random ? stochastic : toward_zero) && digits <= (Q::is_float ? 22 : 51);
    }
    explicit CutSums(const Summing& s)
        : Q(s), min_normal_((static_cast<Integer>(this->spec_.emin + B::bias) << B::mantissa) - I{}),
          keep_(~((B::one << (B::mantissa - this->spec_.mantissa_bits)) - 1) - U{}), seed_(s.seed), mask_(s.mask),
          drop_(B::mantissa - this->spec_.mantissa_bits) {}

    bool takes(const Facts& a, const Facts& b) const {
        return a.finite && b.finite && (!this->exact_ || Q::holds_products(a, b));
    }
    // Toward zero nothing becomes infinite: float32's last binade is left out.
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
            const V lift = (V)((U)((I)magnitude < min_normal_) & (U)min_normal_);  // a subnormal's digits to their place
            U digits = (U)((V)magnitude + lift);
            if (random) digits += added(words + i * Q::width);
            const I kept = smaller_of((I)((V)(digits & keep_) - lift), this->top_);
            this->seen_ = larger_of(this->seen_, kept);
            x.v[i] = Q::with_sign_of((U)kept, x.v[i]);
        }
        return x;
    }
    // The first random bit beside the first digit that is cut off.
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
