// Sums of tensors on the CPU, with every partial sum rounded. See cpu/kernels.h for the interface.
#pragma once

#include <memory>
#include <type_traits>

#include "cpu/elementwise.h"

namespace custom_fp {
namespace {

constexpr int64_t sum_block = 512;  // the most elements per block; a few such arrays fit in the first-level cache

constexpr int terms_per_pass = 8;

// The methods of rounding a sum, fastest first. The first ones are correct under conditions that are checked
// afterwards.
enum SumMethod {
    plain,         // the format is float32 itself
    members,       // NearRounder: correct if all terms are values of the format
    ties,          // NearRounder: correct if no float32 sum is a tie
    wide_members,  // WideNearRounder if NearRounder is not allowed: correct if all terms are values of the format
    wide,          // WideNearRounder for sums that were rounded to odd
    randomly,      // RandomRounder: a float32 sum is treated like digits that adding min_normal may have rounded
    few_randomly,  // the same with few random bits, which decide only if neither addition has rounded
    settled,       // `general`, followed by settle() (custom_fp.h)
    narrow,        // the general Rounder in float for sums rounded to odd, for formats of up to 21 mantissa bits
    general,       // the general Rounder in double for sums rounded to odd
};

// The terms of one block of elements.
struct Terms {
    int64_t begin, count;  // the index of the first element, and the number of elements
    int tensors;
    bool kahan;
    const void* const* x;    // tensors of floats, or of floats and doubles
    const uint8_t* is_wide;  // for each tensor, whether it contains doubles; null if none does
    // If not null, unpack(codec, r) returns the block's elements of tensor r. They stay valid for `terms_per_pass` more
    // calls.
    const float* (*unpack)(void* codec, int r);
    void* codec;

