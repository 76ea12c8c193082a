// CPU kernels for single elements: quantize, scale, max_magnitude. See cpu/kernels.h for the interface.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/philox.h"
#include "custom_fp.h"
#include "cpu/lanes.h"

namespace custom_fp {
namespace {

// The number of elements that are rounded together. It is large, so that checking the result costs little, and it is a
// multiple of the size of the groups that share random words.
constexpr int long_piece = 1024, random_piece = 512;
static_assert(random_piece % group == 0, "a piece draws whole groups");

// Calls round_piece(x, result, index) for all elements, `piece` elements at a time. `index` is the index of the first
// element and a multiple of `piece`. round_piece may read x again after it has written results. Therefore, if out is x,
// each piece of x is copied first, and if out overlaps x in another way, the results are copied afterwards.
template <int piece, class F, class RoundPiece>
void in_pieces(const F* x, float* out, int64_t begin, int64_t end, u64 offset, const RoundPiece& round_piece) {
    const char *x_begin = reinterpret_cast<const char*>(x + begin), *x_end = reinterpret_cast<const char*>(x + end);
    const char *to_begin = reinterpret_cast<const char*>(out + begin), *to_end = reinterpret_cast<const char*>(out + end);
    const bool apart = x_end <= to_begin || to_end <= x_begin;
    const bool in_place = sizeof(F) == sizeof(float) && x_begin == to_begin;
    F source[piece];
    float result[piece];
    for (int64_t i = begin; i < end;) {
        const u64 index = offset + static_cast<u64>(i);
        const int64_t skip = static_cast<int64_t>(index % piece);
        const int64_t count = end - i < piece - skip ? end - i : piece - skip;
        if (count == piece && (apart || in_place)) {
            if (in_place) std::memcpy(source, x + i, sizeof(source));
            round_piece(in_place ? source : x + i, out + i, index);
        } else {
            std::fill_n(source, piece, F(0));
            std::memcpy(source + skip, x + i, static_cast<size_t>(count) * sizeof(F));
            round_piece(source, result, index - static_cast<u64>(skip));
            std::memcpy(out + i, result + skip, static_cast<size_t>(count) * sizeof(float));
        }
        i += count;
    }
}

// Returns whether only the first half of an element's random bits is used.
inline bool has_few_bits(const Rule& rule) { return !(rule.mask & 0xffffu); }

// The two halves of an element's random bits are drawn separately, because the second half is rarely needed.
template <class F> void quantize_randomly(const F* x, float* out, int64_t begin, int64_t end, const Rule& rule) {
    const Spec spec = unpack_spec(rule.spec);
    const Rounder<F> rounder = make_rounder<F>(spec, stochastic, rule.overflow);
    const RandomRounder fast = make_random_rounder(spec);
    const bool try_fast = sizeof(F) == sizeof(float) && RandomRounder::allowed(spec), few = has_few_bits(rule);
    constexpr int piece = random_piece;
    in_pieces<piece>(x, out, begin, end, rule.offset, [&](const F* __restrict from, float* __restrict result, u64 index) {
        u32 random[piece], rest[group];
        for (int i = 0; i < piece; i += group) fill_half(random + i, index + i, 0, 0, rule.seed, rule.mask);
        if (try_fast) {
            const RandomRounder r = fast;
            BlockChecks<float> checks;
            if (few)
                for (int i = 0; i < piece; ++i)
                    result[i] = round_randomly<true>(static_cast<float>(from[i]), r, random[i], checks);
            else
                for (int i = 0; i < piece; ++i)
                    result[i] = round_randomly(static_cast<float>(from[i]), r, random[i], checks);
            if (r.are_exact(checks)) return;
        }
        const Rounder<F> r = rounder;
        for (int i = 0; i < piece; i += group) {
            fill_half(rest, index + i, 0, 1, rule.seed, rule.mask);
            join_halves(random + i, rest, rule.mask);
        }
        const auto round_all = [&](auto detects_infinity, auto has_form) {
            constexpr u32 read = has_form ? ~0u : ~1u;  // tells the compiler that the last bit is 0 without a form
            for (int i = 0; i < piece; ++i)
                result[i] = static_cast<float>(round<stochastic, detects_infinity>(from[i], r, random[i] & read));
        };
        const bool has_form = rule.mask & 1;
        if (rule.overflow == propagate)
            has_form ? round_all(std::true_type(), std::true_type()) : round_all(std::true_type(), std::false_type());
        else
            has_form ? round_all(std::false_type(), std::true_type()) : round_all(std::false_type(), std::false_type());
    });
}

template <Mode mode, class F>
void quantize_by(const F* x, float* out, int64_t begin, int64_t end, const Rule& rule) {
    const Spec spec = unpack_spec(rule.spec);
    const Rounder<F> rounder = make_rounder<F>(spec, rule.mode, rule.overflow);
    const NearRounder fast = make_near_rounder(spec, rule.overflow);
    const bool try_fast = sizeof(F) == sizeof(float) && rule.mode == nearest_even && NearRounder::fits(spec);
    constexpr int piece = long_piece;
    in_pieces<piece>(x, out, begin, end, 0, [&](const F* __restrict from, float* __restrict result, u64) {
        if (try_fast) {
            const NearRounder r = fast;
            BlockChecks<float> checks;
            for (int i = 0; i < piece; ++i) result[i] = round_near(static_cast<float>(from[i]), r, checks);
            if (checks.largest <= r.limit) return;
        }
        const Rounder<F> r = rounder;
        for (int i = 0; i < piece; ++i) result[i] = static_cast<float>(round<mode>(from[i], r, 0));
    });
}

template <class F> void quantize(const F* x, float* out, int64_t begin, int64_t end, const Rule& rule) {
    const Spec spec = unpack_spec(rule.spec);
    switch (template_of(rule.mode, rule.overflow, true)) {
        case nearest_even: quantize_by<nearest_even>(x, out, begin, end, rule); break;
        case toward_zero: quantize_by<toward_zero>(x, out, begin, end, rule); break;
        case stochastic: quantize_randomly(x, out, begin, end, rule); break;
        default: quantize_by<otherwise>(x, out, begin, end, rule);
    }
    if (spec.is_plain) return;
    if (spec.is_signed) {
        for (int64_t i = begin; i < end; ++i) out[i] += 0.0f;
        return;
    }
    const Rounder<float> rounder = make_rounder<float>(spec, rule.mode, rule.overflow);
    for (int64_t i = begin; i < end; ++i) out[i] = settle(out[i], rounder);
}

void quantize_range(const void* x, bool wide, float* out, int64_t begin, int64_t end, const Rule& rule) {
    if (wide)
        quantize(static_cast<const double*>(x), out, begin, end, rule);
    else
        quantize(static_cast<const float*>(x), out, begin, end, rule);
}

inline int clamp_shift(int shift) { return shift < -400 ? -400 : shift > 400 ? 400 : shift; }

// 2^shift for doubles, as two factors, because a single factor may exceed the range of a double. The product is exact,
// unless its float32 rounding is the same as for 0 or infinity in any case, as for shifts beyond -1300 or 1300.
struct WidePower {
    double a, b;
    explicit WidePower(int shift) {
        const int clamped = shift < -1300 ? -1300 : shift > 1300 ? 1300 : shift;
        a = power_of_two<double>(clamped / 2);
        b = power_of_two<double>(clamped - clamped / 2);
    }
    CFP_MEMBER double times(double x) const { return x * a * b; }
    // Returns x * 2^shift, or, if it exceeds the range of doubles, a number that is rounded in the same way. The result
    // is zero or infinite only if x is.
    CFP_MEMBER double to_round(double x) const {
        const u64 sign = to_bits(x) & Bits<double>::sign, magnitude = to_bits(x) ^ sign, product = to_bits(times(x)) & ~Bits<double>::sign;
        const u64 lost = (magnitude != 0) & (product == 0);
        const u64 past = (product == Bits<double>::infinity) & (magnitude != Bits<double>::infinity);
        return from_bits((product + lost - past) | sign);
    }
};

void scale_all(const double* x, float* out, int64_t begin, int64_t end, int shift) {
    const WidePower power(shift);
    for (int64_t i = begin; i < end; ++i) out[i] = canonical(static_cast<float>(power.times(x[i])));
}

void scale_all(const float* x, float* out, int64_t begin, int64_t end, int shift) {
    if (shift >= -126 && shift <= 127) {  // a single float32 multiplication rounds only once
        const float power = power_of_two<float>(shift);
        for (int64_t i = begin; i < end; ++i) out[i] = canonical(x[i] * power);
        return;
    }
    const double power = power_of_two<double>(clamp_shift(shift));
    for (int64_t i = begin; i < end; ++i) out[i] = scale(x[i], power);
}

void scale_range(const void* x, bool wide, float* out, int64_t begin, int64_t end, int shift) {
    if (wide)
        scale_all(static_cast<const double*>(x), out, begin, end, shift);
    else
        scale_all(static_cast<const float*>(x), out, begin, end, shift);
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

uint64_t max_magnitude_range(const void* x, bool wide, int64_t begin, int64_t end) {
    return wide ? max_magnitude(static_cast<const double*>(x), begin, end)
                : max_magnitude(static_cast<const float*>(x), begin, end);
}

}  // namespace
}  // namespace custom_fp
