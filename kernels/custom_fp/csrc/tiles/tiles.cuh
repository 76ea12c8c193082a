// Formats with scales on a GPU. tiles.h has the arithmetic, formats/scaled_format.py defines the results, and
// scaled/tiles.cuh assigns the work to threads. Part of custom_fp.cu.
//
// f: the parameters, in memory because there are sixteen. t: the scale of the tensor, or null if there is none. The
// results are values or, if `out` is null, codes and scales.

template <Mode mode> struct ScaledKind {
    Scaling f;
    float t;
    u64 seed, index;  // index: that of the first element
    u32 mask;
    Rounder<float> scale_rounder, rounder;
    Coder scale_coder, coder;
    struct Ends {
        u32 largest;
    };
    struct Scale {
        u32 code;
        float value, times;  // times: the factor by which elements are multiplied
    };
    struct Drawn {
        Words upper, lower;
    };

    CFP_MEMBER ScaledKind(const Scaling& f, const float* t, RoundingMode rounding, u64 seed, u64 index, u32 mask)
        : f(f), t(t ? *t : 1.0f), seed(seed), index(index), mask(mask),
          scale_rounder(make_rounder<float>(unpack_spec(f.scale), nearest_even, infinity)),
          rounder(make_rounder<float>(unpack_spec(f.element), rounding.mode, saturate)), scale_coder(make_coder(unpack_spec(f.scale))),
          coder(make_coder(unpack_spec(f.element))) {}

    CFP_MEMBER Ends none() const { return {0}; }
    CFP_MEMBER void meet(Ends& ends, float x) const { join(ends, {to_bits(x) & 0x7fffffffu}); }
    CFP_MEMBER void join(Ends& ends, const Ends& other) const { ends.largest = larger(ends.largest, other.largest); }
    CFP_MEMBER Ends either(bool first, const Ends& a, const Ends& b) const { return {first ? a.largest : b.largest}; }
    CFP_MEMBER Ends of_other(const Ends& ends, int apart) const { return {xor_lane(ends.largest, apart)}; }
    CFP_MEMBER Scale scale(const Ends& ends, float times = 1.0f) const {
        return of_code(block_scale(ends.largest, t, times, f, scale_rounder, scale_coder));
    }
    CFP_MEMBER Scale of_code(u32 code) const {
        const float value = scale_value(code, f, scale_coder);
        return {code, value, scale_reciprocal(value, t)};
    }
    CFP_MEMBER Scale of_lane(const Scale& of, int lane) const {  // the code is not needed
        return {0, ::of_lane(of.value, lane), ::of_lane(of.times, lane)};
    }

    // Draws the random words for a lane's values in a group.
    CFP_MEMBER Drawn draw(i64 group_index, int lane) const {
        if constexpr (mode != stochastic) return {};
        const u64 here = index / group + static_cast<u64>(group_index);
        return {random_words(here, lane, 0, 0, seed), second_words(here, lane, 0, seed, mask)};
    }
    CFP_MEMBER u32 random(const Drawn& drawn, int place) const {
        if constexpr (mode != stochastic) return 0;
        return rounding_bits(half_of(drawn.upper.w[place / 2], place) << 16 | half_of(drawn.lower.w[place / 2], place), mask);
    }
    CFP_MEMBER u32 random_at(i64 at) const {
        return mode == stochastic ? random_of(index + static_cast<u64>(at), 0, seed, mask) : 0;
    }

    CFP_MEMBER float rounded(float x, float times, u32 random) const {
        const float e = round<mode>(clamp(x * times, f.least, f.most), rounder, random);
        return f.is_integer ? clamp(e, f.least, f.most) + 0.0f : e;
    }
};

