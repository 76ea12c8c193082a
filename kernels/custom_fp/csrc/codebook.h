// Codebooks: the nearest of at most 256 values, times the largest magnitude of a block.
//
// y = x / scale, then i = #{t_j < y} over the ascending thresholds t_j (custom_fp/codebook.py makes them, and defines
// the result). The top 16 bits of y give a first i: 65,536 cells, each of which holds the count at its lower end; from
// there at most `steps` thresholds lie in a cell, one or none in the tables of the paper. custom_fp/scaled says the
// same in torch.
#pragma once

#include <cstdint>
#include <cstring>

namespace custom_fp {

struct CodebookTables {
    const uint8_t* first;     // [65536] by the top 16 bits of y
    const float* thresholds;  // [256] ascending, filled up with infinity
    const uint8_t* codes;     // [256] of the i-th value in ascending order
    const float* ascending;   // [256] the i-th value
    int steps;
};

constexpr int64_t codebook_chunk = 512;

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

// The largest magnitude, as bits: these of non-negative floats are ordered as the floats are, NaN above infinity.
inline uint32_t largest_bits(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

// A block's scale, from its largest magnitude: NaN where one is not finite.
inline float scale_of(uint32_t largest) {
    const uint32_t bits = largest < 0x7f800000u ? largest : 0x7fc00000u;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return scale;
}

// Calls emit(i, index) for the elements begin..end of one block. Where the scale is NaN the index is that of -1.
template <class Emit>
inline void each_nearest(const float* x, int64_t begin, int64_t end, float scale, const CodebookTables& t,
                         const Emit& emit) {
    const bool finite = scale == scale;
    const float divisor = scale > 0.0f ? scale : 1.0f;
    float y[codebook_chunk];
    for (; begin < end; begin += codebook_chunk) {
        const int64_t count = end - begin < codebook_chunk ? end - begin : codebook_chunk;
        for (int64_t i = 0; i < count; i++) y[i] = finite ? x[begin + i] / divisor : -1.0f;
        for (int64_t i = 0; i < count; i++) {
            uint32_t index = t.first[bits_of(y[i]) >> 16];
            for (int step = 0; step < t.steps; step++) index += y[i] > t.thresholds[index];
            emit(begin + i, index);
        }
    }
}

}  // namespace custom_fp
