// CPU loops over blocks and tiles of values that share a scale. tiles.h has the arithmetic of a scale, formats/block.py
// the definition; what rounds and packs single values is that of formats without scales. See kernels.h for the contract.
//
// Legend: a unit is a run of tiles side by side, `tiles` of them over `columns` columns, `rows` high; a piece is one row
// of it. e: elements, the values of their format; s: what they are multiplied by; r: what x is.
#pragma once

#include <vector>

#include "cpu_codes.h"
#include "tiles/kernels.h"

namespace custom_fp {
namespace {

typedef Integers<FloatLanes> Lanes;

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

// Of tiles of so many registers.
template <int registers> void largest_of_tiles(const float* x, u32* amax, int64_t tiles) {
    for (int64_t tile = 0; tile < tiles; ++tile, x += registers * lanes) {
        IntLanes most = {};
        for (int i = 0; i < registers; ++i)
            most = Lanes::more(most, (IntLanes)Lanes::bits(load<FloatLanes>(x + i * lanes)) & 0x7fffffff);
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
            for (int j = 0; j < 4; ++j)
                four[j] = Lanes::more(four[j], (IntLanes)Lanes::bits(load<FloatLanes>(x + i + j * lanes)) & 0x7fffffff);
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

// ---- elements --------------------------------------------------------------------------------------------------

// Steps 4 and 5.
class Elements {
public:
    Elements(const Scaling& f, const Rule& rule)
        : f(f), rule{f.element, rule.mode, true, rule.seed, rule.offset}, near(make_near_rounder(unpack_spec(f.element), true)),
          quick(rule.mode == nearest_even && NearRounder::fits(unpack_spec(f.element)) &&
                near.limit >= static_cast<i32>(to_bits(f.most))),
          is_stochastic(rule.mode == stochastic) {}

    bool is_quick() const { return quick; }
    bool is_integer() const { return f.is_integer; }

    // The element of x, where all is quick.
    template <bool integer, class F> CFP_MEMBER F round(F x, F r) const {
        typedef Integers<F> N;
        const F q = hold<F>(x * r, F{} + f.least, F{} + f.most);
        const typename N::I exponent =
            N::more((typename N::I)(N::bits(q) & 0x7f800000u), typename N::I{} + near.min_exponent);
        const F magic = N::value((typename N::U)(exponent + near.offset)), rounded = (q + magic) - magic;
        return integer ? rounded : with_sign<F>(rounded, q);
    }

    // q = x * r to elements, in place; index: of the first in the tensor.
    void finish(float* q, int64_t count, u64 index) const {
        for (int64_t i = 0; i < count; ++i) q[i] = hold(q[i], f.least, f.most);
        Rule here = rule;
        here.offset += index;
        quantize(q, q, 0, count, here);
        if (f.is_integer)
            for (int64_t i = 0; i < count; ++i) q[i] = hold(q[i], f.least, f.most) + 0.0f;
    }

private:
    Scaling f;
    Rule rule;
    NearRounder near;
    bool quick, is_stochastic;
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

// step(i, r, s): over a piece, whose r and s stand for a tile of `width` columns each, or, where
// that is no number of lanes, for a column each.
template <class Step>
CFP_FN void over_piece(int64_t columns, int64_t width, const float* r, const float* s, const Step& step) {
    // the usual widths, as loops of a known length
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

void multiply_piece(const float* e, float* out, int64_t columns, int64_t width, const float* s) {
    over_piece(columns, width, s, s, [&](int64_t i, auto s, auto) { store(out + i, load_like(e + i, s) * s); });
}

// ---- scales ----------------------------------------------------------------------------------------------------

template <int kind, int rule>
void scale_codes(const u32* amax, u32* codes, int64_t tiles, float t, float times, Scaling f) {
    f.kind = kind, f.rule = rule;
    const Spec spec = unpack_spec(f.scale);
    const Rounder<float> rounder = make_rounder<float>(spec, nearest_even, false);
    const Coder coder = make_coder(spec);
    for (int64_t i = 0; i < tiles; ++i) codes[i] = block_scale(amax[i], t, times, f, rounder, coder);
}

void scale_codes(const u32* amax, u32* codes, int64_t tiles, float t, float times, const Scaling& f) {
    if (f.rule == of_power) scale_codes<power_scale, of_power>(amax, codes, tiles, t, times, f);
    else if (f.rule == of_ratio_up) scale_codes<power_scale, of_ratio_up>(amax, codes, tiles, t, times, f);
    else if (f.kind == power_scale) scale_codes<power_scale, of_amax>(amax, codes, tiles, t, times, f);
    else if (f.kind == small_scale) scale_codes<small_scale, of_amax>(amax, codes, tiles, t, times, f);
    else scale_codes<float_scale, of_amax>(amax, codes, tiles, t, times, f);
}

template <int kind> void scale_values(const u32* codes, float* s, float* r, int64_t tiles, float t, Scaling f) {
    f.kind = kind;
    const Coder coder = make_coder(unpack_spec(f.scale));
    for (int64_t i = 0; i < tiles; ++i) {
        const float value = scale_value(codes[i], f, coder);
        r[i] = scale_reciprocal(value, t);
        s[i] = value * t;
    }
}

void scale_values(const u32* codes, float* s, float* r, int64_t tiles, float t, const Scaling& f) {
    if (f.kind == power_scale) scale_values<power_scale>(codes, s, r, tiles, t, f);
    else if (f.kind == small_scale) scale_values<small_scale>(codes, s, r, tiles, t, f);
    else scale_values<float_scale>(codes, s, r, tiles, t, f);
}

template <class F> using Eight __attribute__((vector_size(8 * sizeof(F)))) = F;

// ---- units -----------------------------------------------------------------------------------------------------

class Units {
public:
    // Where the unit lies.
    struct Unit {
        int64_t first, rows, columns, tiles, scale;  // first: its element; scale: of its first tile
    };

    Units(const Tiling& tiling, const Scaling& f, const Rule& rule, float t)
        : g(tiling), f(f), elements(f, rule), t(t), has_columns(g.width % lanes != 0),
          most(smaller(g.at_once(), g.across())), across(smaller(most * g.width, g.columns)), amax(most), codes(most),
          tile_s(most), tile_r(most), peak(g.height > 1 ? across : 0), column_s(has_columns ? across : 0),
          column_r(has_columns ? across : 0), buffer(across) {}

    template <class Each> void over(int64_t begin, int64_t end, const Each& each) const {
        const int64_t runs = g.runs(), down = g.down();
        for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t strip = unit / runs, tile = (unit - strip * runs) * most;
            const int64_t plane = strip / down, row = (strip - plane * down) * g.height, column = tile * g.width;
            each(Unit{(plane * g.rows + row) * g.columns + column, smaller(g.height, g.rows - row),
                      smaller(across, g.columns - column), smaller(most, g.across() - tile), strip * g.across() + tile});
        }
    }

    // The scales of a unit, from x.
    void find(const float* x, const Unit& u, float times = 1.0f) {
        largest(x + u.first, u);
        scale_codes(amax.data(), codes.data(), u.tiles, t, times, f);
        scale_values(codes.data(), tile_s.data(), tile_r.data(), u.tiles, t, f);
        spread(u);
    }

    // The scales of a unit, as they are written.
    void read(const void* scales, const Unit& u) {
        for (int64_t i = 0; i < u.tiles; ++i)
            codes[i] = f.kind == float_scale ? static_cast<const u32*>(scales)[u.scale + i]
                                             : static_cast<const u8*>(scales)[u.scale + i];
        scale_values(codes.data(), tile_s.data(), tile_r.data(), u.tiles, t, f);
        spread(u);
    }

    void write(void* scales, const Unit& u) const {
        for (int64_t i = 0; i < u.tiles; ++i)
            if (f.kind == float_scale)
                static_cast<u32*>(scales)[u.scale + i] = codes[i];
            else
                static_cast<u8*>(scales)[u.scale + i] = static_cast<u8>(codes[i]);
    }

    // The values, or where not `scaled` the elements, of a piece of x, to out, which may be x.
    void round(const float* x, float* out, int64_t columns, u64 index, bool scaled) {
        const float *r = has_columns ? column_r.data() : tile_r.data(), *s = has_columns ? column_s.data() : tile_s.data();
        if (elements.is_quick()) {
            (elements.is_integer() ? round_piece<true> : round_piece<false>)(x, out, columns, g.width, r, s, elements,
                                                                             scaled);
            return;
        }
        multiply_piece(x, buffer.data(), columns, g.width, r);
        elements.finish(buffer.data(), columns, index);
        if (scaled)
            multiply(buffer.data(), out, columns);
        else
            std::memcpy(out, buffer.data(), static_cast<size_t>(columns) * sizeof(float));
    }

    // Elements to values.
    void multiply(const float* e, float* out, int64_t columns) const {
        multiply_piece(e, out, columns, g.width, has_columns ? column_s.data() : tile_s.data());
    }

    // Elements of a unit, `columns` a row, and its scales, where two are tried (4over6).
    void choose(const float* x, const Unit& u) {
        largest(x + u.first, u);
        const size_t size = static_cast<size_t>(g.height * g.width);
        at_x.resize(size), at_6.resize(size), at_4.resize(size);
        chosen.resize(static_cast<size_t>(u.rows * u.columns));
        const auto tiles = static_cast<size_t>(u.tiles);
        two.resize(tiles), two_s.resize(tiles), two_r.resize(tiles);
        scale_codes(amax.data(), codes.data(), u.tiles, t, 1.0f, f);
        scale_codes(amax.data(), two.data(), u.tiles, t, 1.5f, f);
        scale_values(codes.data(), tile_s.data(), tile_r.data(), u.tiles, t, f);
        scale_values(two.data(), two_s.data(), two_r.data(), u.tiles, t, f);
        if (size == 16)
            choose_each<16>(x, u);
        else
            choose_each<0>(x, u);
        spread(u);
    }

    bool has_nan(const Unit& u) const {
        bool found = false;
        for (int64_t i = 0; i < u.tiles; ++i) found |= tile_s[i] != tile_s[i];
        return found;
    }

    // Of a piece, of tiles whose scale is NaN.
    template <class T> void clear_nan(T* codes, int64_t columns) const {
        for (int64_t i = 0; i * g.width < columns; ++i)
            if (tile_s[i] != tile_s[i])
                std::memset(codes + i * g.width, 0, smaller(g.width, columns - i * g.width) * sizeof(T));
    }

    const float* choice(const Unit& u, int64_t row) const { return &chosen[row * u.columns]; }

private:
    Tiling g;
    Scaling f;
    Elements elements;
    float t;
    bool has_columns;
    int64_t most, across;  // tiles and columns of the largest unit
    std::vector<u32> amax, codes, two;
    std::vector<float> tile_s, tile_r;
    std::vector<i32> peak;
    std::vector<float> column_s, column_r, buffer, at_x, at_6, at_4, chosen, two_s, two_r;

    void largest(const float* x, const Unit& u) {
        if (g.height == 1) {
            const int64_t whole = u.columns / g.width, registers = g.width % lanes ? 0 : g.width / lanes;
            int64_t first = whole;
            if (registers == 1) largest_of_tiles<1>(x, amax.data(), whole);
            else if (registers == 2) largest_of_tiles<2>(x, amax.data(), whole);
            else if (registers == 4) largest_of_tiles<4>(x, amax.data(), whole);
            else first = 0;
            for (int64_t i = first, column = first * g.width; i < u.tiles; ++i, column += g.width)
                amax[i] = largest_bits(x + column, smaller(g.width, u.columns - column), true);
            return;
        }
        std::fill(peak.begin(), peak.end(), 0);
        i32* const most_of = peak.data();
        for (int64_t row = 0; row < u.rows; ++row) {
            const float* from = x + row * g.columns;
            for (int64_t i = 0; i < u.columns; ++i)
                most_of[i] = larger(most_of[i], static_cast<i32>(to_bits(from[i]) & 0x7fffffffu));
        }
        for (int64_t i = 0; i < u.tiles; ++i) {
            i32 found = 0;
            const int64_t end = smaller(u.columns, (i + 1) * g.width);
            for (int64_t column = i * g.width; column < end; ++column) found = larger(found, most_of[column]);
            amax[i] = static_cast<u32>(found);
        }
    }

    void spread(const Unit& u) {
        if (!has_columns) return;
        if (g.width == 1) {
            std::memcpy(column_s.data(), tile_s.data(), static_cast<size_t>(u.columns) * sizeof(float));
            std::memcpy(column_r.data(), tile_r.data(), static_cast<size_t>(u.columns) * sizeof(float));
            return;
        }
        for (int64_t i = 0; i < u.tiles; ++i) {
            const int64_t begin = i * g.width, end = smaller(u.columns, begin + g.width);
            std::fill(column_s.begin() + begin, column_s.begin() + end, tile_s[i]);
            std::fill(column_r.begin() + begin, column_r.begin() + end, tile_r[i]);
        }
    }

    // length: of a tile, where it is known before; else 0.
    template <int length> void choose_each(const float* x, const Unit& u) {
        const float* const from = x + u.first;
        const Elements rounder = elements;
        for (int64_t i = 0; i < u.tiles; ++i) {
            const int64_t column = i * g.width, columns = smaller(g.width, u.columns - column);
            const bool in_place = g.height == 1 && columns == g.width;
            if (!in_place) {
                std::fill(at_x.begin(), at_x.end(), 0.0f);
                for (int64_t row = 0; row < u.rows; ++row)
                    std::memcpy(&at_x[row * g.width], from + row * g.columns + column, columns * sizeof(float));
            }
            const float* const tile = in_place ? from + column : at_x.data();
            const double error_6 = attempt<length>(tile, at_6.data(), tile_s[i], tile_r[i], rounder, u, column);
            const double error_4 = attempt<length>(tile, at_4.data(), two_s[i], two_r[i], rounder, u, column);
            const bool is_4 = error_4 < error_6;
            if (is_4) codes[i] = two[i], tile_s[i] = two_s[i];
            const float* const best = is_4 ? at_4.data() : at_6.data();
            if (length && in_place) {
                std::memcpy(&chosen[column], best, length * sizeof(float));
                continue;
            }
            for (int64_t row = 0; row < u.rows; ++row)
                std::memcpy(&chosen[row * u.columns + column], best + row * g.width, columns * sizeof(float));
        }
    }

    // The elements of a tile under a scale, and the sum of their squared errors.
    template <int length>
    CFP_MEMBER double attempt(const float* from, float* e, float s, float r, const Elements& rounder, const Unit& u,
                              int64_t column) {
        const int64_t size = length ? length : static_cast<int64_t>(at_x.size());
        if (rounder.is_quick()) {
            const FloatLanes r_lanes = FloatLanes{} + r;
            int64_t i = 0;
            for (; i + lanes <= size; i += lanes) store(e + i, rounder.round<false>(load<FloatLanes>(from + i), r_lanes));
            for (; i < size; ++i) e[i] = rounder.round<false>(from[i], r);
        } else {
            for (int64_t i = 0; i < size; ++i) e[i] = from[i] * r;
            for (int64_t row = 0; row < u.rows; ++row) {
                const u64 index = static_cast<u64>(u.first + row * g.columns + column);
                elements.finish(e + row * g.width, smaller(g.width, u.columns - column), index);
            }
        }
        Eight<double> sums = {};
        int64_t i = 0;
        for (; i + 8 <= size; i += 8) {
            Eight<float> element, x;
            std::memcpy(&element, e + i, sizeof element);
            std::memcpy(&x, from + i, sizeof x);
            const auto error = __builtin_convertvector(element * s - x, Eight<double>);
            sums += error * error;
        }
        for (int j = 0; i < size; ++i, ++j) {
            const double error = static_cast<double>(e[i] * s - from[i]);
            sums[j] += error * error;
        }
        double four[4];
        for (int j = 0; j < 4; ++j) four[j] = sums[j] + sums[j + 4];
        return (four[0] + four[2]) + (four[1] + four[3]);
    }
};

void quantize_tiles(const float* x, float* out, const Tiling& g, int64_t begin, int64_t end, const Scaling& f,
                    const Rule& rule, float t) {
    Units units(g, f, rule, t);
    units.over(begin, end, [&](const Units::Unit& u) {
        const bool chooses = f.rule == four_over_six;
        if (chooses)
            units.choose(x, u);
        else
            units.find(x, u);
        for (int64_t row = 0; row < u.rows; ++row) {
            const int64_t at = u.first + row * g.columns;
            if (chooses)
                units.multiply(units.choice(u, row), out + at, u.columns);
            else
                units.round(x + at, out + at, u.columns, static_cast<u64>(at), true);
        }
    });
}

// ---- codes -----------------------------------------------------------------------------------------------------

void join_range(const u8* codes, u8* bytes, int64_t begin, int64_t end, int bits) {
    u8 in[codes_block], out[codes_block + 8];
    for (int64_t start = begin; start < end; start += codes_block) {
        const int64_t count = smaller(codes_block, end - start);
        std::memcpy(in, codes + start, static_cast<size_t>(count));
        std::memset(in + count, 0, static_cast<size_t>(codes_block - count));
        join(in, out, bits);
        std::memcpy(bytes + start / 8 * bits, out, static_cast<size_t>((count + 7) / 8 * bits));
    }
}

void split_range(const u8* bytes, u8* codes, int64_t begin, int64_t end, int bits) {
    u8 in[codes_block + 8], out[codes_block];
    for (int64_t start = begin; start < end; start += codes_block) {
        const int64_t count = smaller(codes_block, end - start);
        std::memcpy(in, bytes + start / 8 * bits, static_cast<size_t>((count + 7) / 8 * bits));
        split(in, out, bits);
        std::memcpy(codes + start, out, static_cast<size_t>(count));
    }
}

void encode_elements(const float* e, u8* codes, int64_t count, const Scaling& f, const Coder& coder) {
    if (f.is_integer)
        for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<u8>(encode_integer(e[i], f));
    else
        for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<u8>(encode_number(e[i], coder));
}

void decode_elements(const u8* codes, float* e, int64_t count, const Scaling& f) {
    if (f.is_integer)
        for (int64_t i = 0; i < count; ++i) e[i] = decode_integer(codes[i], f);
    else
        decode_range(codes, 1, e, 0, count, f.element);
}

// Codes of a piece to where they belong; bytes: room for them.
void put_codes(const u8* bytes, u8* codes, bool dense, int64_t at, int64_t count, int bits) {
    if (dense)
        join_range(bytes, codes + at / 8 * bits, 0, count, bits);
    else
        std::memcpy(codes + at, bytes, static_cast<size_t>(count));
}

void encode_tiles(const float* x, void* scales, u8* codes, bool dense, const Tiling& g, int64_t begin, int64_t end,
                  const Scaling& f, const Rule& rule, float t) {
    Units units(g, f, rule, t);
    const Coder coder = make_coder(unpack_spec(f.element));
    std::vector<float> e;
    std::vector<u8> bytes;
    units.over(begin, end, [&](const Units::Unit& u) {
        const bool chooses = f.rule == four_over_six;
        if (chooses)
            units.choose(x, u);
        else
            units.find(x, u);
        units.write(scales, u);
        e.resize(static_cast<size_t>(u.columns)), bytes.resize(static_cast<size_t>(u.columns));
        const bool has_nan = units.has_nan(u);
        for (int64_t row = 0; row < u.rows; ++row) {
            const int64_t at = u.first + row * g.columns;
            if (chooses)
                std::memcpy(e.data(), units.choice(u, row), static_cast<size_t>(u.columns) * sizeof(float));
            else
                units.round(x + at, e.data(), u.columns, static_cast<u64>(at), false);
            encode_elements(e.data(), bytes.data(), u.columns, f, coder);
            if (has_nan) units.clear_nan(bytes.data(), u.columns);
            put_codes(bytes.data(), codes, dense, at, u.columns, f.bits);
        }
    });
}

void decode_tiles(const void* scales, const u8* codes, bool dense, float* out, const Tiling& g, int64_t begin,
                  int64_t end, const Scaling& f, float t) {
    Units units(g, f, Rule{f.element, nearest_even, true, 0, 0}, t);
    std::vector<u8> bytes;
    std::vector<float> e;
    units.over(begin, end, [&](const Units::Unit& u) {
        units.read(scales, u);
        bytes.resize(static_cast<size_t>(u.columns)), e.resize(static_cast<size_t>(u.columns));
        for (int64_t row = 0; row < u.rows; ++row) {
            const int64_t at = u.first + row * g.columns;
            if (dense) split_range(codes + at / 8 * f.bits, bytes.data(), 0, u.columns, f.bits);
            decode_elements(dense ? bytes.data() : codes + at, e.data(), u.columns, f);
            units.multiply(e.data(), out + at, u.columns);
            for (int64_t i = 0; i < u.columns; ++i) out[at + i] = canonical(out[at + i]);
        }
    });
}

// ---- one block -------------------------------------------------------------------------------------------------

// A tensor that is one block, cut anywhere: rows of it are blocks whose scale is given.
template <class Piece>
void over_one(const float* x, int64_t begin, int64_t end, const Scaling& f, const Rule& rule, float scale, float t,
              const Piece& piece) {
    constexpr int64_t most = 1024;
    const Elements elements(f, rule);
    const float r = scale_reciprocal(scale, t), s = scale * t;
    float e[most];
    for (int64_t start = begin; start < end; start += most) {
        const int64_t count = smaller(most, end - start);
        if (elements.is_quick()) {
            (f.is_integer ? round_piece<true> : round_piece<false>)(x + start, e, count, most, &r, &s, elements, false);
        } else {
            for (int64_t i = 0; i < count; ++i) e[i] = x[start + i] * r;
            elements.finish(e, count, static_cast<u64>(start));
        }
        piece(start, e, count, s);
    }
}

void quantize_one(const float* x, float* out, int64_t begin, int64_t end, const Scaling& f, const Rule& rule, float scale,
                  float t) {
    over_one(x, begin, end, f, rule, scale, t, [&](int64_t start, const float* e, int64_t count, float s) {
        for (int64_t i = 0; i < count; ++i) out[start + i] = e[i] * s;
    });
}

void encode_one(const float* x, u8* codes, bool dense, int64_t begin, int64_t end, const Scaling& f, const Rule& rule,
                float scale, float t) {
    const Coder coder = make_coder(unpack_spec(f.element));
    u8 bytes[1024];
    over_one(x, begin, end, f, rule, scale, t, [&](int64_t start, const float* e, int64_t count, float) {
        encode_elements(e, bytes, count, f, coder);
        if (scale != scale) std::memset(bytes, 0, sizeof bytes);
        put_codes(bytes, codes, dense, start, count, f.bits);
    });
}

void decode_one(const u8* codes, bool dense, float* out, int64_t begin, int64_t end, const Scaling& f, float scale,
                float t) {
    constexpr int64_t most = 1024;
    const float s = scale * t;
    u8 bytes[most];
    float e[most];
    for (int64_t start = begin; start < end; start += most) {
        const int64_t count = smaller(most, end - start);
        if (dense) split_range(codes + start / 8 * f.bits, bytes, 0, count, f.bits);
        decode_elements(dense ? bytes : codes + start, e, count, f);
        for (int64_t i = 0; i < count; ++i) out[start + i] = canonical(e[i] * s);
    }
}

}  // namespace
}  // namespace custom_fp
