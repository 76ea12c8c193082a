// Codebooks and affine integers on a GPU. scaled/codebook.h and scaled/affine.h define the results, and
// scaled/tiles.cuh assigns the work to threads. If a tile is the whole tensor, its range is passed as an argument. Part
// of custom_fp.cu.

// Members that the kinds without stochastic rounding share.
struct Nothing {};

struct CodebookKind {
    CodebookTables t;
    struct Ends {
        u32 largest;
    };
    typedef float Scale;
    typedef Nothing Drawn;
    CFP_MEMBER Drawn draw(i64, int) const { return {}; }
    CFP_MEMBER u32 random(Drawn, int) const { return 0; }

    CFP_MEMBER Ends none() const { return {0}; }
    CFP_MEMBER void meet(Ends& ends, float x) const { join(ends, {to_bits(x) & 0x7fffffffu}); }
    CFP_MEMBER void join(Ends& ends, const Ends& other) const {
        ends.largest = ends.largest > other.largest ? ends.largest : other.largest;
    }
    CFP_MEMBER Ends either(bool first, const Ends& a, const Ends& b) const { return {first ? a.largest : b.largest}; }
    CFP_MEMBER Ends of_other(const Ends& ends, int apart) const { return {xor_lane(ends.largest, apart)}; }
    CFP_MEMBER Scale scale(const Ends& ends) const { return codebook_scale(ends.largest); }
    CFP_MEMBER Scale of_lane(Scale scale, int lane) const { return ::of_lane(scale, lane); }
    CFP_MEMBER i32 place(float x, Scale scale) const {
        return codebook_place(scale != scale ? -1.0f : x / (scale > 0.0f ? scale : 1.0f), t);
    }
    CFP_MEMBER float value(float x, Scale scale) const { return codebook_value(place(x, scale), t) * scale; }
    CFP_MEMBER i32 code(float x, Scale scale) const { return codebook_code(place(x, scale), t); }
    CFP_MEMBER float factor(Scale scale) const { return scale; }
    CFP_MEMBER u8 zero(Scale) const { return 0; }
};

struct AffineKind {
    float levels;
    struct Ends {
        u32 largest;
        float low, high;
    };
    typedef AffineScale Scale;
    typedef Nothing Drawn;
    CFP_MEMBER Drawn draw(i64, int) const { return {}; }
    CFP_MEMBER u32 random(Drawn, int) const { return 0; }

    CFP_MEMBER Ends none() const { return {0, 0.0f, 0.0f}; }
    CFP_MEMBER void meet(Ends& ends, float x) const { join(ends, {to_bits(x) & 0x7fffffffu, x, x}); }
    CFP_MEMBER void join(Ends& ends, const Ends& other) const {
        ends.largest = ends.largest > other.largest ? ends.largest : other.largest;
        ends.low = other.low < ends.low ? other.low : ends.low;
        ends.high = other.high > ends.high ? other.high : ends.high;
    }
    CFP_MEMBER Ends either(bool first, const Ends& a, const Ends& b) const {  // choosing between structures would put them in memory
        return {first ? a.largest : b.largest, first ? a.low : b.low, first ? a.high : b.high};
    }
    CFP_MEMBER Ends of_other(const Ends& ends, int apart) const {
        return {xor_lane(ends.largest, apart), xor_lane(ends.low, apart), xor_lane(ends.high, apart)};
    }
    CFP_MEMBER Scale scale(const Ends& ends) const { return affine_scale(ends.low, ends.high, ends.largest, levels); }
    CFP_MEMBER Scale of_lane(const Scale& of, int lane) const {
        return {::of_lane(of.scale, lane), ::of_lane(of.inverse, lane), ::of_lane(of.zero, lane)};
    }
    CFP_MEMBER float value(float x, const Scale& of) const { return (affine_code(x, of, levels) - of.zero) * of.scale; }
    CFP_MEMBER i32 code(float x, const Scale& of) const {
        return of.scale == of.scale ? static_cast<i32>(affine_code(x, of, levels)) : 0;
    }
    CFP_MEMBER float factor(const Scale& of) const { return of.scale; }
    CFP_MEMBER u8 zero(const Scale& of) const { return static_cast<u8>(of.zero); }
};

