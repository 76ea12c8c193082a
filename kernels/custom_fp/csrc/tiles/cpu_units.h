// A unit of work: `tiles` adjacent tiles with `rows` rows and a total of `columns` columns, and their scales. See
// kernels.h.
#pragma once

#include <vector>

#include "tiles/cpu_squares.h"

namespace custom_fp {
namespace {

// ---- scales ----------------------------------------------------------------------------------------------------

template <int kind, int rule>
void scale_codes(const u32* amax, u32* codes, int64_t tiles, float t, float times, Scaling f) {
    f.kind = kind, f.rule = rule;
    const Spec spec = unpack_spec(f.scale);
    const Rounder<float> rounder = make_rounder<float>(spec, nearest_even, infinity);
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

// ---- units -----------------------------------------------------------------------------------------------------

class Units {
public:
    // The position and size of a unit. first: the index of its first element. scale: the index of its first tile's scale.
    struct Unit {
        int64_t first, rows, columns, tiles, scale;
    };

    Units(const Tiling& tiling, const Scaling& f, const Rule& rule, float t)
        : g(tiling), f(f), elements(f, rule), t(t), has_columns(g.width % lanes != 0),
          most(smaller(g.tiles_per_unit(), g.across())), across(smaller(most * g.width, g.columns)), amax(most),
          now(most, has_columns ? across : 0), peak(g.height > 1 ? across : 0), buffer(across) {
        if (elements.is_random()) words.resize(Elements::drawn(across));
        if (f.rule != four_over_six) return;
        const int64_t size = smaller(g.height, g.rows) * across;
        other = now, off.resize(size), error_4.resize(most), error_6.resize(most);
        if (elements.is_random()) kept.resize(size);
    }

    template <class Each> void over(int64_t begin, int64_t end, const Each& each) const {
        const int64_t runs = g.runs(), down = g.down();
        for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t strip = unit / runs, tile = (unit - strip * runs) * most;
            const int64_t plane = strip / down, row = (strip - plane * down) * g.height, column = tile * g.width;
            each(Unit{(plane * g.rows + row) * g.columns + column, smaller(g.height, g.rows - row),
                      smaller(across, g.columns - column), smaller(most, g.across() - tile), strip * g.across() + tile});
        }
    }

    // Computes the scales of a unit from x. For 4over6, chooses the scale with the smaller error.
    void find(const float* x, const Unit& u) {
        largest(x + u.first, u);
        if (f.rule != four_over_six) {
            scale(u, 1.0f);
            return;
        }
        for (int64_t row = 0; row < u.rows && !kept.empty(); ++row)
            std::memcpy(&kept[row * across], draw(u, row), static_cast<size_t>(u.columns) * sizeof(u32));
        scale(u, 1.5f);
        find_errors(x, u, error_4.data());
        std::swap(now, other);
        scale(u, 1.0f);
        find_errors(x, u, error_6.data());
        for (int64_t i = 0; i < u.tiles; ++i) {
            const u32 is_4 = error_4[i] < error_6[i];  // unpredictable, so there is no branch
            now.codes[i] = select(is_4, other.codes[i], now.codes[i]);
            now.tile_s[i] = from_bits(select(is_4, to_bits(other.tile_s[i]), to_bits(now.tile_s[i])));
            now.tile_r[i] = from_bits(select(is_4, to_bits(other.tile_r[i]), to_bits(now.tile_r[i])));
        }
        spread(u);
    }

    // Reads the scales of a unit.
    void read(const void* scales, const Unit& u) {
        for (int64_t i = 0; i < u.tiles; ++i)
            now.codes[i] = f.kind == float_scale ? static_cast<const u32*>(scales)[u.scale + i]
                                                 : static_cast<const u8*>(scales)[u.scale + i];
        values(u);
    }

    void write(void* scales, const Unit& u) const {
        for (int64_t i = 0; i < u.tiles; ++i)
            if (f.kind == float_scale)
                static_cast<u32*>(scales)[u.scale + i] = now.codes[i];
            else
                static_cast<u8*>(scales)[u.scale + i] = static_cast<u8>(now.codes[i]);
    }

    // Writes the values of a row of a unit, or its elements if `scaled` is false.
    void round(const float* x, float* out, const Unit& u, int64_t row, bool scaled) {
        x += u.first + row * g.columns;
        if (elements.is_fast()) {
            (elements.is_integer() ? round_piece<true> : round_piece<false>)(x, out, u.columns, g.width, r(), s(), elements,
                                                                             scaled);
            return;
        }
        finish(x, u, row);
        if (scaled)
            multiply(buffer.data(), out, u.columns);
        else
            std::memcpy(out, buffer.data(), static_cast<size_t>(u.columns) * sizeof(float));
    }

    // Converts elements to values.
    void multiply(const float* e, float* out, int64_t columns) const {
        multiply_piece(e, out, columns, g.width, s());
    }

    bool has_nan(const Unit& u) const {
        bool found = false;
        for (int64_t i = 0; i < u.tiles; ++i) found |= now.tile_s[i] != now.tile_s[i];
        return found;
    }

    // Writes NaN to the tiles of a piece whose scale is NaN.
    template <class T> void clear_nan(T* codes, int64_t columns) const {
        for (int64_t i = 0; i * g.width < columns; ++i)
            if (now.tile_s[i] != now.tile_s[i])
                std::memset(codes + i * g.width, 0, smaller(g.width, columns - i * g.width) * sizeof(T));
    }

private:
    Tiling g;
    Scaling f;
    Elements elements;
    float t;
    bool has_columns;
    int64_t most, across;  // the numbers of tiles and columns in the largest unit
    struct Scales {
        std::vector<u32> codes;
        std::vector<float> tile_s, tile_r, column_s, column_r;
        Scales() {}
        Scales(int64_t tiles, int64_t columns)
            : codes(tiles), tile_s(tiles), tile_r(tiles), column_s(columns), column_r(columns) {}
    };
    std::vector<u32> amax;
    Scales now, other;  // other: the second of the two scales that 4over6 tries
    std::vector<i32> peak;
    std::vector<float> buffer, off;
    std::vector<double> error_4, error_6;
    std::vector<u32> words, kept;  // random bits; kept: the bits of all rows, if they are needed more than once

    const float* s() const { return has_columns ? now.column_s.data() : now.tile_s.data(); }
    const float* r() const { return has_columns ? now.column_r.data() : now.tile_r.data(); }

    // Computes the scales of a unit, multiplied by `times`.
    void scale(const Unit& u, float times) {
        scale_codes(amax.data(), now.codes.data(), u.tiles, t, times, f);
        values(u);
    }

    void values(const Unit& u) {
        scale_values(now.codes.data(), now.tile_s.data(), now.tile_r.data(), u.tiles, t, f);
        spread(u);
    }

    u64 index(const Unit& u, int64_t row) const { return static_cast<u64>(u.first + row * g.columns); }

    // Draws the random bits of a row. They are valid until the next call.
    const u32* draw(const Unit& u, int64_t row) { return elements.draw(words.data(), u.columns, index(u, row)); }

    // Computes the elements of a row on the slow path. x: the first value of the row.
    void finish(const float* x, const Unit& u, int64_t row) {
        multiply_piece(x, buffer.data(), u.columns, g.width, r());
        if (elements.is_random())
            elements.finish(buffer.data(), u.columns, index(u, row), kept.empty() ? draw(u, row) : &kept[row * across]);
        else
            elements.finish(buffer.data(), u.columns, index(u, row));
    }

    // Computes the sums of the squared errors of a unit's tiles with the current scales.
    void find_errors(const float* x, const Unit& u, double* errors) {
        for (int64_t row = 0; row < u.rows; ++row) {
            const float* from = x + u.first + row * g.columns;
            float* to = &off[row * u.columns];
            if (elements.is_fast()) {
                round_and_subtract_piece(from, to, u.columns, g.width, r(), s(), elements);
            } else {
                finish(from, u, row);
                subtract_piece(buffer.data(), from, to, u.columns, g.width, s());
            }
        }
        sums_of_squares(off.data(), u.rows, u.columns, g.width, errors);
    }

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
            std::memcpy(now.column_s.data(), now.tile_s.data(), static_cast<size_t>(u.columns) * sizeof(float));
            std::memcpy(now.column_r.data(), now.tile_r.data(), static_cast<size_t>(u.columns) * sizeof(float));
            return;
        }
        for (int64_t i = 0; i < u.tiles; ++i) {
            const int64_t begin = i * g.width, end = smaller(u.columns, begin + g.width);
            std::fill(now.column_s.begin() + begin, now.column_s.begin() + end, now.tile_s[i]);
            std::fill(now.column_r.begin() + begin, now.column_r.begin() + end, now.tile_r[i]);
        }
    }
};

}  // namespace
}  // namespace custom_fp
