// The random bits of 128 elements at a time. If the processor can multiply 32-bit words to 64-bit results in vectors,
// intrinsics are used, because compilers need three times as many instructions for the equivalent loop below.
#pragma once

#include <cstdint>
#include <cstring>

#include "../philox.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace custom_fp {
namespace {

#if defined(__AVX512F__) || defined(__AVX2__)

#if defined(__AVX512F__)
typedef __m512i Wide;
inline Wide splat(u64 x) { return _mm512_set1_epi64(static_cast<i64>(x)); }
inline Wide multiply_low(Wide a, Wide b) { return _mm512_mul_epu32(a, b); }
inline Wide high_word(Wide a) { return _mm512_srli_epi64(a, 32); }
inline Wide low_to_high(Wide a) { return _mm512_slli_epi64(a, 32); }
inline Wide exclusive(Wide a, Wide b) { return _mm512_xor_si512(a, b); }
inline Wide load(const u64* p) { return _mm512_loadu_si512(p); }
inline void store(u32* p, Wide a) { _mm512_storeu_si512(p, a); }
inline Wide low_of_first_high_of_second(Wide a, Wide b) { return _mm512_mask_mov_epi32(a, 0xaaaa, b); }
inline Wide splat_word(u32 x) { return _mm512_set1_epi32(static_cast<i32>(x)); }
inline Wide both(Wide a, Wide b) { return _mm512_and_si512(a, b); }
inline Wide lower_half(Wide a) { return _mm512_slli_epi32(a, 16); }
#else
typedef __m256i Wide;
inline Wide splat(u64 x) { return _mm256_set1_epi64x(static_cast<i64>(x)); }
inline Wide multiply_low(Wide a, Wide b) { return _mm256_mul_epu32(a, b); }
inline Wide high_word(Wide a) { return _mm256_srli_epi64(a, 32); }
inline Wide low_to_high(Wide a) { return _mm256_slli_epi64(a, 32); }
inline Wide exclusive(Wide a, Wide b) { return _mm256_xor_si256(a, b); }
inline Wide load(const u64* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store(u32* p, Wide a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a); }
inline Wide low_of_first_high_of_second(Wide a, Wide b) { return _mm256_blend_epi32(a, b, 0xaa); }
inline Wide splat_word(u32 x) { return _mm256_set1_epi32(static_cast<i32>(x)); }
inline Wide both(Wide a, Wide b) { return _mm256_and_si256(a, b); }
inline Wide lower_half(Wide a) { return _mm256_slli_epi32(a, 16); }
#endif

// In a 64-bit lane, the low half is a word, and the high half is never read.
struct WideWords {
    Wide w[4];
};

inline WideWords philox_lanes(Wide c0, Wide c1, Wide c2, Wide c3, u64 seed) {
    const Wide multiplier_a = splat(0xD2511F53u), multiplier_b = splat(0xCD9E8D57u);
    u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
    for (int round = 0; round < 7; ++round) {
        const Wide a = multiply_low(c0, multiplier_a), b = multiply_low(c2, multiplier_b);
        c0 = exclusive(exclusive(high_word(b), c1), splat(k0));
        c2 = exclusive(exclusive(high_word(a), c3), splat(k1));
        c1 = b;
        c3 = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

inline void fill_with(u32* out, u64 first, u32 stream, u32 half, u64 seed, u32 kept) {
    constexpr int counters = sizeof(Wide) / 8;  // in one register
    static const u64 even[8] = {0, 2, 4, 6, 8, 10, 12, 14}, odd[8] = {1, 3, 5, 7, 9, 11, 13, 15};
    const u64 counter = first / group * 16;  // of lane 0; 16 lanes never carry into the high word
    const Wide low = splat(counter), high = splat(counter >> 32), c2 = splat(stream), c3 = splat(half);
    const Wide keep = splat_word(kept);
    for (int lane = 0; lane < 16; lane += 2 * counters) {
        const WideWords a = philox_lanes(exclusive(low, load(even + lane / 2)), high, c2, c3, seed);
        const WideWords b = philox_lanes(exclusive(low, load(odd + lane / 2)), high, c2, c3, seed);
        for (int word = 0; word < 4; ++word) {
            const Wide words = low_of_first_high_of_second(a.w[word], low_to_high(b.w[word]));
            store(out + 32 * word + lane, both(words, keep));
            store(out + 32 * word + 16 + lane, both(lower_half(words), keep));
        }
    }
}

#else

inline void fill_with(u32* out, u64 first, u32 stream, u32 half, u64 seed, u32 kept) {
    for (u32 lane = 0; lane < 16; ++lane) {
        const Words words = random_words(first / group, lane, stream, half, seed);
        for (int word = 0; word < 4; ++word) {
            out[32 * word + lane] = words.w[word] & kept;
            out[32 * word + 16 + lane] = words.w[word] << 16 & kept;
        }
    }
}

#endif

// Writes half `half` of the random bits of element first + j to the upper 16 bits of out[j]. Bits that `mask`
// (Rule::mask) omits are zero. The first half has the form that `rounding_bits` returns. `first` must be a multiple of
// 128.
inline void fill_half(u32* out, u64 first, u32 stream, u32 half, u64 seed, u32 mask) {
    const u32 kept = (half ? counted(mask) << 16 : counted(mask)) & 0xffff0000u;
    if (kept)
        fill_with(out, first, stream, half, seed, kept);
    else
        std::memset(out, 0, group * sizeof(u32));
    if ((mask & 1) && !half)
        for (int j = 0; j < group; ++j) out[j] = rounding_bits(out[j], mask) & 0xffff0000u;
}

// Combines both halves of the bits of 128 elements, and writes them over the first halves.
inline void join_halves(u32* upper, const u32* lower, u32 mask) {
    for (int j = 0; j < group; ++j) upper[j] |= lower[j] >> 16;
    if (mask & 1)
        for (int j = 0; j < group; ++j) upper[j] = rounding_bits(upper[j], mask);
}

}  // namespace
}  // namespace custom_fp
