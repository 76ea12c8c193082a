// The CUDA kernels, which NVRTC compiles (nvrtc.py). Each returns the same bits as the CPU kernel with the same
// purpose, because both use the arithmetic of custom_fp.h, compiled with --fmad=false and without flush-to-zero.
// reference.py defines the results.
//
// A thread processes groups of 4 adjacent elements with 16-byte accesses if addresses allow this, and otherwise single
// elements.
#include "accumulators/dot.h"
#include "custom_fp.h"
#include "hadamard.h"
#include "narrow.h"
#include "philox.h"
#include "scaled/affine.h"
#include "scaled/codebook.h"
#include "shortcuts.h"
#include "tabulated/tabulated_rounding.h"
#include "tiles/tiles.h"

using namespace custom_fp;

// nvrtc.py compiles one part of the kernels for one rounding mode: -DCFP_PART -DCFP_ONLY_PACK and a CFP_FOR_EACH_MODE.
#ifndef CFP_FOR_EACH_MODE
#define CFP_FOR_EACH_MODE(kernel) kernel(nearest_even) kernel(toward_zero) kernel(stochastic) kernel(otherwise)
#endif

// ---- elements --------------------------------------------------------------------------------------------------

CFP_FN bool aligned(const void* p) { return (reinterpret_cast<u64>(p) & 15) == 0; }

CFP_FN void load4(const float* x, i64 i, i64 n, bool wide, float v[4]) {
    if (wide && i + 4 <= n) {
        const float4 all = *reinterpret_cast<const float4*>(x + i);
        v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
    } else {
        for (int j = 0; j < 4; ++j) v[j] = i + j < n ? x[i + j] : 0.0f;
    }
}

CFP_FN void load4(const double* x, i64 i, i64 n, bool wide, double v[4]) {
    if (wide && i + 4 <= n) {
        const double2 a = *reinterpret_cast<const double2*>(x + i), b = *reinterpret_cast<const double2*>(x + i + 2);
        v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
    } else {
        for (int j = 0; j < 4; ++j) v[j] = i + j < n ? x[i + j] : 0.0;
    }
}

CFP_FN void store4(float* out, i64 i, i64 n, bool wide, const float v[4]) {
    if (wide && i + 4 <= n)
        *reinterpret_cast<float4*>(out + i) = make_float4(v[0], v[1], v[2], v[3]);
    else
        for (int j = 0; j < 4 && i + j < n; ++j) out[i + j] = v[j];
}

// The argument `rounding` of a kernel: Overflow in the lowest byte, and Mode above it.
struct RoundingMode {
    int mode, overflow;
    CFP_MEMBER explicit RoundingMode(int packed) : mode(packed >> 8), overflow(packed & 0xff) {}
};

// The addresses of `tensors` arrays, as a kernel argument. If there are more than `few`, the addresses are in a table
// in device memory, which put_addresses has filled. Nothing is copied from the host, so a CUDA graph can capture the
// launch. cuda.py has the same struct.
struct Addresses {
    static constexpr int few = 480;  // a kernel has at most 4 KB of arguments
    u64 first[few];
    const u64* table;
    template <class T> CFP_MEMBER const T* of(int r) const {
        return static_cast<const T*>(__cvta_global_to_generic(table ? table[r] : first[r]));
    }
};

// Returns whether 0 <= i < n, with one comparison.
CFP_FN bool is_index(i64 i, i64 n) { return static_cast<u64>(i) < static_cast<u64>(n); }

CFP_FN i64 thread_index() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }
CFP_FN i64 thread_count() { return static_cast<i64>(gridDim.x) * blockDim.x; }

// ---- quantize --------------------------------------------------------------------------------------------------

template <Mode mode, class F>
CFP_FN void quantize(const F* x, float* out, i64 n, u32 spec, RoundingMode rounding) {
    const Rounder<F> rounder = make_rounder<F>(unpack_spec(spec), rounding.mode, rounding.overflow);
    const bool wide = aligned(x) && aligned(out);
    F v[4];
    float result[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, wide, v);
        for (int j = 0; j < 4; ++j) {
            result[j] = to_float32(round<mode>(v[j], rounder, 0));
            if (mode == otherwise) result[j] = settle(result[j], rounder);
        }
        store4(out, i, n, wide, result);
    }
}

#if !defined CFP_PART || defined CFP_ONLY_ELEMENTS
extern "C" __global__ void put_addresses(Addresses some, u64* table, i64 n) {
    for (i64 r = thread_index(); r < n; r += thread_count()) table[r] = some.first[r];
}
#endif

