// CPU kernels for integers with a scale and a zero point. See kernels.h for the interface.
#pragma once

#include <cstring>

#include "scaled/affine.h"
#include "cpu/partial_lanes.h"
#include "scaled/kernels.h"

namespace custom_fp {
namespace {

CFP_FN FloatLanes less(FloatLanes a, FloatLanes b) { return a < b ? a : b; }  // returns b if either is NaN
CFP_FN FloatLanes more(FloatLanes a, FloatLanes b) { return a > b ? a : b; }

// The smallest value, the largest value and the largest magnitude of a block.
struct Ends {
    FloatLanes low = {}, high = {};
    IntLanes largest = {};

    CFP_MEMBER void meet(FloatLanes x) {
        low = less(x, low);
        high = more(x, high);
        largest = Lanes::more(largest, (IntLanes)Lanes::bits(x) & 0x7fffffff);
    }
};

Range range_of(const Ends& ends) {
    // Without the sign, the bits of floats of the same sign have the order of their magnitudes.
    const IntLanes low = (IntLanes)Lanes::bits(ends.low) & 0x7fffffff, high = (IntLanes)Lanes::bits(ends.high) & 0x7fffffff;
    return {-from_bits(static_cast<u32>(largest_of(low))), from_bits(static_cast<u32>(largest_of(high))),
            static_cast<u32>(largest_of(ends.largest))};
}

Range affine_range(const float* x, int64_t n) {
    Ends ends;
    for (int64_t i = 0; i < n; i += lanes) ends.meet(load_partial(x + i, n - i));
    return range_of(ends);
}

struct AffineLanes {
    FloatLanes scale, inverse, zero, levels;

    AffineLanes(const AffineScale& of, float most)
        : scale(FloatLanes{} + of.scale), inverse(FloatLanes{} + of.inverse), zero(FloatLanes{} + of.zero),
          levels(FloatLanes{} + most) {}

    CFP_MEMBER FloatLanes code(FloatLanes x) const {
        const FloatLanes whole = (x * inverse + 0x1.8p23f) - 0x1.8p23f;
        return less(more(whole + zero, FloatLanes{}), levels);
    }
};

// Calls one(begin, count, scale) for the blocks of n adjacent values. The scales of several blocks are computed first.
template <class One>
CFP_FN void each_affine(const float* x, int64_t n, int64_t block, float levels, const AffineScale* given,
                        const One& one) {
    constexpr int64_t most = 32, most_values = 4096;
    AffineScale found[most];
    const int64_t step = smaller(most, larger(int64_t(1), most_values / block)) * block;
    for (int64_t first = 0; first < n; first += step) {
        const int64_t end = smaller(n, first + step);
        for (int64_t begin = first, b = 0; begin < end; begin += block, ++b) {
            if (given) {
                found[b] = *given;
                continue;
            }
            const Range range = affine_range(x + begin, smaller(block, end - begin));
            found[b] = affine_scale(range.low, range.high, range.largest, levels);
        }
        for (int64_t begin = first, b = 0; begin < end; begin += block, ++b)
            one(begin, smaller(block, end - begin), found[b]);
    }
}

void affine_quantize(const float* x, float* out, int64_t n, int64_t block, float levels, const AffineScale* given) {
    each_affine(x, n, block, levels, given, [&](int64_t begin, int64_t count, const AffineScale& of) {
        const AffineLanes a(of, levels);
        for (int64_t i = begin; i < begin + count; i += lanes) {
            __builtin_prefetch(x + i + ahead);
            const FloatLanes code = a.code(load_partial(x + i, begin + count - i));
            store_partial(out + i, (code - a.zero) * a.scale, begin + count - i);
        }
    });
}

void affine_encode(const float* x, u8* codes, float* scales, u8* zeros, int64_t n, int64_t block, float levels,
                   const AffineScale* given) {
    each_affine(x, n, block, levels, given, [&](int64_t begin, int64_t count, const AffineScale& of) {
        const AffineLanes a(of, levels);
        if (scales) scales[begin / block] = of.scale;
        if (zeros) zeros[begin / block] = static_cast<u8>(of.zero);
        for (int64_t i = begin; i < begin + count; i += lanes) {
            const FloatLanes code = of.scale == of.scale ? a.code(load_partial(x + i, begin + count - i)) : FloatLanes{};
            store_bytes(codes + i, __builtin_convertvector(code, IntLanes), begin + count - i);
        }
    });
}

void affine_decode(const u8* codes, const float* scales, const u8* zeros, float* out, int64_t n, int64_t block) {
    for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t end = smaller(n, begin + block);
        const float scale = scales[begin / block], zero = static_cast<float>(zeros[begin / block]);
        for (int64_t i = begin; i < end; ++i) out[i] = (static_cast<float>(codes[i]) - zero) * scale;
    }
}

// Processes one block of `high` rows of `wide` values, where rows have a stride of `columns`. Writes values, or codes
// if `out` is null.
AffineScale affine_tile(const float* x, float* out, u8* codes, int64_t high, int64_t wide, int64_t columns,
                        float levels) {
    Ends ends;
    for (int64_t row = 0; row < high; ++row)
        for (int64_t c = 0; c < wide; c += lanes) ends.meet(load_partial(x + row * columns + c, wide - c));
    const Range range = range_of(ends);
    const AffineScale of = affine_scale(range.low, range.high, range.largest, levels);
    const AffineLanes a(of, levels);
    for (int64_t row = 0; row < high; ++row)
        for (int64_t c = 0; c < wide; c += lanes) {
            const int64_t at = row * columns + c;
            const FloatLanes code = of.scale == of.scale ? a.code(load_partial(x + at, wide - c)) : FloatLanes{};
            if (out)
                store_partial(out + at, (code - a.zero) * a.scale, wide - c);
            else
                store_bytes(codes + at, __builtin_convertvector(code, IntLanes), wide - c);
        }
    return of;
}

void affine_columns(const float* x, float* out, int64_t rows, int64_t inner, int64_t n, float levels) {
    Ends ends[columns_per_pass / lanes];
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < n; c += lanes) ends[c / lanes].meet(load_partial(x + row * inner + c, n - c));
    float scales[3][columns_per_pass];
    for (int64_t c = 0; c < n; ++c) {
        const Ends& of = ends[c / lanes];
        const int j = static_cast<int>(c % lanes);
        const AffineScale found = affine_scale(of.low[j], of.high[j], static_cast<u32>(of.largest[j]), levels);
        scales[0][c] = found.scale;
        scales[1][c] = found.inverse;
        scales[2][c] = found.zero;
    }
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < n; c += lanes) {
            AffineLanes a({0.0f, 0.0f, 0.0f}, levels);
            a.scale = load_partial(scales[0] + c, n - c);
            a.inverse = load_partial(scales[1] + c, n - c);
            a.zero = load_partial(scales[2] + c, n - c);
            const FloatLanes code = a.code(load_partial(x + row * inner + c, n - c));
            store_partial(out + row * inner + c, (code - a.zero) * a.scale, n - c);
        }
}

}  // namespace
}  // namespace custom_fp