// Where results are written: values, or codes with scales and zero points. `zeros` may be null.
struct Written {
    float* out;
    u8* codes;
    float* scales;
    u8* zeros;

    template <class Kind> CFP_MEMBER void element(i64 at, float x, const typename Kind::Scale& scale, const Kind& kind, u32) const {
        if (out)
            out[at] = canonical(kind.value(x, scale));
        else
            codes[at] = static_cast<u8>(kind.code(x, scale));
    }
    template <class Kind> CFP_MEMBER void block(i64 number, const typename Kind::Scale& scale, const Kind& kind) const {
        if (scales) scales[number] = canonical(kind.factor(scale));
        if (zeros) zeros[number] = kind.zero(scale);
    }
};

template <class Kind>
CFP_FN void tiles(const Kind& kind, const float* x, const Written& to, i64 planes, i64 rows, i64 columns, i64 height,
                  i64 width) {
    each_tile(planes, rows, columns, height, width, [&](const Tile& tile, i64 number, int lane, int lanes) {
        const typename Kind::Scale scale = kind.scale(ends_of(kind, x, tile, lane, lanes));
        if (lane == 0) to.block(number, scale, kind);
        for (i64 e = lane; e < tile.size(); e += lanes) {
            const i64 at = tile.place(e);
            to.element(at, x[at], scale, kind, 0);
        }
    });
}

// ends: the largest magnitude, and for affine integers also the smallest and the largest value.
template <class Kind>
CFP_FN void whole(const Kind& kind, const float* x, const Written& to, i64 n, const typename Kind::Ends* ends) {
    const typename Kind::Scale scale = kind.scale(*ends);
    if (thread_index() == 0) to.block(0, scale, kind);
    for (i64 i = thread_index(); i < n; i += thread_count()) to.element(i, x[i], scale, kind, 0);
}

#define CFP_CODEBOOK                                                                                                \
    const float *cell_thresholds, const float *cell_values, const i32 *cell_codes, int shift, int first, int half, \
        const float *thresholds, const float *ascending, const i32 *table_codes
#define CFP_KIND                                                                                          \
    {                                                                                                     \
        {{cell_thresholds, cell_values, cell_codes, shift, first, half}, thresholds, ascending, table_codes, 0} \
    }

extern "C" __global__ void codebook_tiles(const float* x, float* out, u8* codes, float* scales, i64 planes, i64 rows,
                                          i64 columns, i64 height, i64 width, CFP_CODEBOOK) {
    const CodebookKind kind = CFP_KIND;
    tiles(kind, x, {out, codes, scales, nullptr}, planes, rows, columns, height, width);
}
extern "C" __global__ void codebook_whole(const float* x, float* out, u8* codes, float* scales, i64 n, const u32* ends,
                                          CFP_CODEBOOK) {
    const CodebookKind kind = CFP_KIND;
    whole(kind, x, {out, codes, scales, nullptr}, n, reinterpret_cast<const CodebookKind::Ends*>(ends));
}
extern "C" __global__ void codebook_runs(const float* x, float* out, u8* codes, float* scales, i64 n, int width,
                                         CFP_CODEBOOK) {
    const CodebookKind kind = CFP_KIND;
    runs(kind, x, Written{out, codes, scales, nullptr}, n, width);
}
extern "C" __global__ void affine_tiles(const float* x, float* out, u8* codes, float* scales, u8* zeros, i64 planes,
                                        i64 rows, i64 columns, i64 height, i64 width, float levels) {
    const AffineKind kind = {levels};
    tiles(kind, x, {out, codes, scales, zeros}, planes, rows, columns, height, width);
}
extern "C" __global__ void affine_whole(const float* x, float* out, u8* codes, float* scales, u8* zeros, i64 n,
                                        const u32* ends, float levels) {
    const AffineKind kind = {levels};
    whole(kind, x, {out, codes, scales, zeros}, n, reinterpret_cast<const AffineKind::Ends*>(ends));
}
extern "C" __global__ void affine_runs(const float* x, float* out, u8* codes, float* scales, u8* zeros, i64 n, int width,
                                       float levels) {
    const AffineKind kind = {levels};
    runs(kind, x, Written{out, codes, scales, zeros}, n, width);
}