// Returns the second half of a lane's random words, or zeros if the mask uses none of their bits.
CFP_FN Words second_words(u64 group_index, u32 lane, u32 stream, u64 seed, u32 mask) {
    if (counted(mask) & 0xffffu) return random_words(group_index, lane, stream, 1, seed);
    return Words{{0, 0, 0, 0}};
}

// Returns words.w[which] by selection, because an index that is not a constant would put the array into local memory.
CFP_FN u32 word_of(const Words& words, u32 which) {
    const u32 low = which & 1 ? words.w[1] : words.w[0], high = which & 1 ? words.w[3] : words.w[2];
    return which & 2 ? high : low;
}

// Returns the random bits of the element with an index, from both halves, with the bits that `mask` (Rule::mask) omits
// set to zero.
CFP_FN u32 random_of(u64 index, u32 stream, u64 seed, u32 mask) {
    const u32 lane = static_cast<u32>(index % 16), place = static_cast<u32>(index / 16 % 8);
    const u32 upper = word_of(random_words(index / group, lane, stream, 0, seed), place / 2);
    const u32 lower = word_of(second_words(index / group, lane, stream, seed, mask), place / 2);
    return rounding_bits(half_of(upper, place) << 16 | half_of(lower, place), mask);
}

// Draws the random bits for the 8 elements of a lane in a group of 128, using all words of two counters (philox.h).
CFP_FN void draw_lane(u32 random[8], u64 group_index, u32 lane, u32 stream, u64 seed, u32 mask) {
    const Words upper = random_words(group_index, lane, stream, 0, seed);
    const Words lower = second_words(group_index, lane, stream, seed, mask);
#pragma unroll
    for (u32 place = 0; place < 8; ++place)
        random[place] = rounding_bits(half_of(upper.w[place / 2], place) << 16 | half_of(lower.w[place / 2], place), mask);
}

// Draws only the first 16 random bits of each element of a lane. The lower bits are those that rounding_bits sets.
CFP_FN void draw_first(u32 random[8], u64 group_index, u32 lane, u32 stream, u64 seed, u32 mask) {
    const Words upper = random_words(group_index, lane, stream, 0, seed);
#pragma unroll
    for (u32 place = 0; place < 8; ++place) random[place] = rounding_bits(half_of(upper.w[place / 2], place) << 16, mask);
}

// Calls body(group, lane, i) for the lanes of groups that this thread processes. There are n elements, and the first
// has the index `index`. A lane has those of the elements i, i + 16, ..., i + 112 that are between 0 and n - 1. The
// lanes of a warp are adjacent in memory.
template <class Body> CFP_FN void for_lanes(i64 n, u64 index, const Body& body) {
    const u64 first_group = index / group;
    const i64 groups = static_cast<i64>((index + n - 1) / group - first_group) + 1;
    for (i64 t = thread_index(); t < groups * 16; t += thread_count()) {
        const u64 here = first_group + static_cast<u64>(t / 16);
        const u32 lane = static_cast<u32>(t % 16);
        body(here, lane, static_cast<i64>(here * group + lane - index));
    }
}

// Loads the elements of a lane before any result is stored. `out` may be x, so the compiler would not move loads across
// a store.
template <class F> CFP_FN void load_lane(const F* x, i64 first, i64 n, F v[8]) {
#pragma unroll
    for (int place = 0; place < 8; ++place) {
        const i64 i = first + 16 * place;
        v[place] = is_index(i, n) ? x[i] : F(0);
    }
}

template <class F>
CFP_FN void quantize_randomly(const F* x, float* out, i64 n, u32 spec, RoundingMode rounding, u64 seed, u64 index, u32 mask) {
    const Rounder<F> rounder = make_rounder<F>(unpack_spec(spec), stochastic, rounding.overflow);
    for_lanes(n, index, [&](u64 here, u32 lane, i64 first) {
        F v[8];
        u32 random[8];
        load_lane(x, first, n, v);
        draw_lane(random, here, lane, 0, seed, mask);
#pragma unroll
        for (int place = 0; place < 8; ++place) {
            const i64 i = first + 16 * place;
            if (is_index(i, n)) out[i] = settle(to_float32(round<stochastic>(v[place], rounder, random[place])), rounder);
        }
    });
}

#define CFP_QUANTIZE_FROM(mode, F, suffix)                                                                         \
    extern "C" __global__ void quantize_##mode##_##suffix(const F* x, float* out, i64 n, u32 spec, int rounding,        \
                                                          u64 seed, u64 index, u32 mask) {                         \
        if constexpr (mode == stochastic)                                                                          \
            quantize_randomly(x, out, n, spec, RoundingMode(rounding), seed, index, mask);                                       \
        else                                                                                                       \
            quantize<mode>(x, out, n, spec, RoundingMode(rounding));                                                             \
    }
