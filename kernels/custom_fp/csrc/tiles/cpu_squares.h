// Sums of the squared errors of tiles, for the rule 4over6. There are eight sums in double, each over every eighth
// element of a tile, where a shorter last tile counts as if it had the full width. The sums are then added in pairs,
// beginning with sums that are 4 apart.
#pragma once

#include "tiles/cpu_elements.h"

namespace custom_fp {
namespace {

constexpr int double_lanes = lanes / 2, parts = 8 / double_lanes;  // doubles in a register, and registers for eight sums

typedef float HalfLanes __attribute__((vector_size(4 * double_lanes)));
typedef double DoubleLanes __attribute__((vector_size(8 * double_lanes)));

CFP_FN double in_double(float x) { return x; }
CFP_FN DoubleLanes in_double(HalfLanes x) { return __builtin_convertvector(x, DoubleLanes); }

struct EightSums {
    DoubleLanes part[parts] = {};

    CFP_MEMBER void add(const float* off) {  // adds the errors of eight elements
        for (int i = 0; i < parts; ++i) {
            const DoubleLanes error = in_double(load<HalfLanes>(off + i * double_lanes));
            part[i] += error * error;
        }
    }
    CFP_MEMBER void add(const float* off, int64_t count) {  // adds the errors of fewer than eight elements
        for (int64_t i = 0; i < count; ++i) add_one(off[i], i);
    }
    CFP_MEMBER void add_one(double error, int64_t i) { part[i / double_lanes][i % double_lanes] += error * error; }

    CFP_MEMBER double pairwise() const {
#if defined(__AVX2__)
#if defined(__AVX512F__)
        const __m512d all = (__m512d)part[0];
        const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(all), _mm512_extractf64x4_pd(all, 1));
#else
        const __m256d four = (__m256d)(part[0] + part[1]);
#endif
        const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
#else
        const DoubleLanes two = (part[0] + part[2]) + (part[1] + part[3]);
#endif
        return two[0] + two[1];
    }
};

// Processes tiles of one column, as many as F has lanes.
template <class F, class D> CFP_FN D sum_down(const float* off, int64_t rows, int64_t columns) {
    const auto sum = [&](int64_t first) {
        D sum = {};
        for (int64_t row = first; row < rows; row += 8) {
            F here;
            std::memcpy(&here, off + row * columns, sizeof here);
            const D error = in_double(here);
            sum += error * error;
        }
        return sum;
    };
    const auto apart = [&](int64_t first) { return sum(first) + sum(first + 4); };
    const D even = apart(0) + apart(2);
    return even + (apart(1) + apart(3));
}

// Processes a tile of `wide` columns, where the full width is a multiple of eight. known: the width of a whole tile, or
// 0.
template <int known> CFP_FN double sum_of_tile(const float* off, int64_t rows, int64_t columns, int64_t wide) {
    const int64_t count = known ? known : wide;
    EightSums sums;
    for (int64_t row = 0; row < rows; ++row, off += columns) {
        int64_t i = 0;
        for (; i + 8 <= count; i += 8) sums.add(off + i);
        sums.add(off + i, count - i);
    }
    return sums.pairwise();
}

// off: the errors of the elements of adjacent tiles, (rows, columns).
void sums_of_squares(const float* off, int64_t rows, int64_t columns, int64_t width, double* errors) {
    int64_t i = 0;
    if (width == 1) {
        for (; i + double_lanes <= columns; i += double_lanes) {
            const DoubleLanes sums = sum_down<HalfLanes, DoubleLanes>(off + i, rows, columns);
            std::memcpy(errors + i, &sums, sizeof sums);
        }
        for (; i < columns; ++i) errors[i] = sum_down<float, double>(off + i, rows, columns);
    } else if (width % 8 == 0) {
        if (width == 16)
            for (; i + 16 <= columns; i += 16) *errors++ = sum_of_tile<16>(off + i, rows, columns, 16);
        for (; i < columns; i += width) *errors++ = sum_of_tile<0>(off + i, rows, columns, smaller(width, columns - i));
    } else {
        for (; i < columns; i += width) {
            const int64_t wide = smaller(width, columns - i);
            EightSums sums;
            for (int64_t row = 0; row < rows; ++row)
                for (int64_t j = 0; j < wide; ++j) sums.add_one(off[row * columns + i + j], (row * width + j) % 8);
            *errors++ = sums.pairwise();
        }
    }
}

}  // namespace
}  // namespace custom_fp
