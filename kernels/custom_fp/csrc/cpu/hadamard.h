// CPU kernels for the Hadamard transform (hadamard.h). See cpu/kernels.h for the interface.
//
// A tensor (outer, length, inner) is divided along the middle dimension into blocks of `size`. Values after the last
// whole block are copied. The values of a block have a stride of `inner`. If inner is 1, a register contains adjacent
// values of one block, or several smaller blocks. Otherwise, it contains the same position of as many blocks as it has
// lanes.
#pragma once

#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/lanes.h"
#include "../hadamard.h"

namespace custom_fp {
namespace {

typedef Integers<FloatLanes> Lanes;

CFP_FN FloatLanes flip_signs(FloatLanes x, UintLanes signs) { return Lanes::value(Lanes::bits(x) ^ signs); }

CFP_FN FloatLanes canonical_lanes(FloatLanes x) {
    const UintLanes bits = Lanes::bits(x), is_nan = (UintLanes)(x != x);
    return Lanes::value(bits ^ ((bits ^ 0x7fc00000u) & is_nan));
}

// Scales sums, applies the signs, and replaces NaN by the canonical NaN.
CFP_FN FloatLanes finished(FloatLanes x, float scale, UintLanes signs) {
    return canonical_lanes(flip_signs(x * scale, signs));
}

// Computes the butterflies of neighbors `apart` within a register: a + b and, for the second one, a - b = a + (-b).
template <int apart, int... place> CFP_FN FloatLanes butterfly(FloatLanes x, std::integer_sequence<int, place...>) {
    const FloatLanes other = __builtin_shufflevector(x, x, (place ^ apart)...);
    const UintLanes second = {(place & apart ? 0x80000000u : 0u)...};
    return other + flip_signs(x, second);
}

// Computes the butterflies with distances 1, 2 and so on below `size`.
template <int size, int apart = 1> CFP_FN FloatLanes butterflies_within(FloatLanes x) {
    if constexpr (apart < size && apart < lanes)
        return butterflies_within<size, 2 * apart>(butterfly<apart>(x, std::make_integer_sequence<int, lanes>()));
    else
        return x;
}

struct Signs {
    std::vector<u32> before, after;  // the signs of a block, repeated to fill at least one register

