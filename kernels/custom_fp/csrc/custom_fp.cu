// The CUDA kernels, compiled by NVRTC (cuda.py). Each equals the CPU kernel of its name bit for bit: the arithmetic is
// that of custom_fp.h, compiled with --fmad=false and without flush-to-zero. Defined by reference.py.
//
// A thread works on groups of 4 neighbouring elements in 16-byte accesses, where addresses allow, else one by one.
#include "accumulators/dot.h"
#include "custom_fp.h"
#include "hadamard.h"
#include "philox.h"
#include "scaled/affine.h"
#include "scaled/codebook.h"
#include "shortcuts.h"
#include "tabulated/tabulated.h"
#include "tiles/tiles.h"

using namespace custom_fp;

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

// The argument `how` of a kernel: Overflow, and Mode above it.
struct How {
    int mode, overflow;
    CFP_MEMBER explicit How(int how) : mode(how >> 8), overflow(how & 0xff) {}
};

CFP_FN i64 thread_index() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }
CFP_FN i64 thread_count() { return static_cast<i64>(gridDim.x) * blockDim.x; }

// ---- quantize --------------------------------------------------------------------------------------------------

template <Mode mode, class F>
CFP_FN void quantize(const F* x, float* out, i64 n, u32 spec, How how, u64, u64, u32) {
    const Rounder<F> rounder = make_rounder<F>(unpack_spec(spec), how.mode, how.overflow);
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

// Half 1 of a lane's random words: nothing where none of its bits count.
CFP_FN Words second_words(u64 group_index, u32 lane, u32 stream, u64 seed, u32 mask) {
    if (mask & 0xffffu) return random_words(group_index, lane, stream, 1, seed);
    return Words{{0, 0, 0, 0}};
}

// The random bits of the element of an index, both halves of them, as far as `mask` (Rule::mask) counts them.
CFP_FN u32 random_of(u64 index, u32 stream, u64 seed, u32 mask) {
    const u32 lane = static_cast<u32>(index % 16), place = static_cast<u32>(index / 16 % 8);
    const u32 upper = random_words(index / group, lane, stream, 0, seed).w[place / 2];
    const u32 lower = second_words(index / group, lane, stream, seed, mask).w[place / 2];
    return (half_of(upper, place) << 16 | half_of(lower, place)) & mask;
}

// A thread takes one lane of a group of 128 elements, and so uses all of two counters' words (philox.h). The lanes of a
// warp are neighbours in memory. `index`: of the first element.
template <class F>
CFP_FN void quantize_randomly(const F* x, float* out, i64 n, u32 spec, How how, u64 seed, u64 index, u32 mask) {
    const Rounder<F> rounder = make_rounder<F>(unpack_spec(spec), stochastic, how.overflow);
    const u64 first_group = index / group;
    const i64 groups = static_cast<i64>((index + n - 1) / group - first_group) + 1;
    for (i64 t = thread_index(); t < groups * 16; t += thread_count()) {
        const u64 here = first_group + static_cast<u64>(t / 16);
        const u32 lane = static_cast<u32>(t % 16);
        const Words upper = random_words(here, lane, 0, 0, seed), lower = second_words(here, lane, 0, seed, mask);
        for (u32 place = 0; place < 8; ++place) {
            const i64 i = static_cast<i64>(here * group + 16 * place + lane - index);
            if (i < 0 || i >= n) continue;
            const u32 random = half_of(upper.w[place / 2], place) << 16 | half_of(lower.w[place / 2], place);
            out[i] = settle(to_float32(round<stochastic>(x[i], rounder, random & mask)), rounder);
        }
    }
}

#define CFP_QUANTIZE(name, function, F)                                                                            \
    extern "C" __global__ void name(const F* x, float* out, i64 n, u32 spec, int how, u64 seed, u64 index,         \
                                    u32 mask) {                                                                    \
        function(x, out, n, spec, How(how), seed, index, mask);                                                    \
    }
CFP_QUANTIZE(quantize_nearest_even_f32, quantize<nearest_even>, float)
CFP_QUANTIZE(quantize_nearest_even_f64, quantize<nearest_even>, double)
CFP_QUANTIZE(quantize_toward_zero_f32, quantize<toward_zero>, float)
CFP_QUANTIZE(quantize_toward_zero_f64, quantize<toward_zero>, double)
CFP_QUANTIZE(quantize_stochastic_f32, quantize_randomly, float)
CFP_QUANTIZE(quantize_stochastic_f64, quantize_randomly, double)
CFP_QUANTIZE(quantize_otherwise_f32, quantize<otherwise>, float)
CFP_QUANTIZE(quantize_otherwise_f64, quantize<otherwise>, double)

extern "C" __global__ void scale_f32(const float* x, float* out, i64 n, int shift) {
    const double power = power_of_two<double>(shift);
    const bool wide = aligned(x) && aligned(out);
    float v[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, wide, v);
        for (int j = 0; j < 4; ++j) v[j] = scale(v[j], power);
        store4(out, i, n, wide, v);
    }
}

