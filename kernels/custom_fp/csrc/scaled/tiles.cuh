// Assigns the blocks of formats with scales to the threads of a GPU. scaled_kernels.cuh and tiles/tiles.cuh define how
// blocks are processed. Part of custom_fp.cu.
//
// A tensor consists of `planes` matrices of rows x columns. Each matrix is cut into tiles of height x width
// (formats/layout.py), and tiles are numbered in this order. A warp processes a tile. If tiles are one column wide, a
// single thread processes a tile, and neighboring threads process the next columns. Runs of 16, 32, 64 or 128 adjacent
// values are assigned differently (see below).
//
// A Kind has two types. Ends describes some values of a block (functions none, meet, join, either). Scale is computed
// from the Ends of all values of the block. A Kind can also read both from another lane of the warp.

CFP_FN u32 xor_lane(u32 x, int apart) { return static_cast<u32>(__shfl_xor_sync(0xffffffffu, static_cast<int>(x), apart)); }
CFP_FN float xor_lane(float x, int apart) { return from_bits(xor_lane(to_bits(x), apart)); }
CFP_FN double xor_lane(double x, int apart) {
    const u64 bits = to_bits(x);
    const u64 high = xor_lane(static_cast<u32>(bits >> 32), apart);
    return from_bits(high << 32 | xor_lane(static_cast<u32>(bits), apart));
}
CFP_FN float of_lane(float x, int lane) {
    return from_bits(static_cast<u32>(__shfl_sync(0xffffffffu, static_cast<int>(to_bits(x)), lane)));
}

// One tile.
struct Tile {
    i64 first, high, wide, columns, width;
    CFP_MEMBER i64 place(i64 e) const {
        return first + (high == 1 ? e : wide == 1 ? e * columns : e / wide * columns + e % wide);
    }
    CFP_MEMBER i64 size() const { return high * wide; }
};

// Calls each(tile, number, lane, lanes) for the tiles that this warp or thread processes.
template <class Each>
CFP_FN void each_tile(i64 planes, i64 rows, i64 columns, i64 height, i64 width, const Each& each) {
    const i64 across = (columns + width - 1) / width, down = (rows + height - 1) / height, all = planes * down * across;
    const bool alone = width == 1 || blockDim.x < 32;  // one thread per tile
    const int lanes = alone ? 1 : 32, lane = alone ? 0 : threadIdx.x % 32;
    for (i64 number = thread_index() / lanes; number < all; number += thread_count() / lanes) {
        const i64 band = number / across, plane = band / down;
        const i64 row = (band - plane * down) * height, column = (number - band * across) * width;
        const Tile tile = {(plane * rows + row) * columns + column, rows - row < height ? rows - row : height,
                           columns - column < width ? columns - column : width, columns, width};
        each(tile, number, lane, lanes);
    }
}

template <class Kind> CFP_FN typename Kind::Ends ends_of(const Kind& kind, const float* x, const Tile& tile, int lane, int lanes) {
    typename Kind::Ends ends = kind.none();
    for (i64 e = lane; e < tile.size(); e += lanes) kind.meet(ends, x[tile.place(e)]);
    if (lanes > 1)
        for (int apart = 16; apart; apart /= 2) kind.join(ends, kind.of_other(ends, apart));
    return ends;
}

// ---- runs -----------------------------------------------------------------------------------------------------------
//
// 16 lanes process 128 adjacent values: lane l has the 8 values at l, l + 16 and so on. Random bits have the same
// layout (philox.h), so a lane draws the bits for its own values. At first, each lane has the Ends of `have` blocks. In
// each step, two lanes with a distance of `apart` exchange Ends, and each keeps half of the blocks. In the end, every
// group of 16 / have lanes has one block and computes its scale.

template <int have, int apart, class Kind> CFP_FN void join_halves(const Kind& kind, typename Kind::Ends* ends, int lane) {
    if constexpr (apart > 0 && have > 1) {
        const bool upper = lane & apart;
#pragma unroll
        for (int j = 0; j < have / 2; ++j) {
            const typename Kind::Ends low = ends[j], high = ends[j + have / 2];
            ends[j] = kind.either(upper, high, low);
            kind.join(ends[j], kind.of_other(kind.either(upper, low, high), apart));
        }
        join_halves<have / 2, apart / 2>(kind, ends, lane);
    } else if constexpr (apart > 0) {
        kind.join(ends[0], kind.of_other(ends[0], apart));
        join_halves<1, apart / 2>(kind, ends, lane);
    }
}

template <int width, class Kind, class To> CFP_FN void runs_of(const Kind& kind, const float* x, const To& to, i64 n) {
    constexpr int blocks = 128 / width, per_lane = 8 / blocks, lanes = 16 / blocks;
    const int lane = threadIdx.x % 16, half = threadIdx.x % 32 - lane;
    const i64 groups = (n + 127) / 128;
    for (i64 pair = thread_index() / 32 * 2; pair < groups; pair += thread_count() / 32 * 2) {
        const i64 group = pair + half / 16, first = group * 128 + lane;
        const int left = n - first < 128 ? static_cast<int>(n - first) : 128;
        float v[8];
        typename Kind::Ends ends[blocks];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = 16 * j < left ? x[first + 16 * j] : 0.0f;
#pragma unroll
        for (int b = 0; b < blocks; ++b) ends[b] = kind.none();
#pragma unroll
        for (int j = 0; j < 8; ++j) kind.meet(ends[j / per_lane], v[j]);
        join_halves<blocks, 8>(kind, ends, lane);
        const typename Kind::Scale found = kind.scale(ends[0]);
        const i64 number = group * blocks + lane / lanes;
        if (lane % lanes == 0 && number * width < n) to.block(number, found, kind);
        const typename Kind::Drawn drawn = kind.draw(group, lane);
        typename Kind::Scale scale = found;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (j % per_lane == 0) scale = kind.of_lane(found, half + j / per_lane * lanes);
            if (16 * j < left) to.element(first + 16 * j, v[j], scale, kind, kind.random(drawn, j));
        }
    }
}

template <class Kind, class To> CFP_FN void runs(const Kind& kind, const float* x, const To& to, i64 n, int width) {
    switch (width) {
        case 16: return runs_of<16>(kind, x, to, n);
        case 32: return runs_of<32>(kind, x, to, n);
        case 64: return runs_of<64>(kind, x, to, n);
        default: return runs_of<128>(kind, x, to, n);
    }
}