#define CFP_QUANTIZE(mode) CFP_QUANTIZE_FROM(mode, float, f32) CFP_QUANTIZE_FROM(mode, double, f64)
#if !defined CFP_PART || defined CFP_ONLY_QUANTIZE
CFP_FOR_EACH_MODE(CFP_QUANTIZE)
#endif

#if !defined CFP_PART || defined CFP_ONLY_ELEMENTS
extern "C" __global__ void scale_f32(const float* x, float* out, i64 n, int shift) {
    const PowerOfTwo power(shift);
    const bool wide = aligned(x) && aligned(out);
    float v[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, wide, v);
        for (int j = 0; j < 4; ++j) v[j] = power.times(v[j]);
        store4(out, i, n, wide, v);
    }
}
#endif

// Computes the largest finite magnitude as the bits of a float64. *largest must initially be 0.
template <class F> CFP_FN void max_magnitude(const F* x, i64 n, u64* largest) {
    const bool wide = aligned(x);
    u64 most = 0;
    F v[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, wide, v);
        for (int j = 0; j < 4; ++j) {
            const auto magnitude = to_bits(v[j]) & ~Bits<F>::sign;
            const u64 widened = magnitude < Bits<F>::infinity ? to_bits(static_cast<double>(from_bits(magnitude))) : 0;
            most = most > widened ? most : widened;
        }
    }
    for (int step = 16; step; step /= 2) {
        const u64 other = __shfl_down_sync(0xffffffffu, most, step);
        most = most > other ? most : other;
    }
    if (threadIdx.x % 32 == 0) atomicMax(largest, most);
}
#if !defined CFP_PART || defined CFP_ONLY_ELEMENTS
extern "C" __global__ void max_magnitude_f32(const float* x, i64 n, u64* largest) { max_magnitude(x, n, largest); }
extern "C" __global__ void max_magnitude_f64(const double* x, i64 n, u64* largest) { max_magnitude(x, n, largest); }
#endif

// ---- sums ------------------------------------------------------------------------------------------------------

// Computes acc = Q(acc + g), or Kahan's version. sum(a, b, member, random) returns Q(a + b), where `member` says
// whether a and b are values of the format. The parameter `member` of this function refers to g.
template <class Sum>
CFP_FN void add_rounded(float& acc, float& c, float g, bool kahan, bool member, const u32 random[4], const Sum& sum) {
    if (!kahan) {
        acc = sum(acc, g, member, random[0]);
        return;
    }
    const float y = sum(g, -c, member, random[0]), t = sum(acc, y, true, random[1]);
    const float lost = sum(sum(t, -acc, true, random[2]), -y, true, random[3]);
    c = (to_bits(t) & 0x7fffffffu) < 0x7f800000u ? lost : 0.0f;
    acc = t;
}

// Adds in float32 and rounds stochastically with the first 16 random bits. These bits are added to the first 16
// discarded bits of a sum. If the result consists of ones, lower bits could carry, so the first bits do not decide how
// the sum is rounded. Sums are truncated, so their bits equal the leading bits of the exact sum.
struct FirstBits {
    RandomRounder r;
    u32 first_digits;

    // Returns whether a format has a sign and -0, and discards at least 16 bits of a float32.
    static CFP_MEMBER bool allowed(const Spec& s) { return s.is_plain && RandomRounder::allowed(s); }

    CFP_MEMBER explicit FirstBits(const Spec& s) : r(make_random_rounder(s)), first_digits(0xffff * r.unit) {}

    // Adds 8 terms to acc. If the random bits do not decide, or if a magnitude exceeds the largest finite value of the
    // format (as infinity and NaN do), returns false and leaves acc unchanged.
    CFP_MEMBER bool add(float acc[8], const float g[8], const u32 random[8]) const {
        float sums[8];
        u32 digits = 0, largest = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float sum = __fadd_rz(acc[i], g[i]);
            const u32 magnitude = to_bits(absolute(sum));
            const float lift = magnitude < r.min_normal ? from_bits(r.min_normal) : 0.0f;  // see RandomRounder
            const u32 bits = to_bits(__fadd_rz(absolute(sum), lift)) + (random[i] >> r.shift);
            sums[i] = with_sign(from_bits(bits & r.keep) - lift, sum);
            digits = larger(digits, bits & first_digits);
            largest = larger(largest, magnitude);
        }
        if (digits == first_digits || largest > r.max) return false;
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[i] = sums[i];
        return true;
    }
};

