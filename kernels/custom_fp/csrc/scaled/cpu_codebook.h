// CPU kernels for codebooks, which process a register of values at a time. See kernels.h for the interface.
#pragma once

#include <cstring>

#include "cpu/gather.h"
#include "scaled/codebook.h"
#include "cpu/partial_lanes.h"
#include "scaled/kernels.h"

namespace custom_fp {
namespace {

// Returns -1 in the lanes in which a is above b, and 0 in the others.
CFP_FN IntLanes above(FloatLanes a, FloatLanes b) { return (IntLanes)(a > b); }

// Returns the index of y in `cells.values`.
CFP_FN IntLanes place_in_cells(FloatLanes y, const Cells& cells) {
    const IntLanes bits = (IntLanes)Lanes::bits(y), zero = {};
    const IntLanes negative = bits >> 31;
    const IntLanes cell = Lanes::more(((bits & 0x7fffffff) >> cells.shift) - cells.first, zero) + (negative & cells.half);
    return cell + cell - above(y, gather(cells.thresholds, cell));
}

// Looks up entries of a table of 16 floats that is held in registers.
CFP_FN FloatLanes pick(const float* from, IntLanes at) {
#if defined(__AVX512F__)
    return (FloatLanes)_mm512_permutexvar_ps((__m512i)at, (__m512)load<FloatLanes>(from));
#elif defined(__AVX2__)
    const __m256 low = _mm256_permutevar8x32_ps((__m256)load<FloatLanes>(from), (__m256i)at);
    const __m256 high = _mm256_permutevar8x32_ps((__m256)load<FloatLanes>(from + 8), (__m256i)at);
    return (FloatLanes)_mm256_blendv_ps(low, high, (__m256)((__m256i)at << 28));  // by bit 3
#else
    return gather(from, at);
#endif
}

// Returns the index of y among at most 16 ascending values.
CFP_FN IntLanes place_among_few(FloatLanes y, const float* thresholds) {
    IntLanes place = {};
    for (i32 step = 8; step; step /= 2) place += above(y, pick(thresholds, place + (step - 1))) & step;
    return place;
}

// Returns the index of y among the ascending values.
CFP_FN IntLanes place_by_search(FloatLanes y, const float* thresholds) {
    IntLanes place = {};
    for (i32 step = 128; step; step /= 2) place += above(y, gather(thresholds, place + (step - 1))) & step;
    return place;
}

enum SearchMethod { few, in_cells, by_search };

SearchMethod method_for(const CodebookTables& t) { return t.size <= 16 ? few : t.cells.half ? in_cells : by_search; }

template <SearchMethod method> CFP_FN IntLanes place_of(FloatLanes y, const CodebookTables& t) {
    if constexpr (method == few) return place_among_few(y, t.thresholds);
    if constexpr (method == in_cells) return place_in_cells(y, t.cells);
    return place_by_search(y, t.thresholds);
}

template <SearchMethod method> CFP_FN FloatLanes value_at(IntLanes place, const CodebookTables& t) {
    if constexpr (method == few) return pick(t.ascending, place);
    return gather(method == in_cells ? t.cells.values : t.ascending, place);
}

// Calls each(i, left, place) for the indices of x / scale, up to a register at a time. They are -1 if the scale is NaN.
template <SearchMethod method, class Each>
CFP_FN void each_place(const float* x, int64_t n, float scale, const CodebookTables& t, const Each& each) {
    if (scale != scale) {
        const IntLanes place = place_of<method>(FloatLanes{} - 1.0f, t);
        for (int64_t i = 0; i < n; i += lanes) each(i, n - i, place);
        return;
    }
    const FloatLanes divisor = FloatLanes{} + (scale > 0.0f ? scale : 1.0f);
    for (int64_t i = 0; i < n; i += lanes) {
        __builtin_prefetch(x + i + ahead);
        each(i, n - i, place_of<method>(load_partial(x + i, n - i) / divisor, t));
    }
}

u32 largest_bits(const float* x, int64_t n) {
    IntLanes most = {};
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes)
        most = Lanes::more(most, (IntLanes)Lanes::bits(load<FloatLanes>(x + i)) & 0x7fffffff);
    i32 largest = 0;
    for (; i < n; ++i) largest = larger(largest, static_cast<i32>(to_bits(x[i]) & 0x7fffffffu));
    return static_cast<u32>(larger(largest, largest_of(most)));
}

// Calls one(begin, count, scale) for the blocks of n adjacent values, whose scale may be given. The scales of several
// blocks are computed first, so that the processor does not wait for each of them.
template <class One>
CFP_FN void each_block(const float* x, int64_t n, int64_t block, const float* given, float* scales, const One& one) {
    constexpr int64_t most = 32, most_values = 4096;  // these fit in the first-level cache
    float found[most];
    const int64_t some = smaller(most, larger(int64_t(1), most_values / block)), step = some * block;
    for (int64_t first = 0; first < n; first += step) {
        const int64_t end = smaller(n, first + step);
        for (int64_t begin = first, b = 0; begin < end; begin += block, ++b)
            found[b] = given ? *given : codebook_scale(largest_bits(x + begin, smaller(block, end - begin)));
        if (scales) std::memcpy(scales + first / block, found, static_cast<size_t>((end - first + block - 1) / block) * 4);
        for (int64_t begin = first, b = 0; begin < end; begin += block, ++b)
            one(begin, smaller(block, end - begin), found[b]);
    }
}

template <SearchMethod method>
void codebook_quantize_by(const float* x, float* out, int64_t n, int64_t block, const float* given,
                          const CodebookTables& t) {
    each_block(x, n, block, given, nullptr, [&](int64_t begin, int64_t count, float scale) {
        each_place<method>(x + begin, count, scale, t, [&](int64_t i, int64_t some, IntLanes place) {
            store_partial(out + begin + i, value_at<method>(place, t) * scale, some);
        });
    });
}

// Processes n <= columns_per_pass adjacent columns. Each is a block of `rows` values with a stride of `inner`.
template <SearchMethod method>
void codebook_columns_by(const float* x, float* out, int64_t rows, int64_t inner, int64_t n, const CodebookTables& t) {
    IntLanes most[columns_per_pass / lanes] = {};
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < n; c += lanes) {
            const IntLanes bits = (IntLanes)Lanes::bits(load_partial(x + row * inner + c, n - c));
            most[c / lanes] = Lanes::more(most[c / lanes], bits & 0x7fffffff);
        }
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < n; c += lanes) {
            const IntLanes largest = most[c / lanes], finite = largest < 0x7f800000, some = largest > 0;
            const FloatLanes scale = (FloatLanes)((largest & finite) | (0x7fc00000 & ~finite));
            const FloatLanes divisor = (FloatLanes)((largest & some) | (0x3f800000 & ~some));
            const IntLanes y = (IntLanes)Lanes::bits(load_partial(x + row * inner + c, n - c) / divisor);
            const IntLanes place = place_of<method>((FloatLanes)((y & finite) | (IntLanes(0xbf800000 + IntLanes{}) & ~finite)), t);
            store_partial(out + row * inner + c, value_at<method>(place, t) * scale, n - c);
        }
}

