// CPU loops over blocks of values that share a power of two (MX). scaled/ defines the results; the elements are rounded
// and packed by the loops of single values. See cpu_kernels.h for the contract.
//
// Legend: a row of n values is cut in blocks of `size`, the last of which may be shorter; n for a whole tensor.
#pragma once

#include <vector>

#include "cpu_codes.h"

namespace custom_fp {
namespace {

constexpr int scale_bias = 127, scale_nan = 255;
constexpr float int8_unit = 0x1p-6f;

// The value of an e8m0.
CFP_FN float scale_value(int code) {
    const u32 bits = code == 0 ? 0x00400000u : code == scale_nan ? Bits<float>::nan : static_cast<u32>(code) << 23;
    return from_bits(bits);
}

// Of a positive finite float32's bits.
CFP_FN int floor_log2(u32 magnitude) {
    if (magnitude >> 23) return static_cast<int>(magnitude >> 23) - 127;
    return 31 - __builtin_clz(magnitude) - 149;
}

// Returns the code of a block's scale and writes x / scale, held within -limit .. limit; zeros where x is not finite.
inline u8 scale_block(const float* __restrict x, float* __restrict scaled, int64_t count, int emax, float limit) {
    i32 largest = 0;
    for (int64_t i = 0; i < count; ++i) largest = larger(largest, static_cast<i32>(to_bits(x[i]) & 0x7fffffffu));
    if (largest >= 0x7f800000) {
        std::memset(scaled, 0, static_cast<size_t>(count) * sizeof(float));
        return scale_nan;
    }
    const int exponent = largest ? floor_log2(static_cast<u32>(largest)) - emax : -scale_bias;
    const int code = smaller(larger(exponent + scale_bias, 0), 254);
    const float inverse = scale_value(254 - code);
    for (int64_t i = 0; i < count; ++i) scaled[i] = larger(smaller(x[i] * inverse, limit), -limit);
    return static_cast<u8>(code);
}

// A run of blocks at a time: long enough for the loops of single values.
class BlockRun {
public:
    BlockRun(const Blocks& blocks, int64_t n)
        : size(blocks.size), is_int8(blocks.spec == 0), most(smaller(blocks_at_once(size), (n + size - 1) / size)),
          rule{blocks.spec, nearest_even, true, 0, 0}, emax(blocks.emax),
          limit(is_int8 ? 2.0f : max_value(blocks.spec)), values(static_cast<size_t>(most * size)), rounded(values) {}

    // each(block, blocks, first, count) for runs of blocks begin..end of rows of n values.
    template <class Each> void over(int64_t n, int64_t begin, int64_t end, const Each& each) const {
        const int64_t per_row = (n + size - 1) / size;
        for (int64_t block = begin; block < end;) {
            const int64_t row = block / per_row, first = (block - row * per_row) * size;
            const int64_t blocks = smaller(smaller(most, end - block), per_row - first / size);
            each(block, blocks, row * n + first, smaller(blocks * size, n - first));
            block += blocks;
        }
    }

    // `values` become those of x over their scales, whose codes are written.
    void scale_down(const float* x, u8* scales, int64_t blocks, int64_t count) {
        for (int64_t b = 0; b < blocks; ++b)
            scales[b] = scale_block(x + b * size, &values[b * size], smaller(size, count - b * size), emax, limit);
    }

    // `rounded`, elements of this format, times their scales.
    void scale_up(const u8* scales, float* out, int64_t blocks, int64_t count) const {
        for (int64_t b = 0; b < blocks; ++b) {
            const float scale = scale_value(scales[b]);
            const int64_t last = smaller((b + 1) * size, count);
            for (int64_t i = b * size; i < last; ++i) out[i] = rounded[i] * scale;
        }
    }

    void round_values(int64_t count) {
        if (!is_int8) {
            quantize_range<nearest_even>(values.data(), rounded.data(), 0, count, rule);
            return;
        }
        const float magic = 0x1.8p23f;
        for (int64_t i = 0; i < count; ++i) {
            const float units = smaller((values[i] / int8_unit + magic) - magic, 127.0f);
            rounded[i] = units * int8_unit + 0.0f;  // no -0
        }
    }

    // dense: packed bits, zeros after the last value; else a byte a code
    void write_codes(u8* codes, bool dense, int64_t count) {
        if (is_int8) {
            round_values(count);
            for (int64_t i = 0; i < count; ++i)
                codes[i] = static_cast<u8>(static_cast<i32>(rounded[i] / int8_unit));
            if (dense) std::memset(codes + count, 0, static_cast<size_t>(-count & 7));
        } else if (dense) {
            pack_range(values.data(), codes, 0, count, rule, 0);
        } else {
            encode_range(values.data(), codes, 1, 0, count, rule.spec);
        }
    }

    void read_codes(const u8* codes, bool dense, int64_t count) {
        if (is_int8)
            for (int64_t i = 0; i < count; ++i)
                rounded[i] = static_cast<float>(static_cast<signed char>(codes[i])) * int8_unit;
        else if (dense)
            unpack_range(codes, rounded.data(), 0, count, rule.spec, 0);
        else
            decode_range(codes, 1, rounded.data(), 0, count, rule.spec);
    }

    // Where the codes of the values from `first` (a multiple of 8) begin.
    int64_t place(int64_t first, bool dense) const {
        return dense && !is_int8 ? first / 8 * unpack_spec(rule.spec).bits : first;
    }

private:
    int64_t size;
    bool is_int8;
    int64_t most;
    Rule rule;
    int emax;
    float limit;
    std::vector<float> values, rounded;

    static float max_value(uint32_t packed) {
        const Spec spec = unpack_spec(packed);
        return from_bits(magnitude_of<float>(spec, spec.max_code));
    }
};

void quantize_blocks(const float* x, float* out, int64_t n, int64_t begin, int64_t end, const Blocks& blocks) {
    BlockRun run(blocks, n);
    u8 scales[1024];
    run.over(n, begin, end, [&](int64_t, int64_t number, int64_t first, int64_t count) {
        run.scale_down(x + first, scales, number, count);
        run.round_values(count);
        run.scale_up(scales, out + first, number, count);
    });
}

void encode_blocks(const float* x, u8* scales, u8* codes, bool dense, int64_t n, int64_t begin, int64_t end,
                   const Blocks& blocks) {
    BlockRun run(blocks, n);
    run.over(n, begin, end, [&](int64_t block, int64_t number, int64_t first, int64_t count) {
        run.scale_down(x + first, scales + block, number, count);
        run.write_codes(codes + run.place(first, dense), dense, count);
    });
}

void decode_blocks(const u8* scales, const u8* codes, bool dense, float* out, int64_t n, int64_t begin, int64_t end,
                   const Blocks& blocks) {
    BlockRun run(blocks, n);
    run.over(n, begin, end, [&](int64_t block, int64_t number, int64_t first, int64_t count) {
        run.read_codes(codes + run.place(first, dense), dense, count);
        run.scale_up(scales + block, out + first, number, count);
    });
}

}  // namespace
}  // namespace custom_fp
