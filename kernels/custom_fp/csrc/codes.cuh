// CUDA kernels that encode numbers, pack codes into dense bytes, and add packed numbers. Part of custom_fp.cu, whose
// Arithmetic they use. reference.py defines the results.
#pragma once

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
#if !defined CFP_PART || defined CFP_ONLY_CODES
extern "C" __global__ void encode_1(const float* x, u8* codes, i64 n, u32 spec) { encode_all(x, codes, n, spec); }
extern "C" __global__ void encode_4(const float* x, u32* codes, i64 n, u32 spec) { encode_all(x, codes, n, spec); }
extern "C" __global__ void encode_8(const float* x, u64* codes, i64 n, u32 spec) { encode_all(x, codes, n, spec); }
#endif

template <class Code> CFP_FN void decode_all(const Code* codes, float* out, i64 n, u32 spec) {
    const Coder coder = make_coder(unpack_spec(spec));
    const bool wide = aligned(out);
    float v[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        for (int j = 0; j < 4; ++j) v[j] = i + j < n ? decode(static_cast<u32>(codes[i + j]), coder) : 0.0f;
        store4(out, i, n, wide, v);
    }
}
#if !defined CFP_PART || defined CFP_ONLY_CODES
extern "C" __global__ void decode_1(const u8* codes, float* out, i64 n, u32 spec) { decode_all(codes, out, n, spec); }
extern "C" __global__ void decode_4(const u32* codes, float* out, i64 n, u32 spec) { decode_all(codes, out, n, spec); }
extern "C" __global__ void decode_8(const u64* codes, float* out, i64 n, u32 spec) { decode_all(codes, out, n, spec); }
#endif

// A thread block of 256 threads processes 2048 codes. Their 256 k bytes pass through shared memory, so that accesses to
// global memory are 16 bytes wide for any k.
constexpr int threads = 256, codes_per_thread = 8;

CFP_FN void copy_bytes(u8* to, const u8* from, i64 size) {
    const bool wide = aligned(to) && aligned(from);
    const i64 words = wide ? size / 16 : 0;
    for (i64 i = threadIdx.x; i < words; i += threads) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    for (i64 i = 16 * words + threadIdx.x; i < size; i += threads) to[i] = from[i];
}

// Copies 8 codes of k bits to or from the k bytes of a thread in shared memory, in words that are as wide as k allows.
template <class Word> CFP_FN void join_words(const u32 codes[8], Word* words, int k) {
    constexpr int size = 8 * sizeof(Word);
    u64 pending = 0;
    int bits = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        pending |= static_cast<u64>(codes[j]) << bits;
        for (bits += k; bits >= size; bits -= size, pending >>= size) *words++ = static_cast<Word>(pending);
    }
}

// Common widths have their own branches, where k is a constant, so that the compiler computes all shifts in advance.
CFP_FN void join_codes(const u32 codes[8], u8* bytes, int k) {
    if (k == 8)
        join_words(codes, reinterpret_cast<u32*>(bytes), 8);
    else if (k == 4)
        join_words(codes, reinterpret_cast<u32*>(bytes), 4);
    else if (k % 4 == 0)
        join_words(codes, reinterpret_cast<u32*>(bytes), k);
    else if (k % 2 == 0)
        join_words(codes, reinterpret_cast<unsigned short*>(bytes), k);
    else
        join_words(codes, bytes, k);
}

template <class Word> CFP_FN void split_words(const Word* words, u32 codes[8], int k) {
    constexpr int size = 8 * sizeof(Word);
    u64 pending = 0;
    int bits = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        for (; bits < k; bits += size) pending |= static_cast<u64>(*words++) << bits;
        codes[j] = static_cast<u32>(pending & ((1ull << k) - 1));
        pending >>= k;
        bits -= k;
    }
}

CFP_FN void split_codes(const u8* bytes, u32 codes[8], int k) {
    if (k == 8)
        split_words(reinterpret_cast<const u32*>(bytes), codes, 8);
    else if (k == 4)
        split_words(reinterpret_cast<const u32*>(bytes), codes, 4);
    else if (k % 4 == 0)
        split_words(reinterpret_cast<const u32*>(bytes), codes, k);
    else if (k % 2 == 0)
        split_words(reinterpret_cast<const unsigned short*>(bytes), codes, k);
    else
        split_words(bytes, codes, k);
}