template <class Kind> struct ScaledTo {
    float* out;
    u8* codes;
    void* scales;

    CFP_MEMBER void block(i64 number, const typename Kind::Scale& scale, const Kind& kind) const {
        if (!scales) return;
        if (kind.f.kind == float_scale)
            static_cast<u32*>(scales)[number] = scale.code;
        else
            static_cast<u8*>(scales)[number] = static_cast<u8>(scale.code);
    }
    CFP_MEMBER void element(i64 at, float x, const typename Kind::Scale& scale, const Kind& kind, u32 random) const {
        const float e = kind.rounded(x, scale.times, random);
        if (out)
            out[at] = canonical(e * (scale.value * kind.t));
        else if (scale.value != scale.value)
            codes[at] = 0;
        else
            codes[at] = static_cast<u8>(kind.f.is_integer ? encode_integer(e, kind.f) : encode(e, kind.coder));
    }
};

// Returns the sum of squared errors under a scale. There are eight sums, each over every eighth element of the whole
// tile, which are then added in pairs, beginning with sums that are 4 apart. In a warp, every eight lanes compute the
// same. A single thread computes all eight sums.
template <class Kind>
CFP_FN double squared_error(const Kind& kind, const float* x, const Tile& tile, const typename Kind::Scale& scale, bool alone) {
    const auto eighth = [&](i64 from) {
        double sum = 0.0;
        for (i64 e = from; e < tile.high * tile.width; e += 8) {
            const i64 row = e / tile.width, column = e - row * tile.width;
            if (column >= tile.wide) continue;
            const i64 at = tile.first + row * tile.columns + column;
            const float value = kind.rounded(x[at], scale.times, kind.random_at(at)) * (scale.value * kind.t);
            const double error = static_cast<double>(value - x[at]);
            sum += error * error;
        }
        return sum;
    };
    if (!alone) {
        double sum = eighth(threadIdx.x % 8);
        for (int apart = 4; apart; apart /= 2) sum += xor_lane(sum, apart);
        return sum;
    }
    double even = 0.0, odd = 0.0;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
        const double pair = eighth(j) + eighth(j + 4), before = even;
        even = odd;
        odd = before + pair;
    }
    return even + odd;
}

template <Mode mode>
CFP_FN void scaled_tiles(const float* x, const ScaledTo<ScaledKind<mode>>& to, i64 planes, i64 rows, i64 columns, i64 height,
                         i64 width, const ScaledKind<mode>& kind) {
    each_tile(planes, rows, columns, height, width, [&](const Tile& tile, i64 number, int lane, int lanes) {
        const auto ends = ends_of(kind, x, tile, lane, lanes);
        auto scale = kind.scale(ends);
        if (kind.f.rule == four_over_six) {
            const auto other = kind.scale(ends, 1.5f);
            const double at_6 = squared_error(kind, x, tile, scale, lanes == 1);
            if (squared_error(kind, x, tile, other, lanes == 1) < at_6) scale = other;
        }
        if (lane == 0) to.block(number, scale, kind);
        for (i64 e = lane; e < tile.size(); e += lanes) {
            const i64 at = tile.place(e);
            to.element(at, x[at], scale, kind, kind.random_at(at));
        }
    });
}

// Processes a tensor that is one block, whose largest magnitude is given.
template <Mode mode>
CFP_FN void scaled_whole(const float* x, const ScaledTo<ScaledKind<mode>>& to, i64 n, const u32* amax, const ScaledKind<mode>& kind) {
    const auto scale = kind.scale({*amax & 0x7fffffffu});
    if (thread_index() == 0) to.block(0, scale, kind);
    if constexpr (mode != stochastic) {
        for (i64 i = thread_index(); i < n; i += thread_count()) to.element(i, x[i], scale, kind, 0);
        return;
    }
    for_lanes(n, kind.index, [&](u64 here, u32 lane, i64 from) {
        float v[8];
        u32 random[8];
        load_lane(x, from, n, v);
        draw_lane(random, here, lane, 0, kind.seed, kind.mask);
#pragma unroll
        for (int place = 0; place < 8; ++place) {
            const i64 i = from + 16 * place;
            if (i >= 0 && i < n) to.element(i, v[place], scale, kind, random[place]);
        }
    });
}

