// CPU kernels for the elements of blocks: finding the largest magnitude, and rounding under a scale. See kernels.h.
//
// A piece is one row of some adjacent tiles, with `columns` values. e: elements, which are values of the element
// format. s: factors by which elements are multiplied. r: factors by which x is multiplied.
#pragma once

#include "cpu/codes.h"
#include "tiles/kernels.h"

namespace custom_fp {
namespace {

typedef Integers<FloatLanes> Lanes;

constexpr int ahead = 1024;  // floats to prefetch, because the processor does not prefetch in such long loops

CFP_FN i32 largest_lane(IntLanes x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)x);
#else
    i32 each[lanes], largest = 0;
    std::memcpy(each, &x, sizeof each);
    for (int i = 0; i < lanes; ++i) largest = larger(largest, each[i]);
    return largest;
#endif
}

// Computes the largest magnitudes of tiles that consist of this many registers.
template <int registers> void largest_of_tiles(const float* x, u32* amax, int64_t tiles) {
    for (int64_t tile = 0; tile < tiles; ++tile, x += registers * lanes) {
        IntLanes most = {};
        for (int i = 0; i < registers; ++i) {
            __builtin_prefetch(x + i * lanes + ahead);
            most = Lanes::more(most, (IntLanes)Lanes::bits(load<FloatLanes>(x + i * lanes)) & 0x7fffffff);
        }
        amax[tile] = static_cast<u32>(largest_lane(most));
    }
}

u32 largest_bits(const float* x, int64_t n, bool all) {
    IntLanes most = {};
    i32 rest = 0;
    int64_t i = 0;
    if (all) {
        IntLanes four[4] = {};
        for (; i + 4 * lanes <= n; i += 4 * lanes)
            for (int j = 0; j < 4; ++j) {
                __builtin_prefetch(x + i + j * lanes + ahead);
                four[j] = Lanes::more(four[j], (IntLanes)Lanes::bits(load<FloatLanes>(x + i + j * lanes)) & 0x7fffffff);
            }
        most = Lanes::more(Lanes::more(four[0], four[1]), Lanes::more(four[2], four[3]));
    }
    for (; i + lanes <= n; i += lanes) {
        IntLanes bits = (IntLanes)Lanes::bits(load<FloatLanes>(x + i)) & 0x7fffffff;
        if (!all) bits &= bits < 0x7f800000;
        most = Lanes::more(most, bits);
    }
    for (; i < n; ++i) {
        const i32 bits = static_cast<i32>(to_bits(x[i]) & 0x7fffffffu);
        rest = larger(rest, all || bits < 0x7f800000 ? bits : 0);
    }
    return static_cast<u32>(larger(rest, largest_lane(most)));
}

// Performs steps 4 and 5 of formats/scaled_format.py.
class Elements {
public:
    Elements(const Scaling& f, const Rule& rule)
        : f(f), rule{f.element, rule.mode, saturate, rule.seed, rule.offset, rule.mask}, near(make_near_rounder(unpack_spec(f.element), saturate)),
          random(make_random_rounder(unpack_spec(f.element))),
          fast(rule.mode == nearest_even && NearRounder::fits(unpack_spec(f.element)) &&
                near.limit >= static_cast<i32>(to_bits(f.most))),
          draws(rule.mode == stochastic && RandomRounder::allowed(unpack_spec(f.element))) {}

    bool is_fast() const { return fast; }
    bool is_random() const { return draws; }  // whether random bits can be drawn in advance
    bool is_integer() const { return f.is_integer; }

    // Returns the element of x, if the fast path is correct for it.
    template <bool integer, class F> CFP_MEMBER F round(F x, F r) const {
        typedef Integers<F> N;
        const F q = clamp<F>(x * r, F{} + f.least, F{} + f.most);
        const typename N::I exponent =
            N::more((typename N::I)(N::bits(q) & 0x7f800000u), typename N::I{} + near.min_exponent);
        const F magic = N::value((typename N::U)(exponent + near.offset)), rounded = (q + magic) - magic;
        return integer ? rounded : with_sign<F>(rounded, q);
    }

    // Rounds q = x * r to elements, in place. index: the index of the first element in the tensor.
    void finish(float* q, int64_t count, u64 index) const {
        for (int64_t i = 0; i < count; ++i) q[i] = clamp(q[i], f.least, f.most);
        Rule here = rule;
        here.offset += index;
        quantize(q, q, 0, count, here);
        if (f.is_integer)
            for (int64_t i = 0; i < count; ++i) q[i] = clamp(q[i], f.least, f.most) + 0.0f;
    }

    // Draws the first halves of the random bits of `count` elements from `index` on. words: memory for `drawn(count)`
    // words.
    const u32* draw(u32* words, int64_t count, u64 index) const {
        const u64 begin = rule.offset + index, skip = begin % group;
        for (u64 i = 0; i < skip + static_cast<u64>(count); i += group)
            fill_half(words + i, begin - skip + i, 0, 0, rule.seed, rule.mask);
        return words + skip;
    }
    static int64_t drawn(int64_t count) { return count + 2 * group; }