// Draws the random bits of a thread's 8 elements. `first` is the index of the thread block's first element, of 2048.
// Adjacent elements are in different lanes (philox.h). Each word is drawn once, by one of the threads, and passes
// through `words` in shared memory.
CFP_FN void draw_block(u32 random[8], u32* words, u64 first, u32 stream, u64 seed, u32 mask) {
    const i32 past = static_cast<i32>(first % group);
    const i32 lanes = 16 * ((past + threads * codes_per_thread + group - 1) / group);
    for (i32 t = threadIdx.x; t < lanes; t += threads) {
        u32 drawn[8];
        draw_lane(drawn, first / group + t / 16, t % 16, stream, seed, mask);
#pragma unroll
        for (i32 place = 0; place < 8; ++place) {
            const i32 at = t / 16 * group + 16 * place + t % 16 - past;
            if (at >= 0 && at < threads * codes_per_thread) words[at] = drawn[place];
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; ++j) random[j] = words[8 * threadIdx.x + j];
    __syncthreads();
}

// Returns the number of bytes of the existing codes from `first` to first + 2047, in whole groups of 8.
CFP_FN i64 bytes_of_block(i64 first, i64 n, int k) {
    const i64 left = n - first < threads * codes_per_thread ? n - first : threads * codes_per_thread;
    return (left + 7) / 8 * k;
}

// Returns settle(value, r) if the template may be used for formats that need it, and otherwise `value`.
template <Mode mode> CFP_FN float settled(float value, const Rounder<float>& r) {
    return mode == stochastic || mode == otherwise ? settle(value, r) : value;
}

// index: the index of the first element, for its random bits.
template <Mode mode>
CFP_FN void pack(const float* x, u8* bytes, i64 n, u32 packed_spec, RoundingMode rounding, int shift, u64 seed, u64 index, u32 mask) {
    __shared__ __align__(16) u8 staged[threads * 32];
    __shared__ __align__(16) u32 words[mode == stochastic ? threads * codes_per_thread : 1];
    const Spec spec = unpack_spec(packed_spec);
    const int k = spec.bits;
    const Rounder<float> rounder = make_rounder<float>(spec, rounding.mode, rounding.overflow);
    const Coder coder = make_coder(spec);
    const bool directly = mode == nearest_even && shift == 0 && rounding.overflow == infinity;
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        const i64 i = first + threadIdx.x * 8;
        float v[8];
        u32 codes[8], random[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (mode == stochastic) draw_block(random, words, index + static_cast<u64>(first), 0, seed, mask);
        load4(x, i, n, aligned(x), v);
        load4(x, i + 4, n, aligned(x), v + 4);
        const auto make_codes = [&](const auto& rounded) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
                codes[j] = i + j < n ? encode(settled<mode>(rounded(v[j], random[j]), rounder), coder) : 0;
        };
        if (directly) {
#pragma unroll
            for (int j = 0; j < 8; ++j) codes[j] = i + j < n ? round_and_encode(v[j], rounder, coder) : 0;
        } else if (shift == 0) {
            make_codes([&](float x, u32 random) { return round<mode>(x, rounder, random); });
        } else if (mode != stochastic && is_narrow(spec)) {
            const PowerOfTwo power(shift);
            make_codes([&](float x, u32) { return round<mode>(power.times_to_odd(x), rounder, 0); });
        } else {
            const Rounder<double> wide = make_rounder<double>(spec, rounding.mode, rounding.overflow);
            const double power = power_of_two<double>(shift);
            make_codes([&](float x, u32 random) { return CFP_CAST(round<mode>(x * power, wide, random)); });
        }
        join_codes(codes, staged + threadIdx.x * k, k);
        __syncthreads();
        copy_bytes(bytes + first / 8 * k, staged, bytes_of_block(first, n, k));
        __syncthreads();
    }
}

#define CFP_PACK(mode)                                                                                            \
    extern "C" __global__ void pack_##mode(const float* x, u8* bytes, i64 n, u32 spec, int rounding, int shift,   \
                                           u64 seed, u64 index, u32 mask) {                                       \
        pack<mode>(x, bytes, n, spec, RoundingMode(rounding), shift, seed, index, mask);                           \
    }
#if !defined CFP_PART || defined CFP_ONLY_PACK
CFP_FOR_EACH_MODE(CFP_PACK)
#endif

// A table in shared memory with the values of all codes of at most 8 bits. Wider codes are decoded one by one. All
// threads of the block must call the constructor.
template <class Value> struct Values {
    float* values;
    int k;
    Value value;

    CFP_MEMBER Values(float (&values)[256], int k, const Value& value) : values(values), k(k), value(value) {
        if (k <= 8)
            for (u32 code = threadIdx.x; code < 1u << k; code += blockDim.x) values[code] = value(code);
        __syncthreads();
    }
    CFP_MEMBER float operator()(u32 code) const { return k <= 8 ? values[code] : value(code); }
};