template <class Kind> CFP_FN float scale_at(const void* scales, i64 number, const Kind& kind) {
    const u32 code = kind.f.kind == float_scale ? static_cast<const u32*>(scales)[number] : static_cast<const u8*>(scales)[number];
    return scale_value(code, kind.f, kind.scale_coder) * kind.t;
}

// Returns a function that decodes elements, without their scales.
template <class Kind> CFP_FN auto element_decoder(const Kind& kind) {
    return [&kind](u32 code) { return kind.f.is_integer ? decode_integer(code, kind.f) : decode(code, kind.coder); };
}

extern "C" __global__ void scaled_decode(const void* scales, const u8* codes, float* out, i64 planes, i64 rows,
                                         i64 columns, i64 height, i64 width, const Scaling* f, const float* t) {
    const ScaledKind<nearest_even> kind(*f, t, RoundingMode(0), 0, 0, 0);
    __shared__ float values[256];
    const Values value_of(values, 8, element_decoder(kind));
    each_tile(planes, rows, columns, height, width, [&](const Tile& tile, i64 number, int lane, int lanes) {
        const float factor = scale_at(scales, number, kind);
        for (i64 e = lane; e < tile.size(); e += lanes) {
            const i64 at = tile.place(e);
            out[at] = canonical(value_of(codes[at]) * factor);
        }
    });
}

// For runs. A thread has 8 values of the same run.
extern "C" __global__ void scaled_decode_runs(const void* scales, const u8* codes, float* out, i64 n, int width,
                                              const Scaling* f, const float* t) {
    const ScaledKind<nearest_even> kind(*f, t, RoundingMode(0), 0, 0, 0);
    __shared__ float values[256];
    const Values value_of(values, 8, element_decoder(kind));
    const bool wide = aligned(out);
    for (i64 i = 8 * thread_index(); i < n; i += 8 * thread_count()) {
        const float factor = scale_at(scales, i / width, kind);
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = i + j < n ? canonical(value_of(codes[i + j]) * factor) : 0.0f;
        store4(out, i, n, wide, v);
        store4(out, i + 4, n, wide, v + 4);
    }
}

#define CFP_SCALED(mode)                                                                                              \
    extern "C" __global__ void scaled_tiles_##mode(const float* x, float* out, u8* codes, void* scales, i64 planes,   \
                                                   i64 rows, i64 columns, i64 height, i64 width, const Scaling* f,    \
                                                   const float* t, int rounding, u64 seed, u64 index, u32 mask) {          \
        const ScaledKind<mode> kind(*f, t, RoundingMode(rounding), seed, index, mask);                                              \
        scaled_tiles<mode>(x, {out, codes, scales}, planes, rows, columns, height, width, kind);                      \
    }                                                                                                                 \
    extern "C" __global__ void scaled_runs_##mode(const float* x, float* out, u8* codes, void* scales, i64 n,         \
                                                  int width, const Scaling* f, const float* t, int rounding, u64 seed,     \
                                                  u64 index, u32 mask) {                                              \
        const ScaledKind<mode> kind(*f, t, RoundingMode(rounding), seed, index, mask);                                              \
        runs(kind, x, ScaledTo<ScaledKind<mode>>{out, codes, scales}, n, width);                                      \
    }                                                                                                                 \
    extern "C" __global__ void scaled_whole_##mode(const float* x, float* out, u8* codes, void* scales, i64 n,        \
                                                   const u32* amax, const Scaling* f, const float* t, int rounding,        \
                                                   u64 seed, u64 index, u32 mask) {                                   \
        const ScaledKind<mode> kind(*f, t, RoundingMode(rounding), seed, index, mask);                                              \
        scaled_whole<mode>(x, {out, codes, scales}, n, amax, kind);                                                   \
    }
CFP_FOR_EACH_MODE(CFP_SCALED)