// Rounded sums and products. Exact is float for narrow formats without stochastic rounding, and otherwise double.
template <Mode mode, class Exact> struct Arithmetic;

template <Mode mode> struct Arithmetic<mode, double> {
    bool is_float32, is_signed, sums_are_exact;
    Rounder<double> rounder;

    CFP_MEMBER Arithmetic(const Spec& s, RoundingMode rounding)
        : is_float32(mode == nearest_even && rounding.overflow == infinity && s.bits == 32), is_signed(s.is_signed),
          sums_are_exact(has_exact_sums<double>(s)), rounder(make_rounder<double>(s, rounding.mode, rounding.overflow)) {}

    template <bool is_multiple = false> CFP_MEMBER float rounded(double exact, u32 random) const {
        const double to_format = round<mode, mode != nearest_even, is_multiple>(exact, rounder, random);
        const float value = CFP_CAST(to_format);
        return (mode == nearest_even || mode == toward_zero) && is_signed ? value : settle(value, rounder);
    }
    CFP_MEMBER float sum(float a, float b, bool member, u32 random) const {
        if (is_float32) return a + b;
        const double x = a, y = b;
        if (mode != nearest_even && member) return rounded<true>(sums_are_exact ? x + y : add_to_odd(x, y), random);
        return rounded(add_to_odd(x, y), random);
    }
    CFP_MEMBER float product(float a, float b) const {
        if (is_float32) return a * b;
        return rounded(static_cast<double>(a) * static_cast<double>(b), 0);
    }
    CFP_MEMBER void add(float& acc, float& c, float g, bool kahan, bool member, const u32 random[4]) const {
        add_rounded(acc, c, g, kahan, member, random, [&](auto... x) { return sum(x...); });
    }
};

template <Mode mode> struct Arithmetic<mode, float> {
    bool by_near, is_signed, sums_are_exact;
    NearRounder near;
    Rounder<float> rounder;

    CFP_MEMBER Arithmetic(const Spec& s, RoundingMode rounding)
        : by_near(mode == nearest_even && NearRounder::checkable(s)), is_signed(s.is_signed),
          sums_are_exact(has_exact_sums<float>(s)), near(make_near_rounder(s, rounding.overflow)),
          rounder(make_rounder<float>(s, rounding.mode, rounding.overflow)) {}

    template <bool is_multiple = false> CFP_MEMBER float rounded(float to_odd) const {
        const float value = round<mode, mode != nearest_even, is_multiple>(to_odd, rounder, 0);
        return (mode == nearest_even || mode == toward_zero) && is_signed ? value : settle(value, rounder);
    }
    CFP_MEMBER float sum(float a, float b, bool member, u32) const {
        if (by_near) return round_near_checked(member ? a + b : add_to_odd(a, b), near);
        if (mode != nearest_even && member) return rounded<true>(sums_are_exact ? a + b : add_to_odd_narrow(a, b));
        return rounded(add_to_odd_narrow(a, b));
    }
    CFP_MEMBER float product(float a, float b) const {
        return by_near ? multiply_near_checked(a, b, near) : rounded(multiply_to_odd_narrow(a, b));
    }
    CFP_MEMBER void add(float& acc, float& c, float g, bool kahan, bool member, const u32 random[4]) const {
        add_rounded(acc, c, g, kahan, member, random, [&](auto... x) { return sum(x...); });
    }
};

// Calls body(arithmetic) with the arithmetic of the format.
template <Mode mode, class Body> CFP_FN void with_arithmetic(const Spec& spec, RoundingMode rounding, const Body& body) {
    if (mode != stochastic && is_narrow(spec))
        body(Arithmetic<mode == stochastic ? otherwise : mode, float>(spec, rounding));
    else
        body(Arithmetic<mode, double>(spec, rounding));
}

template <class Any>
CFP_FN void accumulate(const Any& arithmetic, const Addresses& x, int tensors, float* out, i64 n, bool kahan) {
    const u32 no_random[4] = {0, 0, 0, 0};
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        float acc[4] = {0, 0, 0, 0}, c[4] = {0, 0, 0, 0}, g[4];
        for (int r = 0; r < tensors; ++r) {
            const float* const term = x.of<float>(r);
            load4(term, i, n, aligned(term), g);
#pragma unroll  // otherwise, acc and c would be in local memory
            for (int j = 0; j < 4; ++j) arithmetic.add(acc[j], c[j], g[j], kahan, false, no_random);
        }
        for (int j = 0; j < 4; ++j) acc[j] = canonical(acc[j]);
        store4(out, i, n, aligned(out), acc);
    }
}

