// What the CPU works on at a time: a run of tiles side by side, `tiles` of them over `columns` columns, `rows` high, and
// their scales. See kernels.h.
#pragma once

#include <vector>

#include "tiles/cpu_elements.h"

namespace custom_fp {
namespace {

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

typedef float EightFloats __attribute__((vector_size(32)));
typedef double EightDoubles __attribute__((vector_size(64)));

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
            const u32 is_4 = error_4 < error_6;  // as often as not, so that a branch would cost more than all else
            codes[i] = select(is_4, two[i], codes[i]);
            tile_s[i] = from_bits(select(is_4, to_bits(two_s[i]), to_bits(tile_s[i])));
            const float* const tried[2] = {at_6.data(), at_4.data()};
            const float* const best = tried[is_4];
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
        EightDoubles sums = {};
        int64_t i = 0;
        for (; i + 8 <= size; i += 8) {
            EightFloats element, x;
            std::memcpy(&element, e + i, sizeof element);
            std::memcpy(&x, from + i, sizeof x);
            const auto error = __builtin_convertvector(element * s - x, EightDoubles);
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

}  // namespace
}  // namespace custom_fp