    template <class G> const G* at(int r, G* widened) const {
        if constexpr (sizeof(G) == sizeof(float)) {
            return unpack ? unpack(codec, r) : static_cast<const float*>(x[r]) + begin;
        } else {
            if (is_wide[r]) return static_cast<const double*>(x[r]) + begin;
            const float* narrow = static_cast<const float*>(x[r]) + begin;
            for (int64_t i = 0; i < count; ++i) widened[i] = narrow[i];
            return widened;
        }
    }
};

// Computes partial sums over blocks of elements.
template <Mode mode> class Accumulator {
public:
    float acc[sum_block];  // the sum of the last block

    // of_members: all terms are known to be values of the format.
    Accumulator(const Rule& rule, bool of_members)
        : spec(unpack_spec(rule.spec)), rounder(make_rounder<double>(spec, rule.mode, rule.overflow)),
          narrow_rounder(make_rounder<float>(spec, rule.mode, rule.overflow)),
          near(make_near_rounder(spec, rule.overflow)), wide_near(make_wide_near_rounder(spec)),
          random_rounder(make_random_rounder(spec)), seed(rule.seed),
          offset(rule.offset), mask(rule.mask), few(has_few_bits(rule)),
          is_float32(mode == nearest_even && rule.overflow == infinity && spec.exponent_bits == 8 && spec.mantissa_bits == 23),
          fast(rule.mode == nearest_even && NearRounder::allowed(spec)), known_members(of_members),
          needs_settling(!spec.is_signed || rule.overflow == propagate) {}

    // Computes the sum of the terms in acc. Returns true if all sums are known to be finite.
    bool sum(const Terms& terms) {
        const bool finite = make_sum(terms);
        if (!spec.is_plain)  // the sign of a zero partial sum affects no later sum, except for the sign of a zero
            for (int64_t i = 0; i < terms.count; ++i) acc[i] += 0.0f;
        return finite;
    }

private:
    static constexpr int most_ties = 8;  // give up the method `ties` after this many consecutive blocks with a tie
    Spec spec;
    Rounder<double> rounder;
    Rounder<float> narrow_rounder;
    NearRounder near;
    WideNearRounder wide_near;
    RandomRounder random_rounder;
    u64 seed, offset;
    u32 mask;
    bool few;
    bool is_float32, fast, known_members, needs_settling;
    bool may_be_members = true;  // whether all terms so far were values of the format
    int attempts = most_ties;
    float c[sum_block];
    u32 random[4][mode == stochastic ? sum_block + group : 1];
    int64_t first_random = 0;  // the index in `random` of the block's first element

    bool make_sum(const Terms& terms) {
        const int64_t count = terms.count;
        if (terms.is_wide) {
            attempt_generally<double>(terms);
        } else if constexpr (mode == otherwise) {
            // In a format without a sign, a correction may be negative, so terms may not be values of the format.
            if (fast && may_be_members && (spec.is_signed || !terms.kahan) && attempt<members>(terms)) return true;
            attempt_generally(terms);
        } else if (is_float32) {
            attempt<plain>(terms);
        } else if constexpr (mode == stochastic) {
            if (spec.is_signed && RandomRounder::allowed(spec) && (few ? attempt<few_randomly>(terms) : attempt<randomly>(terms))) return true;
            attempt_generally(terms);
        } else if constexpr (mode == toward_zero) {
            attempt<general>(terms);
        } else {
            if (fast && may_be_members && attempt<members>(terms)) return true;
            // One float32 sum that is rounded to odd is faster than one in double, but four of them are not.
            const bool widely = !fast && (terms.kahan || spec.mantissa_bits > 21);
            if (widely && may_be_members && attempt<wide_members>(terms)) return true;
            if (widely && !known_members && attempt<wide>(terms)) return true;
            if (fast && attempts > 0 && !known_members && NearRounder::detects_ties(spec)) {
                const bool done = attempt<ties>(terms);
                attempts = done ? most_ties : attempts - 1;
                if (done) return true;
            }
            if (spec.mantissa_bits <= 21)
                attempt<narrow>(terms);
            else
                attempt<general>(terms);
        }
        for (int64_t i = 0; i < count; ++i) acc[i] = canonical(acc[i]);
        return false;
    }

    template <class G = float> void attempt_generally(const Terms& terms) {
        if constexpr (mode == otherwise)
            attempt<settled, G>(terms);
        else if constexpr (mode == stochastic)
            needs_settling ? attempt<settled, G>(terms) : attempt<general, G>(terms);
        else
            attempt<general, G>(terms);
    }

    template <SumMethod method, class G = float> bool attempt(const Terms& terms) {
        const int64_t count = terms.count;
        G widened[sizeof(G) == sizeof(double) ? sum_block : 1];
        std::memset(acc, 0, static_cast<size_t>(count) * sizeof(float));
        if (terms.kahan) std::memset(c, 0, static_cast<size_t>(count) * sizeof(float));
        BlockChecks<float> checks;
        for (int r = 0; r < terms.tensors;) {
            if (mode == stochastic) draw(terms.begin, count, r, terms.kahan ? 4 : 1, method == general || method == settled);
            if (terms.kahan) {
                add_kahan<method>(terms.at(r, widened), count, checks);
                r += 1;
            } else if constexpr (method == plain || method == members || method == ties) {
                const int some = terms.tensors - r < terms_per_pass ? terms.tensors - r : terms_per_pass;
                if (terms.unpack) {
                    const float* g[terms_per_pass];
                    for (int j = 0; j < some; ++j) g[j] = terms.unpack(terms.codec, r + j);
                    add_some<method>(g, 0, some, count, checks);
                } else {
                    const float* const* g = reinterpret_cast<const float* const*>(terms.x) + r;
                    add_some<method>(g, terms.begin, some, count, checks);
                }
                r += some;
            } else {
                add<method>(terms.at(r, widened), count, checks);
                r += 1;
            }
        }
        if ((method == members || method == wide_members) && (checks.digits & near.beyond)) return may_be_members = false;
        if (method == wide_members || method == wide) return checks.wide_largest <= wide_near.limit;
        if (method == randomly || method == few_randomly) return random_rounder.are_exact(checks);
        return method == plain || method == narrow || method == general || method == settled || (checks.largest <= near.limit && checks.tie != NearRounder::tie);
    }

    // Draws the random bits of the block's elements for one step: only the first half, or all.
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

    struct Rounders {  // local copies, because the compiler assumes that stores to acc may change members
        Rounder<double> general;
        Rounder<float> narrow;
        NearRounder near;
        WideNearRounder wide_near;
        RandomRounder random;
    };

    // Returns whether a + b is exact in float32, which means that the error of Knuth's TwoSum is zero.
    static CFP_MEMBER bool is_exact(float a, float b) {
        const float total = a + b, b_part = total - a;
        return (a - (total - b_part)) + (b - b_part) == 0.0f;
    }

    // Returns Q(a + b). G is double if the terms are doubles.
    template <SumMethod method, class G>
    static CFP_MEMBER float rounded_sum(G a, float b, const Rounders& q, u32 random, BlockChecks<float>& checks) {
        if constexpr (method == randomly)
            return round_randomly(a + b, q.random, random, checks);
        else if constexpr (method == few_randomly)
            return round_randomly<true>(a + b, q.random, random, checks, is_exact(a, b));
        else if constexpr (method == wide_members)
            return static_cast<float>(round_near_wide(static_cast<double>(a) + b, q.wide_near, checks.wide_largest));
        else if constexpr (method == wide)
            return static_cast<float>(round_near_wide(
                add_to_odd(static_cast<double>(a), static_cast<double>(b)), q.wide_near, checks.wide_largest));
        else if constexpr (method == narrow)
            return round<mode>(add_to_odd(static_cast<float>(a), b), q.narrow, 0);
        else if constexpr (method != general && method != settled)
            return near_sum<method>(a, b, q.near, checks);
        else {
            const double exact = add_to_odd(static_cast<double>(a), static_cast<double>(b));
            constexpr bool detects_infinity = mode == toward_zero || method == settled;
            const float rounded = static_cast<float>(round<mode, detects_infinity>(exact, q.general, random));
            return method == settled ? settle(rounded, q.general) : rounded;
        }
    }

    // Computes acc = Q(acc + g).
    template <SumMethod method, class G> void add(const G* g, int64_t count, BlockChecks<float>& all) {
        const Rounders q = {rounder, narrow_rounder, near, wide_near, random_rounder};
        BlockChecks<float> checks = all;
        if constexpr (method == wide_members)
            for (int64_t i = 0; i < count; ++i) checks.digits |= to_bits(g[i]);
        for (int64_t i = 0; i < count; ++i) acc[i] = rounded_sum<method>(g[i], acc[i], q, word(0, i), checks);
        all = checks;
    }

    // Adds several terms in one pass. The processor computes four registers of partial sums independently.
    template <SumMethod method> void add_some(const float* const* g, int64_t begin, int terms, int64_t count, BlockChecks<float>& all) {
        const NearRounder q = near;
        BlockChecks<FloatLanes> met_lanes;
        BlockChecks<float> checks = all;
        int64_t i = 0;
        for (; i + 4 * lanes <= count; i += 4 * lanes) add_lanes<method, FloatLanes>(g, begin, terms, i, lanes, q, met_lanes);
        for (; i + 4 <= count; i += 4) add_lanes<method, float>(g, begin, terms, i, 1, q, checks);
        for (; i < count; ++i)
            for (int r = 0; r < terms; ++r) {
                if (method == members) checks.digits |= to_bits(g[r][begin + i]);
                acc[i] = near_sum<method>(acc[i], g[r][begin + i], q, checks);
            }
        gather(met_lanes, checks);
        all = checks;
    }

    template <SumMethod method, class V>
    CFP_MEMBER void add_lanes(const float* const* g, int64_t begin, int terms, int64_t i, int step, const NearRounder& q, BlockChecks<V>& checks) {
        float* const at = acc + i;
        V p0 = load<V>(at), p1 = load<V>(at + step), p2 = load<V>(at + 2 * step), p3 = load<V>(at + 3 * step);
        for (int r = 0; r < terms; ++r) {
            const float* const from = g[r] + begin + i;
            const V g0 = load<V>(from), g1 = load<V>(from + step), g2 = load<V>(from + 2 * step),
                    g3 = load<V>(from + 3 * step);
            typedef Integers<V> N;
            if (method == members) checks.digits |= N::bits(g0) | N::bits(g1) | N::bits(g2) | N::bits(g3);
            p0 = near_sum<method>(p0, g0, q, checks);
            p1 = near_sum<method>(p1, g1, q, checks);
            p2 = near_sum<method>(p2, g2, q, checks);
            p3 = near_sum<method>(p3, g3, q, checks);
        }
        store(at, p0);
        store(at + step, p1);
        store(at + 2 * step, p2);
        store(at + 3 * step, p3);
    }

    template <SumMethod method, class V> static CFP_MEMBER V near_sum(V a, V b, const NearRounder& q, BlockChecks<V>& checks) {
        if (method == members) return round_near<V>(a + b, q, checks);
        if (method == ties) return round_near_again<V>(a + b, q, checks);
        return a + b;
    }

    // Computes y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t. If t is not finite, c is set to 0.
    template <SumMethod method, class G> void add_kahan(const G* g, int64_t count, BlockChecks<float>& all) {
        // y, t, acc and c are values of the format.
        constexpr SumMethod inner = method == ties ? members : method == wide ? wide_members : method;
        const Rounders q = {rounder, narrow_rounder, near, wide_near, random_rounder};
        BlockChecks<float> checks = all;
        if constexpr (method == wide_members)
            for (int64_t i = 0; i < count; ++i) checks.digits |= to_bits(g[i]);
        for (int64_t i = 0; i < count; ++i) {
            if constexpr (method == members) checks.digits |= to_bits(g[i]);
            const float old = acc[i];
            const float y = rounded_sum<method>(g[i], -c[i], q, word(0, i), checks);
            const float t = rounded_sum<inner>(old, y, q, word(1, i), checks);
            const float gained = rounded_sum<inner>(t, -old, q, word(2, i), checks);
            const float lost = rounded_sum<inner>(gained, -y, q, word(3, i), checks);
            const u32 finite = static_cast<u32>(static_cast<i32>(to_bits(t) & 0x7fffffffu) < 0x7f800000);
            acc[i] = t;
            c[i] = from_bits(to_bits(lost) & (0u - finite));
        }
        all = checks;
    }
};

// Calls body(accumulator) with the accumulator for a rule. of_members: all terms are values of the format.
template <class Body> void with_accumulator(const Rule& rule, bool of_members, const Body& body) {
    const auto run = [&](auto accumulator) { body(*accumulator); };
    switch (template_of(rule.mode, rule.overflow, unpack_spec(rule.spec).is_signed)) {
        case toward_zero: return run(std::make_unique<Accumulator<toward_zero>>(rule, of_members));
        case stochastic: return run(std::make_unique<Accumulator<stochastic>>(rule, of_members));
        case nearest_even: return run(std::make_unique<Accumulator<nearest_even>>(rule, of_members));
        default: return run(std::make_unique<Accumulator<otherwise>>(rule, of_members));
    }
}

void accumulate_range(const void* const* x, const uint8_t* is_wide, int tensors, float* out, int64_t begin, int64_t end,
                      const Rule& rule, bool kahan) {
    constexpr int64_t step = 128;  // small, so that the memory of all tensors is read in steady streams
    with_accumulator(rule, false, [&](auto& accumulator) {
        for (int64_t start = begin; start < end; start += step) {
            const int64_t count = end - start < step ? end - start : step;
            accumulator.sum({start, count, tensors, kahan, x, is_wide, nullptr, nullptr});
            std::memcpy(out + start, accumulator.acc, static_cast<size_t>(count) * sizeof(float));
        }
    });
}

}  // namespace
}  // namespace custom_fp
