// Scaled formats on a GPU: tiles.h has the arithmetic, formats/block.py the definition. Part of custom_fp.cu.
//
// Tiles are dealt to warps, or threads, as in scaled/scaled.cuh. f: in memory, for it is as large as sixteen numbers. t:
// the scale of the tensor, null where there is none. Written are values, or, where `out` is null, codes and scales.

template <Mode mode> struct ScaledKind {
    Scaling f;
    float t;
    u64 seed, index;  // of the first element
    u32 mask;
    Rounder<float> scale_rounder, rounder;
    Coder scale_coder, coder;

    CFP_MEMBER ScaledKind(const Scaling& f, const float* t, How how, u64 seed, u64 index, u32 mask)
        : f(f), t(t ? *t : 1.0f), seed(seed), index(index), mask(mask),
          scale_rounder(make_rounder<float>(unpack_spec(f.scale), nearest_even, infinity)),
          rounder(make_rounder<float>(unpack_spec(f.element), how.mode, saturate)), scale_coder(make_coder(unpack_spec(f.scale))),
          coder(make_coder(unpack_spec(f.element))) {}

    CFP_MEMBER u32 code(u32 amax, float times) const {
        return block_scale(amax, t, times, f, scale_rounder, scale_coder);
    }
    CFP_MEMBER float scale(u32 code) const { return scale_value(code, f, scale_coder); }

    CFP_MEMBER float element(float x, float r, i64 at) const {
        const u32 random = mode == stochastic ? random_of(index + static_cast<u64>(at), 0, seed, mask) : 0;
        const float e = round<mode>(hold(x * r, f.least, f.most), rounder, random);
        return f.is_integer ? hold(e, f.least, f.most) + 0.0f : e;
    }

    CFP_MEMBER void write_scale(void* scales, i64 number, u32 code) const {
        if (f.kind == float_scale)
            static_cast<u32*>(scales)[number] = code;
        else
            static_cast<u8*>(scales)[number] = static_cast<u8>(code);
    }

    CFP_MEMBER void write(float* out, u8* codes, i64 at, float x, float scale, float r) const {
        const float e = element(x, r, at);
        if (out)
            out[at] = canonical(e * (scale * t));
        else if (scale != scale)
            codes[at] = 0;
        else
            codes[at] = static_cast<u8>(f.is_integer ? encode_integer(e, f) : encode(e, coder));
    }
};

CFP_FN double of_lane(double x, int apart) {
    const u64 bits = to_bits(x);
    const u32 low = static_cast<u32>(__shfl_xor_sync(0xffffffffu, static_cast<int>(bits), apart));
    const u32 high = static_cast<u32>(__shfl_xor_sync(0xffffffffu, static_cast<int>(bits >> 32), apart));
    return from_bits(static_cast<u64>(high) << 32 | low);
}

// One of the tiles.
struct Tile {
    i64 first, high, wide, columns, width;
    CFP_MEMBER i64 place(i64 e) const {
        return first + (high == 1 ? e : wide == 1 ? e * columns : e / wide * columns + e % wide);
    }
};

// The sum of squared errors under a scale: eight sums over every eighth element of the whole tile, then pairwise. Every
// eight lanes of a warp do the same; a thread alone does all eight.
template <class Kind> CFP_FN double squared_error(const Kind& kind, const float* x, const Tile& tile, float scale, bool alone) {
    const float r = scale_reciprocal(scale, kind.t);
    double sums[8];
    for (int j = 0; j < (alone ? 8 : 1); ++j) {
        double sum = 0.0;
        for (i64 e = alone ? j : threadIdx.x % 8; e < tile.high * tile.width; e += 8) {
            const i64 row = e / tile.width, column = e - row * tile.width;
            if (column >= tile.wide) continue;
            const i64 at = tile.first + row * tile.columns + column;
            const double error = static_cast<double>(kind.element(x[at], r, at) * (scale * kind.t) - x[at]);
            sum += error * error;
        }
        sums[j] = sum;
    }
    if (alone) {
        for (int j = 0; j < 4; ++j) sums[j] += sums[j + 4];
        return (sums[0] + sums[2]) + (sums[1] + sums[3]);
    }
    double sum = sums[0];
    for (int apart = 4; apart; apart /= 2) sum += of_lane(sum, apart);
    return sum;
}