template <SearchMethod method>
void codebook_encode_by(const float* x, u8* codes, float* scales, int64_t n, int64_t block, const float* given,
                        const CodebookTables& t) {
    const i32* table = method == in_cells ? t.cells.codes : t.codes;
    each_block(x, n, block, given, scales, [&](int64_t begin, int64_t count, float scale) {
        each_place<method>(x + begin, count, scale, t, [&](int64_t i, int64_t some, IntLanes place) {
            store_bytes(codes + begin + i, gather(table, place), some);
        });
    });
}

void codebook_quantize(const float* x, float* out, int64_t n, int64_t block, const float* given,
                       const CodebookTables& t) {
    const SearchMethod method = method_for(t);
    (method == few        ? codebook_quantize_by<few>
     : method == in_cells ? codebook_quantize_by<in_cells>
                       : codebook_quantize_by<by_search>)(x, out, n, block, given, t);
}

void codebook_columns(const float* x, float* out, int64_t rows, int64_t inner, int64_t n, const CodebookTables& t) {
    const SearchMethod method = method_for(t);
    (method == few        ? codebook_columns_by<few>
     : method == in_cells ? codebook_columns_by<in_cells>
                       : codebook_columns_by<by_search>)(x, out, rows, inner, n, t);
}

void codebook_encode(const float* x, u8* codes, float* scales, int64_t n, int64_t block, const float* given,
                     const CodebookTables& t) {
    const SearchMethod method = method_for(t);
    (method == few        ? codebook_encode_by<few>
     : method == in_cells ? codebook_encode_by<in_cells>
                       : codebook_encode_by<by_search>)(x, codes, scales, n, block, given, t);
}

// Writes two codes of 4 bits to each byte, the first one to the low half. An odd last code gets its own byte.
void join_halves(const u8* codes, u8* bytes, int64_t n) {
    for (int64_t i = 0; i < n / 2; ++i) bytes[i] = static_cast<u8>(codes[2 * i] | codes[2 * i + 1] << 4);
    if (n % 2) bytes[n / 2] = codes[n - 1];
}

// Reads the first n codes of bytes that join_halves wrote.
void split_halves(const u8* bytes, u8* codes, int64_t n) {
    for (int64_t i = 0; i < n / 2; ++i) {
        codes[2 * i] = bytes[i] & 15;
        codes[2 * i + 1] = bytes[i] >> 4;
    }
    if (n % 2) codes[n - 1] = bytes[n / 2] & 15;
}

// values: the value of each of 256 codes.
void codebook_decode(const u8* codes, const float* scales, float* out, int64_t n, int64_t block, const float* values) {
    for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t end = n - begin < block ? n : begin + block;
        const float scale = scales[begin / block];
        for (int64_t i = begin; i < end; ++i) out[i] = values[codes[i]] * scale;
    }
}

}  // namespace
}  // namespace custom_fp