    explicit Signs(const Transform& t) {
        const size_t n = static_cast<size_t>(t.size < lanes ? lanes : t.size);
        before.resize(n);
        after.resize(n);
        if (!t.has_signs) return;
        std::vector<u32>& drawn = t.inverse ? after : before;
        std::vector<u32> words((n + group - 1) / group * group);
        for (size_t i = 0; i < words.size(); i += group) fill_half(&words[i], i, hadamard_stream, 0, t.seed, 1u << 31);
        for (size_t i = 0; i < n; ++i) drawn[i] = words[i % static_cast<size_t>(t.size)] & 0x80000000u;
    }
};

CFP_FN UintLanes load_signs(const u32* from) {
    UintLanes signs;
    std::memcpy(&signs, from, sizeof signs);
    return signs;
}

// Transforms n values of consecutive blocks, each of which is at most as long as a register.
template <int size> void transform_short(const float* x, float* out, int64_t n, float scale, const Signs& signs) {
    const UintLanes before = load_signs(signs.before.data()), after = load_signs(signs.after.data());
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        __builtin_prefetch(x + i + 1024);  // because the processor does not prefetch in such a long loop
        store(out + i, finished(butterflies_within<size>(flip_signs(load<FloatLanes>(x + i), before)), scale, after));
    }
    if (i == n) return;
    float rest[lanes] = {};
    std::memcpy(rest, x + i, static_cast<size_t>(n - i) * sizeof(float));
    store(rest, finished(butterflies_within<size>(flip_signs(load<FloatLanes>(rest), before)), scale, after));
    std::memcpy(out + i, rest, static_cast<size_t>(n - i) * sizeof(float));
}

// Transforms one block that consists of several registers. `v` contains these registers.
CFP_FN void transform_long(const float* x, float* out, int64_t registers, float scale, const Signs& signs, FloatLanes* v) {
    for (int64_t r = 0; r < registers; ++r)
        v[r] = butterflies_within<lanes>(
            flip_signs(load<FloatLanes>(x + r * lanes), load_signs(&signs.before[static_cast<size_t>(r * lanes)])));
    butterflies(v, registers, 1);
    for (int64_t r = 0; r < registers; ++r)
        store(out + r * lanes, finished(v[r], scale, load_signs(&signs.after[static_cast<size_t>(r * lanes)])));
}

void transform_run(const float* x, float* out, int64_t n, int64_t size, float scale, const Signs& signs, FloatLanes* v) {
    if (size == 1) return transform_short<1>(x, out, n, scale, signs);
    if (size == 2) return transform_short<2>(x, out, n, scale, signs);
    if (size == 4) return transform_short<4>(x, out, n, scale, signs);
    if (size == 8 && lanes >= 8) return transform_short<8>(x, out, n, scale, signs);
    if (size == 16 && lanes >= 16) return transform_short<16>(x, out, n, scale, signs);
    if (size == 2 * lanes)  // With a constant size, the compiler unrolls the loops and keeps v in registers.
        for (int64_t i = 0; i < n; i += size) transform_long(x + i, out + i, 2, scale, signs, v);
    else
        for (int64_t i = 0; i < n; i += size) transform_long(x + i, out + i, size / lanes, scale, signs, v);
}

// Transforms one block in each of as many columns as a register has lanes, of which `count` exist.
void transform_columns(const float* x, float* out, int64_t size, int64_t inner, int64_t count, float scale,
                       const Signs& signs, FloatLanes* v) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    for (int64_t i = 0; i < size; ++i) {
        v[i] = FloatLanes{};
        if (count == lanes)
            v[i] = load<FloatLanes>(x + i * inner);
        else
            std::memcpy(&v[i], x + i * inner, bytes);
        v[i] = flip_signs(v[i], UintLanes{} + signs.before[static_cast<size_t>(i)]);
    }
    if (size == 16)
        butterflies(v, 16, 1);  // unrolled, in registers
    else
        butterflies(v, size, 1);
    for (int64_t i = 0; i < size; ++i) {
        const FloatLanes y = finished(v[i], scale, UintLanes{} + signs.after[static_cast<size_t>(i)]);
        if (count == lanes)
            store(out + i * inner, y);
        else
            std::memcpy(out + i * inner, &y, bytes);
    }
}

// Transforms blocks begin to end - 1, which are numbered along `length` first and then along `outer`. Values after the
// last whole block are copied together with this block.
void hadamard_range(const float* x, float* out, int64_t begin, int64_t end, const Transform& t) {
    const int64_t per_outer = t.length / t.size, step = t.size * t.inner;
    const Signs signs(t);
    int k = 0;
    while (int64_t(1) << k < t.size) ++k;
    const float scale = hadamard_scale(k);
    std::vector<FloatLanes> v(static_cast<size_t>(t.size));
    for (int64_t block = begin; block < end;) {
        const int64_t outer = block / per_outer, place = block - outer * per_outer;
        const int64_t blocks = end - block < per_outer - place ? end - block : per_outer - place;
        const int64_t first = outer * t.length * t.inner + place * step;
        if (t.inner == 1)
            transform_run(x + first, out + first, blocks * t.size, t.size, scale, signs, v.data());
        else
            for (int64_t at = first; at < first + blocks * step; at += step)
                for (int64_t c = 0; c < t.inner; c += lanes)
                    transform_columns(x + at + c, out + at + c, t.size, t.inner, c + lanes < t.inner ? lanes : t.inner - c,
                                      scale, signs, v.data());
        block += blocks;
        const int64_t done = first + blocks * step, last = (outer + 1) * t.length * t.inner;
        if (place + blocks == per_outer)
            for (int64_t i = done; i < last; ++i) out[i] = canonical(x[i]);
    }
}

}  // namespace
}  // namespace custom_fp