// The largest finite magnitude, as the bits of a float64; *largest starts as 0.
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
extern "C" __global__ void max_magnitude_f32(const float* x, i64 n, u64* largest) { max_magnitude(x, n, largest); }
extern "C" __global__ void max_magnitude_f64(const double* x, i64 n, u64* largest) { max_magnitude(x, n, largest); }

// ---- sums ------------------------------------------------------------------------------------------------------

// Rounded sums and products: NearRounder where it may, else through float64.
template <Mode mode> struct Arithmetic {
    bool by_near, is_float32, is_signed;
    NearRounder near;
    Rounder<double> wide;

    CFP_MEMBER Arithmetic(const Spec& s, How how)
        : by_near(mode == nearest_even && NearRounder::checkable(s)),
          is_float32(mode == nearest_even && how.overflow == infinity && s.bits == 32), is_signed(s.is_signed),
          near(make_near_rounder(s, how.overflow)), wide(make_rounder<double>(s, how.mode, how.overflow)) {}

    CFP_MEMBER float rounded(double exact, u32 random) const {
        const float value = CFP_CAST(round<mode>(exact, wide, random));
        return (mode == nearest_even || mode == toward_zero) && is_signed ? value : settle(value, wide);
    }

    // Q(a + b); `member`: both are values of the format
    CFP_MEMBER float sum(float a, float b, bool member, u32 random) const {
        if (is_float32) return a + b;
        if (by_near) return round_near_checked(member ? a + b : add_to_odd(a, b), near);
        return rounded(add_to_odd(static_cast<double>(a), static_cast<double>(b)), random);
    }

    CFP_MEMBER float product(float a, float b) const {
        if (is_float32) return a * b;
        if (by_near) return multiply_near_checked(a, b, near);
        return rounded(static_cast<double>(a) * static_cast<double>(b), 0);
    }

    // acc = Q(acc + g), or Kahan's form of it; member: g is a value of the format
    CFP_MEMBER void add(float& acc, float& c, float g, bool kahan, bool member, const u32 random[4]) const {
        if (!kahan) {
            acc = sum(acc, g, member, random[0]);
            return;
        }
        const float y = sum(g, -c, member, random[0]), t = sum(acc, y, true, random[1]);
        const float lost = sum(sum(t, -acc, true, random[2]), -y, true, random[3]);
        c = (to_bits(t) & 0x7fffffffu) < 0x7f800000u ? lost : 0.0f;
        acc = t;
    }
};

// The random bits of the element of an index in step r: a word a rounding.
template <Mode mode> CFP_FN void draw(u32 random[4], u64 index, int r, bool kahan, u64 seed,
                                      u32 mask) {
    const int words = mode == stochastic ? (kahan ? 4 : 1) : 0;
    for (int j = 0; j < words; ++j) random[j] = random_of(index, static_cast<u32>(4 * r + j), seed, mask);
}

// `x`: addresses of `tensors` arrays of n elements each
template <Mode mode>
CFP_FN void accumulate(const float* const* x, int tensors, float* out, i64 n, u32 spec, How how, bool kahan, u64 seed,
                       u64 index, u32 mask) {
    const Arithmetic<mode> arithmetic(unpack_spec(spec), how);
    u32 random[4] = {0, 0, 0, 0};
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        float acc[4] = {0, 0, 0, 0}, c[4] = {0, 0, 0, 0}, g[4];
        for (int r = 0; r < tensors; ++r) {
            load4(x[r], i, n, aligned(x[r]), g);
            for (int j = 0; j < 4; ++j) {
                draw<mode>(random, index + static_cast<u64>(i + j), r, kahan, seed, mask);
                arithmetic.add(acc[j], c[j], g[j], kahan, false, random);
            }
        }
        for (int j = 0; j < 4; ++j) acc[j] = canonical(acc[j]);
        store4(out, i, n, aligned(out), acc);
    }
}

#define CFP_ACCUMULATE(mode)                                                                                       \
    extern "C" __global__ void accumulate_##mode(const float* const* x, int tensors, float* out, i64 n, u32 spec,  \
                                                 int how, int kahan, u64 seed, u64 index, u32 mask) {              \
        accumulate<mode>(x, tensors, out, n, spec, How(how), kahan != 0, seed, index, mask);                       \
    }
CFP_ACCUMULATE(nearest_even)
CFP_ACCUMULATE(toward_zero)
CFP_ACCUMULATE(stochastic)
CFP_ACCUMULATE(otherwise)

// ---- codes -----------------------------------------------------------------------------------------------------