// each(tile, number, lane, lanes, alone)
template <class Each>
CFP_FN void each_tile(i64 planes, i64 rows, i64 columns, i64 height, i64 width, const Each& each) {
    const i64 across = (columns + width - 1) / width, down = (rows + height - 1) / height, all = planes * down * across;
    const bool alone = width == 1 || blockDim.x < 32;
    const int lanes = alone ? 1 : 32, lane = alone ? 0 : threadIdx.x % 32;
    for (i64 number = thread_index() / lanes; number < all; number += thread_count() / lanes) {
        const i64 band = number / across, plane = band / down;
        const i64 row = (band - plane * down) * height, column = (number - band * across) * width;
        const Tile tile = {(plane * rows + row) * columns + column, rows - row < height ? rows - row : height,
                           columns - column < width ? columns - column : width, columns, width};
        each(tile, number, lane, lanes, alone);
    }
}

template <Mode mode>
CFP_FN void scaled_tiles(const float* x, float* out, u8* codes, void* scales, i64 planes, i64 rows, i64 columns,
                         i64 height, i64 width, const Scaling* f, const float* t, How how, u64 seed, u64 index, u32 mask) {
    const ScaledKind<mode> kind(*f, t, how, seed, index, mask);
    each_tile(planes, rows, columns, height, width, [&](const Tile& tile, i64 number, int lane, int lanes, bool alone) {
        const i64 size = tile.high * tile.wide;
        u32 amax = 0;
        for (i64 e = lane; e < size; e += lanes) amax = larger(amax, to_bits(x[tile.place(e)]) & 0x7fffffffu);
        if (!alone)
            for (int apart = 16; apart; apart /= 2)
                amax = larger(amax, static_cast<u32>(__shfl_xor_sync(0xffffffffu, static_cast<int>(amax), apart)));
        u32 code = kind.code(amax, 1.0f);
        if (kind.f.rule == four_over_six) {
            const u32 other = kind.code(amax, 1.5f);
            const double at_6 = squared_error(kind, x, tile, kind.scale(code), alone);
            if (squared_error(kind, x, tile, kind.scale(other), alone) < at_6) code = other;
        }
        const float scale = kind.scale(code), r = scale_reciprocal(scale, kind.t);
        if (lane == 0 && scales) kind.write_scale(scales, number, code);
        for (i64 e = lane; e < size; e += lanes) {
            const i64 at = tile.place(e);
            kind.write(out, codes, at, x[at], scale, r);
        }
    });
}

// A tensor that is one block, whose largest magnitude is given.
template <Mode mode>
CFP_FN void scaled_whole(const float* x, float* out, u8* codes, void* scales, i64 n, const u32* amax, const Scaling* f,
                         const float* t, How how, u64 seed, u64 index, u32 mask) {
    const ScaledKind<mode> kind(*f, t, how, seed, index, mask);
    const u32 code = kind.code(*amax & 0x7fffffffu, 1.0f);
    const float scale = kind.scale(code), r = scale_reciprocal(scale, kind.t);
    if (thread_index() == 0 && scales) kind.write_scale(scales, 0, code);
    for (i64 i = thread_index(); i < n; i += thread_count()) kind.write(out, codes, i, x[i], scale, r);
}

extern "C" __global__ void scaled_decode(const void* scales, const u8* codes, float* out, i64 planes, i64 rows,
                                         i64 columns, i64 height, i64 width, const Scaling* f, const float* t) {
    const ScaledKind<nearest_even> kind(*f, t, How(0), 0, 0, 0);
    each_tile(planes, rows, columns, height, width, [&](const Tile& tile, i64 number, int lane, int lanes, bool) {
        const u32 code = kind.f.kind == float_scale ? static_cast<const u32*>(scales)[number]
                                                    : static_cast<const u8*>(scales)[number];
        const float factor = kind.scale(code) * kind.t;
        for (i64 e = lane; e < tile.high * tile.wide; e += lanes) {
            const i64 at = tile.place(e);
            const float element = kind.f.is_integer ? decode_integer(codes[at], kind.f) : decode(codes[at], kind.coder);
            out[at] = canonical(element * factor);
        }
    });
}

#define CFP_SCALED(mode)                                                                                              \
    extern "C" __global__ void scaled_tiles_##mode(const float* x, float* out, u8* codes, void* scales, i64 planes,   \
                                                   i64 rows, i64 columns, i64 height, i64 width, const Scaling* f,    \
                                                   const float* t, int how, u64 seed, u64 index, u32 mask) {          \
        scaled_tiles<mode>(x, out, codes, scales, planes, rows, columns, height, width, f, t, How(how), seed, index,  \
                           mask);                                                                                     \
    }                                                                                                                 \
    extern "C" __global__ void scaled_whole_##mode(const float* x, float* out, u8* codes, void* scales, i64 n,        \
                                                   const u32* amax, const Scaling* f, const float* t, int how,        \
                                                   u64 seed, u64 index, u32 mask) {                                   \
        scaled_whole<mode>(x, out, codes, scales, n, amax, f, t, How(how), seed, index, mask);                        \
    }
CFP_EVERY_WAY(CFP_SCALED)
