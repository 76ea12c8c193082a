// Bindings of the kernels for formats with scales.
#include "bindings.h"
#include "tiles/kernels.h"

namespace custom_fp::bindings {
namespace {

uint32_t largest(const float* x, int64_t n, bool all, int threads) {
    if (!all) {  // try with all values first, because NaN and infinity are rare
        const uint32_t found = largest(x, n, true, threads);
        if (found < 0x7f800000u) return found;
    }
    std::atomic<uint32_t> found(0);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        const uint32_t here = kernels<TileKernels>().largest(x + begin, end - begin, all);
        for (uint32_t seen = found; seen < here && !found.compare_exchange_weak(seen, here);) {
        }
    });
    return found;
}

// Returns the scale of a tensor, or 1 if the format has no such scale.
float scale_of_tensor(const float* x, int64_t n, const Scaling& f, int threads) {
    if (f.tensor_target == 0.0f) return 1.0f;
    const float amax = from_bits(largest(x, n, false, threads));
    FpEnvironment environment;
    return tensor_scale(amax, f);
}

template <class Body> void over_units(const Tiling& g, int threads, const Body& body) {
    parallel(g.units(), threads, std::max<int64_t>(1, grain / std::max<int64_t>(1, g.unit_size())), 1, body);
}

// Returns whether blocks are rows that are so long that several threads share one.
bool is_long(const Tiling& g, const Scaling& f) { return g.height == 1 && g.width > grain && f.rule != four_over_six; }

// Calls block(first, count, number) for each block of such rows.
template <class Block> void each_long(const Tiling& g, const Block& block) {
    for (int64_t row = 0, number = 0; row < g.planes * g.rows; ++row)
        for (int64_t column = 0; column < g.columns; column += g.width, ++number)
            block(row * g.columns + column, std::min(g.width, g.columns - column), number);
}

struct Long {
    uint32_t code;
    float scale;
    Long(const float* x, int64_t n, float t, const Scaling& f, int threads) {
        const Spec spec = unpack_spec(f.scale);
        const Coder coder = make_coder(spec);
        const uint32_t amax = largest(x, n, true, threads);
        FpEnvironment environment;
        code = block_scale(amax, t, 1.0f, f, make_rounder<float>(spec, nearest_even, infinity), coder);
        scale = scale_value(code, f, coder);
    }
};

Rule rule_of(const Scaling& f, int mode, uint64_t seed, uint64_t offset, uint32_t mask) {
    return {f.element, mode, saturate, seed, offset, mask};
}

void quantize(uintptr_t x, uintptr_t out, const Tiling& g, const Scaling& f, int mode, uint64_t seed, uint64_t offset,
              uint32_t mask, int threads) {
    const float* from = at<const float>(x);
    const float t = scale_of_tensor(from, g.planes * g.rows * g.columns, f, threads);
    const Rule rule = rule_of(f, mode, seed, offset, mask);
    if (!is_long(g, f)) {
        over_units(g, threads, [&](int64_t begin, int64_t end) {
            kernels<TileKernels>().quantize(from, at<float>(out), g, begin, end, f, rule, t);
        });
        return;
    }
    each_long(g, [&](int64_t first, int64_t count, int64_t) {
        const Long block(from + first, count, t, f, threads);
        const Rule here = rule_of(f, mode, seed, offset + static_cast<uint64_t>(first), mask);
        parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
            kernels<TileKernels>().quantize_one(from + first, at<float>(out) + first, begin, end, f, here, block.scale, t);
        });
    });
}

// Returns the scale of the tensor. dense: codes are packed, and the tensor is one row.
float encode(uintptr_t x, uintptr_t scales, uintptr_t codes, bool dense, const Tiling& g, const Scaling& f, int mode,
             uint64_t seed, uint64_t offset, uint32_t mask, int threads) {
    const float* from = at<const float>(x);
    const float t = scale_of_tensor(from, g.planes * g.rows * g.columns, f, threads);
    const Rule rule = rule_of(f, mode, seed, offset, mask);
    if (!is_long(g, f)) {
        over_units(g, threads, [&](int64_t begin, int64_t end) {
            kernels<TileKernels>().encode(from, at<void>(scales), at<uint8_t>(codes), dense, g, begin, end, f, rule, t);
        });
        return t;
    }
    each_long(g, [&](int64_t first, int64_t count, int64_t number) {
        const Long block(from + first, count, t, f, threads);
        if (f.kind == float_scale)
            at<uint32_t>(scales)[number] = block.code;
        else
            at<uint8_t>(scales)[number] = static_cast<uint8_t>(block.code);
        const Rule here = rule_of(f, mode, seed, offset + static_cast<uint64_t>(first), mask);
        parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
            kernels<TileKernels>().encode_one(from + first, at<uint8_t>(codes) + first, dense, begin, end, f, here, block.scale, t);
        });
    });
    return t;
}

void decode(uintptr_t scales, uintptr_t codes, bool dense, uintptr_t out, const Tiling& g, const Scaling& f, float t,
            int threads) {
    if (g.height == 1 && g.width > grain) {
        const Coder coder = make_coder(unpack_spec(f.scale));
        each_long(g, [&](int64_t first, int64_t count, int64_t number) {
            const uint32_t code = f.kind == float_scale ? at<uint32_t>(scales)[number] : at<uint8_t>(scales)[number];
            const float scale = scale_value(code, f, coder);
            parallel(count, threads, grain, [&](int64_t begin, int64_t end) {
                kernels<TileKernels>().decode_one(at<uint8_t>(codes) + first, dense, at<float>(out) + first, begin, end, f, scale, t);
            });
        });
        return;
    }
    over_units(g, threads, [&](int64_t begin, int64_t end) {
        kernels<TileKernels>().decode(at<const void>(scales), at<const uint8_t>(codes), dense, at<float>(out), g, begin, end, f, t);
    });
}

void join(uintptr_t codes, uintptr_t bytes, int64_t n, int bits, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        kernels<TileKernels>().join(at<const uint8_t>(codes), at<uint8_t>(bytes), begin, end, bits);
    });
}

void split(uintptr_t bytes, uintptr_t codes, int64_t n, int bits, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        kernels<TileKernels>().split(at<const uint8_t>(bytes), at<uint8_t>(codes), begin, end, bits);
    });
}

}  // namespace

void define_tiles(nb::module_& m) {
    nb::class_<Tiling>(m, "Tiling")
        .def("__init__", [](Tiling* g, int64_t planes, int64_t rows, int64_t columns, int64_t height, int64_t width) {
            new (g) Tiling{planes, rows, columns, height, width};
        });
    nb::class_<Scaling>(m, "Scaling")
        .def("__init__", [](Scaling* f, uint32_t element, int bits, bool is_integer, float least, float most, float unit,
                            int kind, uint32_t scale, uint32_t nan_code, float smallest, float largest, int rule,
                            uint32_t added, int emax, float target, float tensor_target) {
            new (f) Scaling{element,  bits,    is_integer, least, most,  unit, kind,   scale,
                            nan_code, smallest, largest,   rule,  added, emax, target, tensor_target};
        });
    m.def("quantize_tiles", &quantize);
    m.def("encode_tiles", &encode);
    m.def("decode_tiles", &decode);
    m.def("join_codes", &join);
    m.def("split_codes", &split);
}

}  // namespace custom_fp::bindings