template <class Code> CFP_FN void encode_all(const float* x, Code* codes, i64 n, u32 packed_spec) {
    const Spec spec = unpack_spec(packed_spec);
    const Rounder<float> rounder = make_rounder<float>(spec, nearest_even, infinity);
    const Coder coder = make_coder(spec);
    const bool wide = aligned(x);
    float v[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, wide, v);
        for (int j = 0; j < 4 && i + j < n; ++j)
            codes[i + j] = static_cast<Code>(
                spec.is_plain ? round_and_encode(v[j], rounder, coder)
                              : encode(settle(round<nearest_even>(v[j], rounder, 0), rounder), coder));
    }
}
extern "C" __global__ void encode_1(const float* x, u8* codes, i64 n, u32 spec) { encode_all(x, codes, n, spec); }
extern "C" __global__ void encode_4(const float* x, u32* codes, i64 n, u32 spec) { encode_all(x, codes, n, spec); }
extern "C" __global__ void encode_8(const float* x, u64* codes, i64 n, u32 spec) { encode_all(x, codes, n, spec); }

template <class Code> CFP_FN void decode_all(const Code* codes, float* out, i64 n, u32 spec) {
    const Coder coder = make_coder(unpack_spec(spec));
    const bool wide = aligned(out);
    float v[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        for (int j = 0; j < 4; ++j) v[j] = i + j < n ? decode(static_cast<u32>(codes[i + j]), coder) : 0.0f;
        store4(out, i, n, wide, v);
    }
}
extern "C" __global__ void decode_1(const u8* codes, float* out, i64 n, u32 spec) { decode_all(codes, out, n, spec); }
extern "C" __global__ void decode_4(const u32* codes, float* out, i64 n, u32 spec) { decode_all(codes, out, n, spec); }
extern "C" __global__ void decode_8(const u64* codes, float* out, i64 n, u32 spec) { decode_all(codes, out, n, spec); }

// A thread block of 256 holds 2048 codes; its 256 k bytes pass through shared memory, so that memory sees 16 bytes at
// a time whatever k is.
constexpr int threads = 256, codes_per_thread = 8;

CFP_FN void copy_bytes(u8* to, const u8* from, i64 size) {
    const bool wide = aligned(to) && aligned(from);
    const i64 words = wide ? size / 16 : 0;
    for (i64 i = threadIdx.x; i < words; i += threads) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    for (i64 i = 16 * words + threadIdx.x; i < size; i += threads) to[i] = from[i];
}

CFP_FN void join_codes(const u32 codes[8], u8* bytes, int k) {
    u64 pending = 0;
    int bits = 0;
    for (int j = 0; j < 8; ++j) {
        pending |= static_cast<u64>(codes[j]) << bits;
        for (bits += k; bits >= 8; bits -= 8, pending >>= 8) *bytes++ = static_cast<u8>(pending);
    }
}

CFP_FN void split_codes(const u8* bytes, u32 codes[8], int k) {
    u64 pending = 0;
    int bits = 0;
    for (int j = 0; j < 8; ++j) {
        for (; bits < k; bits += 8) pending |= static_cast<u64>(*bytes++) << bits;
        codes[j] = static_cast<u32>(pending & ((1ull << k) - 1));
        pending >>= k;
        bits -= k;
    }
}

// bytes of the codes first..first + 2047 that exist, in whole groups of 8
CFP_FN i64 bytes_of_block(i64 first, i64 n, int k) {
    const i64 left = n - first < threads * codes_per_thread ? n - first : threads * codes_per_thread;
    return (left + 7) / 8 * k;
}

// settle, where a template's formats may need it.
template <Mode mode> CFP_FN float settled(float value, const Rounder<float>& r) {
    return mode == stochastic || mode == otherwise ? settle(value, r) : value;
}

// `index`: of the first element, for its random bits
template <Mode mode>
CFP_FN void pack(const float* x, u8* bytes, i64 n, u32 packed_spec, int shift, How how, u64 seed, u64 index, u32 mask) {
    __shared__ __align__(16) u8 staged[threads * 32];
    const Spec spec = unpack_spec(packed_spec);
    const int k = spec.bits;
    const Rounder<double> rounder = make_rounder<double>(spec, how.mode, how.overflow);
    const Rounder<float> narrow = make_rounder<float>(spec, how.mode, how.overflow);
    const Coder coder = make_coder(spec);
    const double power = power_of_two<double>(shift);
    const bool directly = mode == nearest_even && shift == 0 && how.overflow == infinity;
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        const i64 i = first + threadIdx.x * 8;
        float v[8];
        u32 codes[8], random[4] = {0, 0, 0, 0};
        load4(x, i, n, aligned(x), v);
        load4(x, i + 4, n, aligned(x), v + 4);
        for (int j = 0; j < 8; ++j) {
            draw<mode>(random, index + static_cast<u64>(i + j), 0, false, seed, mask);
            codes[j] = directly     ? round_and_encode(v[j], narrow, coder)
                       : shift == 0 ? encode(settled<mode>(round<mode>(v[j], narrow, random[0]), narrow), coder)
                                    : encode(settled<mode>(CFP_CAST(round<mode>(v[j] * power, rounder, random[0])), narrow), coder);
            if (i + j >= n) codes[j] = 0;
        }
        join_codes(codes, staged + threadIdx.x * k, k);
        __syncthreads();
        copy_bytes(bytes + first / 8 * k, staged, bytes_of_block(first, n, k));
        __syncthreads();
    }
}