// Writes value(code) * 2^shift for n codes of k <= `most` bits.
template <int most, class Value>
CFP_FN void unpack_codes(const u8* bytes, float* out, i64 n, int k, int shift, const Value& value) {
    __shared__ __align__(16) u8 staged[threads * most];
    __shared__ float values[256];
    const PowerOfTwo power(shift);
    const auto shifted = [&](u32 code) { return shift != 0 ? power.times(value(code)) : value(code); };
    const Values value_of(values, k, shifted);
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        copy_bytes(staged, bytes + first / 8 * k, bytes_of_block(first, n, k));
        __syncthreads();
        const i64 i = first + threadIdx.x * 8;
        u32 codes[8];
        float v[8];
        if (i < n) {
            split_codes(staged + threadIdx.x * k, codes, k);
            for (int j = 0; j < 8; ++j) v[j] = value_of(codes[j]);
            store4(out, i, n, aligned(out), v);
            store4(out, i + 4, n, aligned(out), v + 4);
        }
        __syncthreads();
    }
}

#if !defined CFP_PART || defined CFP_ONLY_CODES
struct Decoded {
    Coder coder;
    CFP_MEMBER float operator()(u32 code) const { return decode(code, coder); }
};
extern "C" __global__ void unpack(const u8* bytes, float* out, i64 n, u32 packed_spec, int shift) {
    const Spec spec = unpack_spec(packed_spec);
    unpack_codes<32>(bytes, out, n, spec.bits, shift, Decoded{make_coder(spec)});
}
#endif

struct Coded {
    int k;
    Coder coder;
    CFP_MEMBER float value(u32 code) const { return decode(code, coder); }
    CFP_MEMBER u32 code(float value) const { return encode(canonical(value), coder); }
};

// The shared memory of accumulate_packed, for codes of at most `most` bits.
template <bool draws, int most> struct Staged {
    __align__(16) u8 bytes[threads * most];
    __align__(16) u32 words[draws ? threads * codes_per_thread : 1];
    float values[256];
};

// bytes: the payloads of `tensors` tensors, of n codes each.
template <bool draws, int most, class Any, class Codes>
CFP_FN void accumulate_packed(Staged<draws, most>& staged, const Any& arithmetic, const Codes& codec, const Addresses& bytes,
                              int tensors, u8* out, i64 n, bool kahan, u64 seed, u64 index, u32 mask) {
    const int k = codec.k;
    const auto value = [&](u32 code) { return codec.value(code); };
    const Values value_of(staged.values, k, value);
    u32 random[4][8] = {};
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        const i64 i = first + threadIdx.x * 8, size = bytes_of_block(first, n, k);
        float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0}, c[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        u32 codes[8];
        for (int r = 0; r < tensors; ++r) {
            copy_bytes(staged.bytes, bytes.of<u8>(r) + first / 8 * k, size);
            __syncthreads();
            if (draws) {
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (j == 0 || kahan)
                        draw_block(random[j], staged.words, index + static_cast<u64>(first), static_cast<u32>(4 * r + j),
                                   seed, mask);
            }
            if (i < n) {
                split_codes(staged.bytes + threadIdx.x * k, codes, k);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const u32 own[4] = {random[0][j], random[1][j], random[2][j], random[3][j]};
                    arithmetic.add(acc[j], c[j], value_of(codes[j]), kahan, true, own);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) codes[j] = i + j < n ? codec.code(acc[j]) : 0;
        join_codes(codes, staged.bytes + threadIdx.x * k, k);
        __syncthreads();
        copy_bytes(out + first / 8 * k, staged.bytes, size);
        __syncthreads();
    }
}

#define CFP_ACCUMULATE_PACKED(mode)                                                                                      \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                                             \
        accumulate_packed_##mode(Addresses bytes, int tensors, u8* out, i64 n, u32 packed_spec, int rounding, int kahan, \
                                 u64 seed, u64 index, u32 mask) {                                                        \
        __shared__ Staged<mode == stochastic, 32> staged;                                                                \
        const Spec spec = unpack_spec(packed_spec);                                                                      \
        with_arithmetic<mode>(spec, RoundingMode(rounding), [&](const auto& arithmetic) {                                \
            accumulate_packed(staged, arithmetic, Coded{spec.bits, make_coder(spec)}, bytes, tensors, out, n, kahan != 0, \
                              seed, index, mask);                                                                        \
        });                                                                                                              \
    }
#if !defined CFP_PART || defined CFP_ONLY_ACCUMULATE_PACKED
CFP_FOR_EACH_MODE(CFP_ACCUMULATE_PACKED)
#endif