// As in quantize_randomly, a thread processes a lane. first_bits is nullptr if FirstBits does not support the format.
template <bool kahan, class Any>
CFP_FN void accumulate_randomly(const Any& arithmetic, const FirstBits* first_bits, const Addresses& x, int tensors,
                                float* out, i64 n, u64 seed, u64 index, u32 mask) {
    for_lanes(n, index, [&](u64 here, u32 lane, i64 first) {
        float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0}, c[8] = {0, 0, 0, 0, 0, 0, 0, 0}, g[8];
        for (int r = 0; r < tensors; ++r) {
            u32 random[kahan ? 4 : 1][8];
            load_lane(x.of<float>(r), first, n, g);
            if (!kahan && first_bits) {
                draw_first(random[0], here, lane, static_cast<u32>(4 * r), seed, mask);
                if (first_bits->add(acc, g, random[0])) continue;
            }
#pragma unroll
            for (int j = 0; j < (kahan ? 4 : 1); ++j)
                draw_lane(random[j], here, lane, static_cast<u32>(4 * r + j), seed, mask);
#pragma unroll
            for (int place = 0; place < 8; ++place) {
                const u32 own[4] = {random[0][place], random[kahan ? 1 : 0][place], random[kahan ? 2 : 0][place],
                                    random[kahan ? 3 : 0][place]};
                arithmetic.add(acc[place], c[place], g[place], kahan, false, own);
            }
        }
#pragma unroll
        for (int place = 0; place < 8; ++place) {
            const i64 i = first + 16 * place;
            if (is_index(i, n)) out[i] = canonical(acc[place]);
        }
    });
}

// Two thread blocks per SM. Without this bound, NVRTC uses so many registers for the 8 elements of a thread that only
// one thread block fits.
#define CFP_ACCUMULATE(mode)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                           \
        accumulate_##mode(Addresses x, int tensors, float* out, i64 n, u32 spec, int rounding, int kahan, u64 seed,     \
                          u64 index, u32 mask) {                                                                   \
        with_arithmetic<mode>(unpack_spec(spec), RoundingMode(rounding), [&](const auto& arithmetic) {             \
            if constexpr (mode != stochastic)                                                                      \
                accumulate(arithmetic, x, tensors, out, n, kahan != 0);                                            \
            else if (kahan)                                                                                        \
                accumulate_randomly<true>(arithmetic, nullptr, x, tensors, out, n, seed, index, mask);             \
            else {                                                                                                 \
                const FirstBits first_bits(unpack_spec(spec));                                                     \
                const bool is_allowed = FirstBits::allowed(unpack_spec(spec));                                     \
                accumulate_randomly<false>(arithmetic, is_allowed ? &first_bits : nullptr, x, tensors, out, n,     \
                                           seed, index, mask);                                                     \
            }                                                                                                      \
        });                                                                                                        \
    }
#if !defined CFP_PART || defined CFP_ONLY_ACCUMULATE
CFP_FOR_EACH_MODE(CFP_ACCUMULATE)
#endif

// ---- codes -----------------------------------------------------------------------------------------------------

#include "codes.cuh"
#if !defined CFP_PART || defined CFP_ONLY_ACCUMULATE_BYTES
#include "byte_sums.cuh"
#endif

// ---- matmul ----------------------------------------------------------------------------------------------------

#if !defined CFP_PART || defined CFP_ONLY_DOT
#include "accumulators/dot.cuh"
#endif
#if !defined CFP_PART || defined CFP_ONLY_FUSED_SUM
#include "accumulators/fused_sum.cuh"
#endif
#if !defined CFP_PART || defined CFP_ONLY_MATMUL
#include "matmul.cuh"
#endif

// ---- transforms, formats with scales ------------------------------------------------------------------------------

#if !defined CFP_PART || defined CFP_ONLY_HADAMARD
#include "hadamard.cuh"
#endif
#if !defined CFP_PART || defined CFP_ONLY_SCALED || defined CFP_ONLY_TILES
#include "scaled/tiles.cuh"
#endif
#if !defined CFP_PART || defined CFP_ONLY_SCALED
#include "scaled/scaled_kernels.cuh"
#endif
#if !defined CFP_PART || defined CFP_ONLY_TABULATED
#include "tabulated/tabulated_kernels.cuh"
#endif
#if !defined CFP_PART || defined CFP_ONLY_TILES
#include "tiles/tiles.cuh"
#endif
