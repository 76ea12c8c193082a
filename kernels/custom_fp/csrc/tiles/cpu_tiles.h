// CPU kernels for blocks and tiles of values that share a scale. formats/scaled_format.py defines the results, and
// tiles.h has the arithmetic of scales. Single values are rounded and packed as in formats without scales. See
// kernels.h for the interface.
#pragma once

#include "tiles/cpu_units.h"

namespace custom_fp {
namespace {

void quantize_tiles(const float* x, float* out, const Tiling& g, int64_t begin, int64_t end, const Scaling& f,
                    const Rule& rule, float t) {
    Units units(g, f, rule, t);
    units.over(begin, end, [&](const Units::Unit& u) {
        units.find(x, u);
        for (int64_t row = 0; row < u.rows; ++row) {
            units.round(x, out + u.first + row * g.columns, u, row, true);
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
        decode_as(codes, e, count, make_coder(unpack_spec(f.element)));
}

// Writes the codes of a piece. bytes: the codes, one in each byte.
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
        units.find(x, u);
        units.write(scales, u);
        e.resize(static_cast<size_t>(u.columns)), bytes.resize(static_cast<size_t>(u.columns));
        const bool has_nan = units.has_nan(u);
        for (int64_t row = 0; row < u.rows; ++row) {
            const int64_t at = u.first + row * g.columns;
            units.round(x, e.data(), u, row, false);
            encode_elements(e.data(), bytes.data(), u.columns, f, coder);
            if (has_nan) units.clear_nan(bytes.data(), u.columns);
            put_codes(bytes.data(), codes, dense, at, u.columns, f.bits);
        }
    });
}

void decode_tiles(const void* scales, const u8* codes, bool dense, float* out, const Tiling& g, int64_t begin,
                  int64_t end, const Scaling& f, float t) {
    Units units(g, f, Rule{f.element, nearest_even, saturate, 0, 0, 0}, t);
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

// Processes a part of a tensor that is a single block. The part counts as a row of blocks whose scale is given.
template <class Piece>
void over_one(const float* x, int64_t begin, int64_t end, const Scaling& f, const Rule& rule, float scale, float t,
              const Piece& piece) {
    constexpr int64_t most = 1024;
    const Elements elements(f, rule);
    const float r = scale_reciprocal(scale, t), s = scale * t;
    float e[most];
    for (int64_t start = begin; start < end; start += most) {
        const int64_t count = smaller(most, end - start);
        if (elements.is_fast()) {
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