#define CFP_PACK(mode)                                                                                            \
    extern "C" __global__ void pack_##mode(const float* x, u8* bytes, i64 n, u32 spec, int shift, int how,        \
                                           u64 seed, u64 index, u32 mask) {                                       \
        pack<mode>(x, bytes, n, spec, shift, How(how), seed, index, mask);                                        \
    }
CFP_PACK(nearest_even)
CFP_PACK(toward_zero)
CFP_PACK(stochastic)
CFP_PACK(otherwise)

extern "C" __global__ void unpack(const u8* bytes, float* out, i64 n, u32 packed_spec, int shift) {
    __shared__ __align__(16) u8 staged[threads * 32];
    const Spec spec = unpack_spec(packed_spec);
    const int k = spec.bits;
    const Coder coder = make_coder(spec);
    const double power = power_of_two<double>(shift);
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        copy_bytes(staged, bytes + first / 8 * k, bytes_of_block(first, n, k));
        __syncthreads();
        const i64 i = first + threadIdx.x * 8;
        u32 codes[8];
        float v[8];
        if (i < n) {
            split_codes(staged + threadIdx.x * k, codes, k);
            for (int j = 0; j < 8; ++j) {
                v[j] = decode(codes[j], coder);
                if (shift != 0) v[j] = scale(v[j], power);
            }
            store4(out, i, n, aligned(out), v);
            store4(out, i + 4, n, aligned(out), v + 4);
        }
        __syncthreads();
    }
}

// `bytes`: addresses of `tensors` payloads of n codes each
template <Mode mode>
CFP_FN void accumulate_packed(const u8* const* bytes, int tensors, u8* out, i64 n, u32 packed_spec, How how, bool kahan,
                              u64 seed, u64 index, u32 mask) {
    __shared__ __align__(16) u8 staged[threads * 32];
    const Spec spec = unpack_spec(packed_spec);
    const int k = spec.bits;
    const Coder coder = make_coder(spec);
    const Arithmetic<mode> arithmetic(spec, how);
    u32 random[4] = {0, 0, 0, 0};
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        const i64 i = first + threadIdx.x * 8, size = bytes_of_block(first, n, k);
        float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0}, c[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        u32 codes[8];
        for (int r = 0; r < tensors; ++r) {
            copy_bytes(staged, bytes[r] + first / 8 * k, size);
            __syncthreads();
            if (i < n) {
                split_codes(staged + threadIdx.x * k, codes, k);
                for (int j = 0; j < 8; ++j) {
                    draw<mode>(random, index + static_cast<u64>(i + j), r, kahan, seed, mask);
                    arithmetic.add(acc[j], c[j], decode(codes[j], coder), kahan, true, random);
                }
            }
            __syncthreads();
        }
        for (int j = 0; j < 8; ++j) codes[j] = i + j < n ? encode(canonical(acc[j]), coder) : 0;
        join_codes(codes, staged + threadIdx.x * k, k);
        __syncthreads();
        copy_bytes(out + first / 8 * k, staged, size);
        __syncthreads();
    }
}

#define CFP_ACCUMULATE_PACKED(mode)                                                                              \
    extern "C" __global__ void accumulate_packed_##mode(const u8* const* bytes, int tensors, u8* out, i64 n,     \
                                                        u32 spec, int how, int kahan, u64 seed, u64 index,       \
                                                        u32 mask) {                                              \
        accumulate_packed<mode>(bytes, tensors, out, n, spec, How(how), kahan != 0, seed, index, mask);          \
    }
CFP_ACCUMULATE_PACKED(nearest_even)
CFP_ACCUMULATE_PACKED(toward_zero)
CFP_ACCUMULATE_PACKED(stochastic)
CFP_ACCUMULATE_PACKED(otherwise)

// ---- matmul ----------------------------------------------------------------------------------------------------

#include "accumulators/dot.cuh"
#include "matmul.cuh"

// ---- transforms, formats with scales ------------------------------------------------------------------------------

#include "hadamard.cuh"
#include "scaled/scaled.cuh"
#include "tabulated/tabulated.cuh"
#include "tiles/tiles.cuh"
