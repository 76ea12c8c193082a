// CPU loops over elements: quantize, scale, max_magnitude, accumulate. See cpu_kernels.h for the contract.
#pragma once

#include <cstring>

#include "cpu_kernels.h"
#include "custom_fp.h"
#include "philox.h"

namespace custom_fp {
namespace {

constexpr int64_t block = 1024;  // elements worked on at a time: a few arrays of them stay in the first cache

// random words of elements begin..begin + 64, begin a multiple of 64
inline void fill_random(u32* out, int64_t begin, u32 stream, u64 seed) {
    for (u32 lane = 0; lane < 16; ++lane) {
        const Words words = random_words(static_cast<u64>(begin) / 64, lane, stream, seed);
        for (int word = 0; word < 4; ++word) out[16 * word + lane] = words.w[word];
    }
}

template <Mode mode, class F>
void quantize_range(const F* x, float* out, int64_t begin, int64_t end, const Rule& rule) {
    const Rounder<F> rounder = make_rounder<F>(unpack_spec(rule.spec), mode, rule.saturate);
    if (mode != stochastic) {
        for (int64_t i = begin; i < end; ++i) out[i] = static_cast<float>(round<mode>(x[i], rounder, 0));
        return;
    }
    u32 random[64];
    for (int64_t start = begin; start < end; start += 64) {
        fill_random(random, start, 0, rule.seed);
        const int64_t count = end - start < 64 ? end - start : 64;
        for (int64_t i = 0; i < count; ++i)
            out[start + i] = static_cast<float>(round<mode>(x[start + i], rounder, random[i]));
    }
}

template <class F> void quantize(const F* x, float* out, int64_t begin, int64_t end, const Rule& rule) {
    if (rule.mode == nearest_even) quantize_range<nearest_even>(x, out, begin, end, rule);
    if (rule.mode == toward_zero) quantize_range<toward_zero>(x, out, begin, end, rule);
    if (rule.mode == stochastic) quantize_range<stochastic>(x, out, begin, end, rule);
}

inline int clamp_shift(int shift) { return shift < -300 ? -300 : shift > 300 ? 300 : shift; }

void scale_range(const float* x, float* out, int64_t begin, int64_t end, int shift) {
    if (shift >= -126 && shift <= 127) {  // one float32 multiplication, hence one rounding
        const float power = power_of_two<float>(shift);
        for (int64_t i = begin; i < end; ++i) out[i] = x[i] * power;
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

// How one addition is made so that a single rounding follows: see `Adder::add`.
enum Sum { plain, odd };

template <Sum sum, class F> CFP_FN F exact_sum(F a, F b) { return sum == plain ? a + b : add_to_odd(a, b); }

// One partial sum after the other over blocks of elements; acc and the Kahan correction c live in the first cache.
template <Sum sum, Mode mode, class F> struct Accumulator {
    Rounder<F> rounder;
    u64 seed;
    float acc[block], c[block];
    u32 random[4][mode == stochastic ? block : 1];

    explicit Accumulator(const Rule& rule)
        : rounder(make_rounder<F>(unpack_spec(rule.spec), mode, rule.saturate)), seed(rule.seed) {}

    void start() {
        std::memset(acc, 0, sizeof acc);
        std::memset(c, 0, sizeof c);
    }

    void draw(int64_t begin, int64_t count, int step, int streams) {
        if (mode != stochastic) return;
        for (int j = 0; j < streams; ++j)
            for (int64_t i = 0; i < count; i += 64)
                fill_random(random[j] + i, begin + i, static_cast<u32>(4 * step + j), seed);
    }

    u32 word(int stream, int64_t i) const { return mode == stochastic ? random[stream][i] : 0; }

    // acc = Q(acc + g)
    void add(const float* g, int64_t begin, int64_t count, int step) {
        draw(begin, count, step, 1);
        for (int64_t i = 0; i < count; ++i)
            acc[i] = static_cast<float>(round<mode>(exact_sum<sum, F>(acc[i], g[i]), rounder, word(0, i)));
    }

    // y = Q(g - c); t = Q(acc + y); c = Q(Q(t - acc) - y); acc = t; c = 0 once t is not finite
    void add_kahan(const float* g, int64_t begin, int64_t count, int step) {
        draw(begin, count, step, 4);
        for (int64_t i = 0; i < count; ++i) {
            const F old = acc[i];
            const F y = round<mode>(exact_sum<sum, F>(g[i], -c[i]), rounder, word(0, i));
            const F t = round<mode>(exact_sum<sum, F>(old, y), rounder, word(1, i));
            const F gained = round<mode>(exact_sum<sum, F>(t, -old), rounder, word(2, i));
            const float lost = static_cast<float>(round<mode>(exact_sum<sum, F>(gained, -y), rounder, word(3, i)));
            acc[i] = static_cast<float>(t);
            const u32 finite = (to_bits(acc[i]) & 0x7fffffffu) < 0x7f800000u;
            c[i] = from_bits(to_bits(lost) & (0u - finite));
        }
    }
};

// Calls body(accumulator) with the cheapest accumulator that is exact. `members`: all terms are values of the format.
// Two values of p digits, added in 24 and then rounded to p, are rounded as if once if 24 >= 2 p + 2 (Figueroa 1995),
// and rounding to odd needs 24 >= p + 2; where neither holds, and where the rounding is not to nearest, in float64.
template <class Body> void with_accumulator(const Rule& rule, bool members, const Body& body) {
    const Spec spec = unpack_spec(rule.spec);
    const bool is_float32 = spec.exponent_bits == 8 && spec.mantissa_bits == 23;
    if (rule.mode == nearest_even && (is_float32 || (members && spec.mantissa_bits <= 10))) {
        Accumulator<plain, nearest_even, float> accumulator(rule);
        body(accumulator);
    } else if (rule.mode == nearest_even && spec.mantissa_bits <= 21) {
        Accumulator<odd, nearest_even, float> accumulator(rule);
        body(accumulator);
    } else if (rule.mode == nearest_even) {
        Accumulator<odd, nearest_even, double> accumulator(rule);
        body(accumulator);
    } else if (rule.mode == toward_zero) {
        Accumulator<odd, toward_zero, double> accumulator(rule);
        body(accumulator);
    } else {
        Accumulator<odd, stochastic, double> accumulator(rule);
        body(accumulator);
    }
}

void accumulate_range(const float* const* x, int tensors, float* out, int64_t begin, int64_t end, const Rule& rule,
                      bool kahan) {
    with_accumulator(rule, false, [&](auto& accumulator) {
        for (int64_t start = begin; start < end; start += block) {
            const int64_t count = end - start < block ? end - start : block;
            accumulator.start();
            for (int r = 0; r < tensors; ++r) {
                if (kahan)
                    accumulator.add_kahan(x[r] + start, start, count, r);
                else
                    accumulator.add(x[r] + start, start, count, r);
            }
            std::memcpy(out + start, accumulator.acc, static_cast<size_t>(count) * sizeof(float));
        }
    });
}

}  // namespace
}  // namespace custom_fp
