// CPU loops over elements: quantize, scale, max_magnitude, accumulate. See cpu_kernels.h for the contract.
#pragma once

#include <cstring>
#include <memory>

#include "cpu_kernels.h"
#include "cpu_philox.h"
#include "custom_fp.h"

namespace custom_fp {
namespace {

constexpr int64_t block = 4096;  // elements worked on at a time: a few arrays of them stay in the first cache

template <Mode mode, class F>
void quantize_range(const F* x, float* out, int64_t begin, int64_t end, const Rule& rule) {
    const Rounder<F> rounder = make_rounder<F>(unpack_spec(rule.spec), mode, rule.saturate);
    if (mode != stochastic) {
        for (int64_t i = begin; i < end; ++i) out[i] = static_cast<float>(round<mode>(x[i], rounder, 0));
        return;
    }
    constexpr int piece = 256;  // several blocks of random words in flight hide the generator's latency
    u32 random[piece];
    int64_t start = begin;
    for (; start + piece <= end; start += piece) {
        for (int i = 0; i < piece; i += 64) fill_random(random + i, start + i, 0, rule.seed);
        for (int i = 0; i < piece; ++i)
            out[start + i] = static_cast<float>(round<mode>(x[start + i], rounder, random[i]));
    }
    for (; start < end; start += 64) {
        fill_random(random, start, 0, rule.seed);
        for (int i = 0; i < 64 && start + i < end; ++i)
            out[start + i] = static_cast<float>(round<mode>(x[start + i], rounder, random[i]));
    }
}

void quantize_near(const float* x, float* out, int64_t begin, int64_t end, const NearRounder& rounder) {
    i32 unused = 0;
    for (int64_t i = begin; i < end; ++i) out[i] = canonical(round_near<true>(x[i], rounder, unused));
}

template <class F> void quantize(const F* x, float* out, int64_t begin, int64_t end, const Rule& rule) {
    if constexpr (sizeof(F) == sizeof(float)) {
        const Spec spec = unpack_spec(rule.spec);
        if (rule.mode == nearest_even && NearRounder::allowed(spec)) {
            quantize_near(x, out, begin, end, make_near_rounder(spec, rule.saturate));
            return;
        }
    }
    if (rule.mode == nearest_even) quantize_range<nearest_even>(x, out, begin, end, rule);
    if (rule.mode == toward_zero) quantize_range<toward_zero>(x, out, begin, end, rule);
    if (rule.mode == stochastic) quantize_range<stochastic>(x, out, begin, end, rule);
}

inline int clamp_shift(int shift) { return shift < -300 ? -300 : shift > 300 ? 300 : shift; }

void scale_range(const float* x, float* out, int64_t begin, int64_t end, int shift) {
    if (shift >= -126 && shift <= 127) {  // one float32 multiplication, hence one rounding
        const float power = power_of_two<float>(shift);
        for (int64_t i = begin; i < end; ++i) out[i] = canonical(x[i] * power);
        return;
    }
    const double power = power_of_two<double>(clamp_shift(shift));
    for (int64_t i = begin; i < end; ++i) out[i] = scale(x[i], power);
}

template <class F> uint64_t max_magnitude(const F* x, int64_t begin, int64_t end) {
    typedef Bits<F> B;
    typedef typename B::I I;
    I largest = 0;
    for (int64_t i = begin; i < end; ++i) {
        I magnitude = static_cast<I>(to_bits(x[i]) & ~B::sign);
        magnitude &= -static_cast<I>(magnitude < static_cast<I>(B::infinity));
        largest = magnitude > largest ? magnitude : largest;
    }
    return to_bits(static_cast<double>(from_bits(static_cast<typename B::U>(largest))));
}

// ---- accumulate ------------------------------------------------------------------------------------------------

// How a sum is made that ends up rounded once.
enum Sum {
    float32,  // the format is float32 itself
    members,  // NearRounder, all terms being values of the format: two values of p digits, added in 24 digits and then
              // rounded to p, are rounded as if once where 24 >= 2 p + 2 (Figueroa 1995)
    near,     // NearRounder, any terms: rounded to odd first; as `members` while all terms turn out to be such
    odd,      // the general Rounder, to odd first; F = double where m > 21 or the rounding is not to nearest
};

// Partial sums over blocks of elements; acc and the Kahan correction c live in the first cache.
template <Sum sum, Mode mode, class F> struct Accumulator {
    static constexpr bool by_near_rounder = sum == members || sum == near;
    Rounder<F> rounder;
    NearRounder near_rounder;
    u64 seed;
    bool hopeful = true;  // no term so far that is not a value of the format
    float acc[block], c[block];
    u32 random[4][mode == stochastic ? block : 1];

    explicit Accumulator(const Rule& rule)
        : rounder(make_rounder<F>(unpack_spec(rule.spec), mode, rule.saturate)),
          near_rounder(make_near_rounder(unpack_spec(rule.spec), rule.saturate)), seed(rule.seed) {}

    // Leaves the sum of terms 0..tensors - 1 in acc; term(r) gives the address of the block's elements of the r-th,
    // good until term(r + 4) is called.
    template <class Term> void sum_block(int64_t begin, int64_t count, int tensors, bool kahan, const Term& term) {
        bool done = false;
        if (sum == near && !kahan && hopeful) {
            done = hopeful = attempt<members, false>(begin, count, tensors, kahan, term);
        }
        if (by_near_rounder && !done) done = attempt<sum, false>(begin, count, tensors, kahan, term);
        if (!done) attempt<sum, true>(begin, count, tensors, kahan, term);
        for (int64_t i = 0; i < count; ++i) acc[i] = canonical(acc[i]);
    }

private:
    // What unchecked sums may not meet; `digits` collects the bits of the terms where `members` has the say.
    struct Met {
        i32 exponent;
        u32 digits;
    };

    template <Sum way, bool checked, class Term>
    bool attempt(int64_t begin, int64_t count, int tensors, bool kahan, const Term& term) {
        std::memset(acc, 0, static_cast<size_t>(count) * sizeof(float));
        std::memset(c, 0, kahan ? static_cast<size_t>(count) * sizeof(float) : 0);
        Met met = {0, 0};
        for (int r = 0; r < tensors;) {
            draw(begin, count, r, kahan ? 4 : 1);
            if (kahan) {
                add_kahan<checked>(term(r), count, met);
                r += 1;
            } else if ((way == float32 || way == members) && r + 4 <= tensors) {
                const float *a = term(r), *b = term(r + 1), *c = term(r + 2), *d = term(r + 3);
                add_four<way, checked>(a, b, c, d, count, met);
                r += 4;
            } else {
                add<way, checked>(term(r), count, met);
                r += 1;
            }
        }
        const u32 beyond_format = (1u << near_rounder.drop) - 1;
        if (sum == near && way == members && (met.digits & beyond_format)) return false;
        return checked || met.exponent < near_rounder.top_exponent;
    }

    void draw(int64_t begin, int64_t count, int step, int streams) {
        if (mode != stochastic) return;
        for (int j = 0; j < streams; ++j)
            for (int64_t i = 0; i < count; i += 64)
                fill_random(random[j] + i, begin + i, static_cast<u32>(4 * step + j), seed);
    }

    u32 word(int stream, int64_t i) const { return mode == stochastic ? random[stream][i] : 0; }

    struct Rounders {  // local copies: a store to acc could change a member, for all the compiler knows
        Rounder<F> general;
        NearRounder near;
    };

    // Q(a + b)
    template <Sum way, bool checked>
    static CFP_MEMBER float rounded_sum(float a, float b, const Rounders& q, u32 random, i32& seen) {
        if (way == float32) return a + b;
        if (way == members) return round_near<checked>(a + b, q.near, seen);
        if (way == near) return round_near<checked>(add_to_odd(a, b), q.near, seen);
        return static_cast<float>(round<mode>(add_to_odd(static_cast<F>(a), static_cast<F>(b)), q.general, random));
    }

    // acc = Q(acc + g)
    template <Sum way, bool checked> void add(const float* g, int64_t count, Met& met) {
        const Rounders q = {rounder, near_rounder};
        i32 seen = met.exponent;
        u32 digits = met.digits;
        for (int64_t i = 0; i < count; ++i) {
            digits |= to_bits(g[i]);
            acc[i] = rounded_sum<way, checked>(acc[i], g[i], q, word(0, i), seen);
        }
        met = {seen, digits};
    }

    // Four terms in one pass, which saves loads and stores and lets memory and arithmetic overlap.
    template <Sum way, bool checked>
    void add_four(const float* a, const float* b, const float* c, const float* d, int64_t count, Met& met) {
        const Rounders q = {rounder, near_rounder};
        i32 seen = met.exponent;
        u32 digits = met.digits;
        for (int64_t i = 0; i < count; ++i) {
            digits |= to_bits(a[i]) | to_bits(b[i]) | to_bits(c[i]) | to_bits(d[i]);
            float partial = rounded_sum<way, checked>(acc[i], a[i], q, 0, seen);
            partial = rounded_sum<way, checked>(partial, b[i], q, 0, seen);
            partial = rounded_sum<way, checked>(partial, c[i], q, 0, seen);
            acc[i] = rounded_sum<way, checked>(partial, d[i], q, 0, seen);
        }
        met = {seen, digits};
    }

    // y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t; c = 0 once t is not finite
    template <bool checked> void add_kahan(const float* g, int64_t count, Met& met) {
        constexpr Sum inner = sum == near ? members : sum;  // y, t, acc and c are values of the format
        const Rounders q = {rounder, near_rounder};
        i32 seen = met.exponent;
        for (int64_t i = 0; i < count; ++i) {
            const float old = acc[i];
            const float y = rounded_sum<sum, checked>(g[i], -c[i], q, word(0, i), seen);
            const float t = rounded_sum<inner, checked>(old, y, q, word(1, i), seen);
            const float gained = rounded_sum<inner, checked>(t, -old, q, word(2, i), seen);
            const float lost = rounded_sum<inner, checked>(gained, -y, q, word(3, i), seen);
            const u32 finite = static_cast<u32>(static_cast<i32>(to_bits(t) & 0x7fffffffu) < 0x7f800000);
            acc[i] = t;
            c[i] = from_bits(to_bits(lost) & (0u - finite));
        }
        met.exponent = seen;
    }
};

// Calls body(accumulator) with the cheapest accumulator that is exact. `of_members`: all terms are values of the format.
template <class Body> void with_accumulator(const Rule& rule, bool of_members, const Body& body) {
    const Spec spec = unpack_spec(rule.spec);
    const auto run = [&](auto accumulator) { body(*accumulator); };
    if (rule.mode == toward_zero)
        run(std::make_unique<Accumulator<odd, toward_zero, double>>(rule));
    else if (rule.mode == stochastic)
        run(std::make_unique<Accumulator<odd, stochastic, double>>(rule));
    else if (spec.exponent_bits == 8 && spec.mantissa_bits == 23)
        run(std::make_unique<Accumulator<float32, nearest_even, float>>(rule));
    else if (NearRounder::allowed(spec) && of_members)
        run(std::make_unique<Accumulator<members, nearest_even, float>>(rule));
    else if (NearRounder::allowed(spec))
        run(std::make_unique<Accumulator<near, nearest_even, float>>(rule));
    else if (spec.mantissa_bits <= 21)
        run(std::make_unique<Accumulator<odd, nearest_even, float>>(rule));
    else
        run(std::make_unique<Accumulator<odd, nearest_even, double>>(rule));
}

void accumulate_range(const float* const* x, int tensors, float* out, int64_t begin, int64_t end, const Rule& rule,
                      bool kahan) {
    with_accumulator(rule, false, [&](auto& accumulator) {
        for (int64_t start = begin; start < end; start += block) {
            const int64_t count = end - start < block ? end - start : block;
            accumulator.sum_block(start, count, tensors, kahan, [&](int r) { return x[r] + start; });
            std::memcpy(out + start, accumulator.acc, static_cast<size_t>(count) * sizeof(float));
        }
    });
}

}  // namespace
}  // namespace custom_fp
