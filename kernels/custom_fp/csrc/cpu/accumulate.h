// CPU sums of tensors, every partial sum rounded; see cpu/kernels.h for the contract.
#pragma once

#include <memory>
#include <type_traits>

#include "cpu/elementwise.h"

namespace custom_fp {
namespace {

constexpr int64_t sum_block = 512;  // elements summed at a time, at most: a few arrays of them stay in the first cache

constexpr int at_once = 8;  // terms added in one pass

// How a sum is made that ends up rounded once.
enum Sum {
    float32,      // the format is float32 itself
    members,      // NearRounder, all terms being values of the format
    ties,         // NearRounder, any terms: right while no float32 sum is a tie
    wide_members, // WideNearRounder, where NearRounder is not allowed, all terms being values of the format
    wide,         // WideNearRounder, any terms, to odd first
    randomly,     // RandomRounder, any terms: that float32 rounds the sum is no more to it than a digit rounded by lifting
    few_randomly, // the same with few random bits, which decide where float32 rounds neither
    settled,      // `general` where partial sums have to be settled (custom_fp.h), or infinity is no overflow
    general,      // the general Rounder, to odd first; F = double where m > 21 or the rounding is not to nearest
};

// Partial sums over blocks of elements.
template <Mode mode, class F> class Accumulator {
public:
    float acc[sum_block];  // the sum of the last block

    // `of_members`: all terms are values of the format
    Accumulator(const Rule& rule, bool of_members)
        : spec(unpack_spec(rule.spec)), rounder(make_rounder<F>(spec, rule.mode, rule.overflow)),
          near(make_near_rounder(spec, rule.overflow)), wide_near(make_wide_near_rounder(spec)), random_rounder(make_random_rounder(spec)), seed(rule.seed),
          offset(rule.offset), mask(rule.mask), few(has_few_bits(rule)),
          is_float32(mode == nearest_even && rule.overflow == infinity && spec.exponent_bits == 8 && spec.mantissa_bits == 23),
          quick(rule.mode == nearest_even && NearRounder::allowed(spec)), told_members(of_members),
          needs_settling(!spec.is_signed || rule.overflow == propagate) {}

    // Leaves the sum of terms 0..tensors - 1 in acc; term(r) gives the address of the block's elements of the r-th,
    // good until term(r + at_once) is called, of doubles until the next one. True if all of them are finite.
    template <class Term> bool sum(int64_t begin, int64_t count, int tensors, bool kahan, const Term& term) {
        const bool finite = make_sum(Terms<Term>{begin, count, tensors, kahan, term});
        if (!spec.is_plain)  // which -0 a partial sum was makes no difference to the next one but for its own sign
            for (int64_t i = 0; i < count; ++i) acc[i] += 0.0f;
        return finite;
    }

private:
    static constexpr int most_patience = 8;  // blocks in a row that meet a tie before that way is given up
    Spec spec;
    Rounder<F> rounder;
    NearRounder near;
    WideNearRounder wide_near;
    RandomRounder random_rounder;
    u64 seed, offset;
    u32 mask;
    bool few;
    bool is_float32, quick, told_members, needs_settling;
    bool may_be_members = true;  // no term so far that is not a value of the format
    int patience = most_patience;
    float c[sum_block];
    u32 random[4][mode == stochastic ? sum_block + group : 1];
    int64_t first_random = 0;  // where in `random` the block's first element is

    template <class Term> struct Terms {
        int64_t begin, count;
        int tensors;
        bool kahan;
        const Term& at;
    };

    template <class Term> bool make_sum(const Terms<Term>& terms) {
        const int64_t count = terms.count;
        if constexpr (std::is_same<decltype(terms.at(0)), const double*>::value) {
            attempt_generally(terms);
        } else if constexpr (mode == otherwise) {
            // without a sign, a correction may be negative and terms that are values of the format are not
            if (quick && may_be_members && (spec.is_signed || !terms.kahan) && attempt<members>(terms)) return true;
            attempt_generally(terms);
        } else if (is_float32) {
            attempt<float32>(terms);
        } else if (mode == stochastic) {
            if (spec.is_signed && RandomRounder::allowed(spec) && (few ? attempt<few_randomly>(terms) : attempt<randomly>(terms))) return true;
            attempt_generally(terms);
        } else if (mode == toward_zero) {
            attempt<general>(terms);
        } else {
            // one float32 sum to odd, where that is enough, is as quick as one in double; four of them are not
            const bool widely = !quick && (terms.kahan || spec.mantissa_bits > 21);
            if (quick && may_be_members && attempt<members>(terms)) return true;
            if (widely && may_be_members && attempt<wide_members>(terms)) return true;
            if (widely && !told_members && attempt<wide>(terms)) return true;
            if (quick && patience > 0 && !told_members && NearRounder::tells_ties(spec)) {
                const bool done = attempt<ties>(terms);
                patience = done ? most_patience : patience - 1;
                if (done) return true;
            }
            attempt<general>(terms);
        }
        for (int64_t i = 0; i < count; ++i) acc[i] = canonical(acc[i]);
        return false;
    }

    template <class Term> void attempt_generally(const Terms<Term>& terms) {
        if constexpr (mode == otherwise)
            attempt<settled>(terms);
        else if constexpr (mode == stochastic)
            needs_settling ? attempt<settled>(terms) : attempt<general>(terms);
        else
            attempt<general>(terms);
    }

    template <Sum way, class Term> bool attempt(const Terms<Term>& terms) {
        const int64_t count = terms.count;
        std::memset(acc, 0, static_cast<size_t>(count) * sizeof(float));
        if (terms.kahan) std::memset(c, 0, static_cast<size_t>(count) * sizeof(float));
        Met<float> met;
        for (int r = 0; r < terms.tensors;) {
            if (mode == stochastic) draw(terms.begin, count, r, terms.kahan ? 4 : 1, way == general || way == settled);
            if (terms.kahan) {
                add_kahan<way>(terms.at(r), count, met);
                r += 1;
            } else if constexpr (way == float32 || way == members || way == ties) {
                const float* g[at_once];
                const int some = terms.tensors - r < at_once ? terms.tensors - r : at_once;
                for (int j = 0; j < some; ++j) g[j] = terms.at(r + j);
                add_some<way>(g, some, count, met);
                r += some;
            } else {
                add<way>(terms.at(r), count, met);
                r += 1;
            }
        }
        if ((way == members || way == wide_members) && (met.digits & near.beyond)) return may_be_members = false;
        if (way == wide_members || way == wide) return met.wide_largest <= wide_near.limit;
        if (way == randomly || way == few_randomly) return random_rounder.sure(met);
        return way == float32 || way == general || way == settled || (met.largest <= near.limit && met.tie != NearRounder::tie);
    }

    // The random bits of the block's elements in a step, the first half of them or `all`.
    void draw(int64_t begin, int64_t count, int step, int streams, bool all) {
        const u64 index = offset + static_cast<u64>(begin), aligned = index / group * group;
        first_random = static_cast<int64_t>(index - aligned);
        u32 rest[group];
        for (int j = 0; j < streams; ++j)
            for (int64_t i = 0; i < first_random + count; i += group) {
                const u32 stream = static_cast<u32>(4 * step + j);
                fill_half(random[j] + i, aligned + static_cast<u64>(i), stream, 0, seed, mask);
                if (!all) continue;
                fill_half(rest, aligned + static_cast<u64>(i), stream, 1, seed, mask);
                join_halves(random[j] + i, rest, mask);
            }
    }

    u32 word(int stream, int64_t i) const { return mode == stochastic ? random[stream][first_random + i] : 0; }

    struct Rounders {  // local copies: a store to acc could change a member, for all the compiler knows
        Rounder<F> general;
        NearRounder near;
        WideNearRounder wide_near;
        RandomRounder random;
    };

    // Whether a + b is a float32: that addition's error, Knuth's TwoSum, is zero.
    static CFP_MEMBER bool is_exact(float a, float b) {
        const float total = a + b, b_part = total - a;
        return (a - (total - b_part)) + (b - b_part) == 0.0f;
    }

    // Q(a + b); G: float, or double where a term is one
    template <Sum way, class G>
    static CFP_MEMBER float rounded_sum(G a, float b, const Rounders& q, u32 random, Met<float>& met) {
        if constexpr (way == randomly)
            return round_randomly(a + b, q.random, random, met);
        else if constexpr (way == few_randomly)
            return round_randomly<true>(a + b, q.random, random, met, is_exact(a, b));
        else if constexpr (way == wide_members)
            return static_cast<float>(round_near_wide(static_cast<double>(a) + b, q.wide_near, met.wide_largest));
        else if constexpr (way == wide)
            return static_cast<float>(round_near_wide(
                add_to_odd(static_cast<double>(a), static_cast<double>(b)), q.wide_near, met.wide_largest));
        else if constexpr (way != general && way != settled)
            return near_sum<way>(a, b, q.near, met);
        else {
            const F exact = add_to_odd(static_cast<F>(a), static_cast<F>(b));
            constexpr bool tells_infinity = mode == toward_zero || way == settled;
            const float rounded = static_cast<float>(round<mode, tells_infinity>(exact, q.general, random));
            return way == settled ? settle(rounded, q.general) : rounded;
        }
    }

    // acc = Q(acc + g)
    template <Sum way, class G> void add(const G* g, int64_t count, Met<float>& all) {
        const Rounders q = {rounder, near, wide_near, random_rounder};
        Met<float> met = all;
        if constexpr (way == wide_members)
            for (int64_t i = 0; i < count; ++i) met.digits |= to_bits(g[i]);
        for (int64_t i = 0; i < count; ++i) acc[i] = rounded_sum<way>(g[i], acc[i], q, word(0, i), met);
        all = met;
    }

    // Several terms in one pass, four registers of partial sums at a time: one's sums fill the time that another's wait
    // for each other.
    template <Sum way> void add_some(const float* const* g, int terms, int64_t count, Met<float>& all) {
        const NearRounder q = near;
        Met<FloatLanes> met_lanes;
        Met<float> met = all;
        int64_t i = 0;
        for (; i + 4 * lanes <= count; i += 4 * lanes) add_lanes<way, FloatLanes>(g, terms, i, lanes, q, met_lanes);
        for (; i + 4 <= count; i += 4) add_lanes<way, float>(g, terms, i, 1, q, met);
        for (; i < count; ++i)
            for (int r = 0; r < terms; ++r) {
                if (way == members) met.digits |= to_bits(g[r][i]);
                acc[i] = near_sum<way>(acc[i], g[r][i], q, met);
            }
        gather(met_lanes, met);
        all = met;
    }

    template <Sum way, class V>
    CFP_MEMBER void add_lanes(const float* const* g, int terms, int64_t i, int step, const NearRounder& q, Met<V>& met) {
        float* const at = acc + i;
        V p0 = load<V>(at), p1 = load<V>(at + step), p2 = load<V>(at + 2 * step), p3 = load<V>(at + 3 * step);
        for (int r = 0; r < terms; ++r) {
            const float* const from = g[r] + i;
            const V g0 = load<V>(from), g1 = load<V>(from + step), g2 = load<V>(from + 2 * step),
                    g3 = load<V>(from + 3 * step);
            typedef Integers<V> N;
            if (way == members) met.digits |= N::bits(g0) | N::bits(g1) | N::bits(g2) | N::bits(g3);
            p0 = near_sum<way>(p0, g0, q, met);
            p1 = near_sum<way>(p1, g1, q, met);
            p2 = near_sum<way>(p2, g2, q, met);
            p3 = near_sum<way>(p3, g3, q, met);
        }
        store(at, p0);
        store(at + step, p1);
        store(at + 2 * step, p2);
        store(at + 3 * step, p3);
    }

    template <Sum way, class V> static CFP_MEMBER V near_sum(V a, V b, const NearRounder& q, Met<V>& met) {
        if (way == members) return round_near<V>(a + b, q, met);
        if (way == ties) return round_near_again<V>(a + b, q, met);
        return a + b;
    }

    // y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t; c = 0 once t is not finite
    template <Sum way, class G> void add_kahan(const G* g, int64_t count, Met<float>& all) {
        constexpr Sum inner = way == ties ? members : way == wide ? wide_members : way;  // y, t, acc and c are values of the format
        const Rounders q = {rounder, near, wide_near, random_rounder};
        Met<float> met = all;
        if constexpr (way == wide_members)
            for (int64_t i = 0; i < count; ++i) met.digits |= to_bits(g[i]);
        for (int64_t i = 0; i < count; ++i) {
            if constexpr (way == members) met.digits |= to_bits(g[i]);
            const float old = acc[i];
            const float y = rounded_sum<way>(g[i], -c[i], q, word(0, i), met);
            const float t = rounded_sum<inner>(old, y, q, word(1, i), met);
            const float gained = rounded_sum<inner>(t, -old, q, word(2, i), met);
            const float lost = rounded_sum<inner>(gained, -y, q, word(3, i), met);
            const u32 finite = static_cast<u32>(static_cast<i32>(to_bits(t) & 0x7fffffffu) < 0x7f800000);
            acc[i] = t;
            c[i] = from_bits(to_bits(lost) & (0u - finite));
        }
        all = met;
    }
};

// Calls body(accumulator) with the accumulator for a rule. `of_members`: all terms are values of the format.
template <class Body> void with_accumulator(const Rule& rule, bool of_members, const Body& body) {
    const auto run = [&](auto accumulator) { body(*accumulator); };
    const Spec spec = unpack_spec(rule.spec);
    const Mode mode = template_of(rule.mode, rule.overflow, spec.is_signed);
    if (mode == otherwise)
        run(std::make_unique<Accumulator<otherwise, double>>(rule, of_members));
    else if (mode == toward_zero)
        run(std::make_unique<Accumulator<toward_zero, double>>(rule, of_members));
    else if (mode == stochastic)
        run(std::make_unique<Accumulator<stochastic, double>>(rule, of_members));
    else if (spec.mantissa_bits <= 21)
        run(std::make_unique<Accumulator<nearest_even, float>>(rule, of_members));
    else
        run(std::make_unique<Accumulator<nearest_even, double>>(rule, of_members));
}

void accumulate_range(const float* const* x, int tensors, float* out, int64_t begin, int64_t end, const Rule& rule,
                      bool kahan) {
    constexpr int64_t step = 128;  // short: all tensors' memory is then read as so many steady streams
    with_accumulator(rule, false, [&](auto& accumulator) {
        for (int64_t start = begin; start < end; start += step) {
            const int64_t count = end - start < step ? end - start : step;
            accumulator.sum(start, count, tensors, kahan, [&](int r) { return x[r] + start; });
            std::memcpy(out + start, accumulator.acc, static_cast<size_t>(count) * sizeof(float));
        }
    });
}

// Terms some of which are doubles, the others floats.
void accumulate_wide_range(const void* const* x, const uint8_t* is_wide, int tensors, float* out, int64_t begin,
                           int64_t end, const Rule& rule, bool kahan) {
    constexpr int64_t step = 128;
    double widened[step];
    const auto body = [&](auto& accumulator) {
        for (int64_t start = begin; start < end; start += step) {
            const int64_t count = end - start < step ? end - start : step;
            accumulator.sum(start, count, tensors, kahan, [&](int r) -> const double* {
                if (is_wide[r]) return static_cast<const double*>(x[r]) + start;
                const float* narrow = static_cast<const float*>(x[r]) + start;
                for (int64_t i = 0; i < count; ++i) widened[i] = narrow[i];
                return widened;
            });
            std::memcpy(out + start, accumulator.acc, static_cast<size_t>(count) * sizeof(float));
        }
    };
    const Mode mode = template_of(rule.mode, rule.overflow, unpack_spec(rule.spec).is_signed);
    if (mode == otherwise)
        body(*std::make_unique<Accumulator<otherwise, double>>(rule, false));
    else if (mode == toward_zero)
        body(*std::make_unique<Accumulator<toward_zero, double>>(rule, false));
    else if (mode == stochastic)
        body(*std::make_unique<Accumulator<stochastic, double>>(rule, false));
    else
        body(*std::make_unique<Accumulator<nearest_even, double>>(rule, false));
}

}  // namespace
}  // namespace custom_fp