    // Rounds as `finish` above, with random bits that were drawn before.
    void finish(float* q, int64_t count, u64 index, const u32* bits) const {
        const RandomRounder r = random;
        const float least = f.least, most = f.most;
        float e[random_piece];
        for (int64_t start = 0; start < count; start += random_piece) {
            const int64_t end = smaller<int64_t>(random_piece, count - start);
            BlockChecks<float> checks;
            if (has_few_bits(rule))
                for (int64_t i = 0; i < end; ++i)
                    e[i] = round_randomly<true>(clamp(q[start + i], least, most), r, bits[start + i], checks);
            else
                for (int64_t i = 0; i < end; ++i)
                    e[i] = round_randomly(clamp(q[start + i], least, most), r, bits[start + i], checks);
            if (!r.are_exact(checks)) {
                finish(q + start, end, index + static_cast<u64>(start));
                continue;
            }
            if (f.is_integer)
                for (int64_t i = 0; i < end; ++i) e[i] = clamp(e[i], least, most) + 0.0f;
            std::memcpy(q + start, e, static_cast<size_t>(end) * sizeof(float));
        }
    }

private:
    Scaling f;
    Rule rule;
    NearRounder near;
    RandomRounder random;
    bool fast, draws;
};

template <int registers, class Step>
CFP_FN void over_tiles(int64_t columns, const float* r, const float* s, const Step& step) {
    constexpr int width = registers * lanes;
    const int64_t tiles = columns / width;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const FloatLanes r_lanes = FloatLanes{} + r[tile], s_lanes = FloatLanes{} + s[tile];
        for (int i = 0; i < registers; ++i) step(tile * width + i * lanes, r_lanes, s_lanes);
    }
    for (int64_t i = tiles * width; i < columns; ++i) step(i, r[tiles], s[tiles]);
}

// Calls step(i, r, s) for the registers of a piece. r and s have an entry for each tile of `width` columns, or for each
// column if the width is not a multiple of the number of lanes.
template <class Step>
CFP_FN void over_piece(int64_t columns, int64_t width, const float* r, const float* s, const Step& step) {
    // These are the usual widths. Their loops have a constant length.
    if (width == lanes)
        over_tiles<1>(columns, r, s, step);
    else if (width == 2 * lanes)
        over_tiles<2>(columns, r, s, step);
    else if (width == 4 * lanes)
        over_tiles<4>(columns, r, s, step);
    else if (width % lanes == 0) {
        for (int64_t tile = 0, begin = 0; begin < columns; ++tile, begin += width) {
            const int64_t end = smaller(columns, begin + width);
            const FloatLanes r_lanes = FloatLanes{} + r[tile], s_lanes = FloatLanes{} + s[tile];
            int64_t i = begin;
            for (; i + lanes <= end; i += lanes) step(i, r_lanes, s_lanes);
            for (; i < end; ++i) step(i, r[tile], s[tile]);
        }
    } else {
        int64_t i = 0;
        for (; i + lanes <= columns; i += lanes) step(i, load<FloatLanes>(r + i), load<FloatLanes>(s + i));
        for (; i < columns; ++i) step(i, r[i], s[i]);
    }
}

CFP_FN FloatLanes load_like(const float* x, FloatLanes) { return load<FloatLanes>(x); }
CFP_FN float load_like(const float* x, float) { return *x; }
CFP_FN void store(float* to, float x) { *to = x; }

template <bool integer>
void round_piece(const float* x, float* out, int64_t columns, int64_t width, const float* r, const float* s,
                 const Elements& elements, bool scaled) {
    const Elements e = elements;
    if (scaled)
        over_piece(columns, width, r, s, [&](int64_t i, auto r, auto s) {
            store(out + i, e.round<integer>(load_like(x + i, r), r) * s);
        });
    else
        over_piece(columns, width, r, s, [&](int64_t i, auto r, auto) {
            store(out + i, e.round<integer>(load_like(x + i, r), r));
        });
}

// Computes the errors of elements: value minus x. e: the elements of a piece.
void subtract_piece(const float* e, const float* x, float* off, int64_t columns, int64_t width, const float* s) {
    over_piece(columns, width, s, s, [&](int64_t i, auto s, auto) {
        store(off + i, load_like(e + i, s) * s - load_like(x + i, s));
    });
}

// Computes the same on the fast path, for elements that are not integers.
void round_and_subtract_piece(const float* x, float* off, int64_t columns, int64_t width, const float* r, const float* s,
                              const Elements& elements) {
    const Elements e = elements;
    over_piece(columns, width, r, s, [&](int64_t i, auto r, auto s) {
        const auto at = load_like(x + i, r);
        store(off + i, e.round<false>(at, r) * s - at);
    });
}

void multiply_piece(const float* e, float* out, int64_t columns, int64_t width, const float* s) {
    over_piece(columns, width, s, s, [&](int64_t i, auto s, auto) { store(out + i, load_like(e + i, s) * s); });
}

}  // namespace
}  // namespace custom_fp
