// CUDA kernels that add packed 8-bit codes faster than accumulate_packed does. Part of custom_fp.cu.
//
// A thread first assumes that none of its codes is infinity or NaN and that no sum overflows. If this turns out to be
// wrong, it adds its codes again with Arithmetic, which takes 5 to 10 times as many instructions. Therefore, the fast sums do
// not depend on the overflow mode. The tests compare them with reference.py for all pairs of codes. cuda.py chooses these
// kernels for formats with a sign, -0 and at most 5 exponent bits (see _adds_bytes for the other conditions).
#pragma once

// Adds two pairs of float16 numbers, each packed in a word. Tests that run on a CPU define their own CFP_ADD_HALVES.
#if !defined(CFP_ADD_HALVES)
CFP_FN u32 add_halves(u32 a, u32 b) {
    u32 sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}
#define CFP_ADD_HALVES(a, b) add_halves(a, b)
#endif

// Detects codes that are not finite, in words of 4 codes.
struct CodeCheck {
    u32 to_flags, flags = 0;  // Adding to_flags to magnitudes sets bit 7 of each byte whose code is not finite.

    CFP_MEMBER explicit CodeCheck(u32 first_special) : to_flags((0x80 - first_special) * 0x01010101u) {}
    CFP_MEMBER void see(u32 codes) { flags |= (codes & 0x7f7f7f7fu) + to_flags; }
    CFP_MEMBER bool failed() const { return (flags & 0x80808080u) != 0; }
};

// Adds 8 codes of each tensor, without random bits.
template <Mode mode> struct ByteSums;

// Sums rounded to nearest even, for formats with 1 to 5 exponent bits. If a code is shifted to the position of the
// exponent and the mantissa of a float16, the float16 is the code's value times a power of two. The power is the same
// for all codes, including subnormals. A sum is first rounded to the 11 significant bits of float16, and then to the p
// significant bits of the format. This equals rounding once if 11 >= 2 p + 1 (Roux 2014). For p > 5, float16 represents
// all sums exactly.
template <> struct ByteSums<nearest_even> {
    static constexpr u32 halves = 0x00010001u;  // repeats a number in both halves of a word
    int drop;                                   // mantissa bits of float16 that the format does not have
    u32 first_special, magnitudes, below_tie, keep;
    // Adding to_flags to a sum sets its bit of `flags` if the sum overflows. With 5 exponent bits, no flag is needed,
    // because a sum that overflows becomes infinity in float16 and stays infinite.
    u32 to_flags, flags;

    CFP_MEMBER ByteSums(const Spec& s, RoundingMode) {
        const bool has_e5 = s.exponent_bits == 5;
        first_special = has_e5 ? 0x7c : s.max_code + 1;  // float16 has no finite number with the exponent 31
        drop = 10 - s.mantissa_bits;
        magnitudes = (0x7fu << drop) * halves;
        below_tie = ((1u << (drop - 1)) - 1) * halves;
        keep = (0xffffu >> drop << drop) * halves;
        to_flags = has_e5 ? 0 : (0x4000 - (first_special << drop)) * halves;
        flags = has_e5 ? 0 : 0x4000 * halves;
    }

    // Adds the 8 codes of each tensor from i on. Returns false if a code or a sum is not finite.
    CFP_MEMBER bool sum(u32 total[2], const Addresses& bytes, int tensors, i64 i) const {
        u32 acc[4] = {0, 0, 0, 0}, overflow = 0;
        CodeCheck check(first_special);
#pragma unroll 8
        for (int r = 0; r < tensors; ++r) {
            const uint2 both = *reinterpret_cast<const uint2*>(bytes.of<u8>(r) + i);
            const u32 words[2] = {both.x, both.y};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                // acc[0] and acc[1] hold codes 0 and 2 of the two words, and acc[2] and acc[3] hold codes 1 and 3.
                const u32 word = words[j % 2], magnitude = j < 2 ? word << drop : word >> (8 - drop);
                const u32 term = (magnitude & magnitudes) | ((j < 2 ? word << 8 : word) & 0x8000 * halves);
                const u32 exact = CFP_ADD_HALVES(acc[j], term);
                const u32 rounded = exact + below_tie + (exact >> drop & halves);
                overflow |= rounded + to_flags;
                acc[j] = rounded & keep;
                if (j < 2) check.see(word);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const u32 even = (acc[j] & magnitudes) >> drop | (acc[j] & 0x8000 * halves) >> 8;
            const u32 odd = (acc[j + 2] & magnitudes) << (8 - drop) | (acc[j + 2] & 0x8000 * halves);
            total[j] = even | odd;
            check.see(total[j]);
        }
        return !check.failed() && !(overflow & flags);
    }
};

// Sums in float32 with the other rounding modes, for formats with 1 to 5 exponent bits. As above, a code that is
// shifted to the position of the exponent and the mantissa of a float32 is its value times a power of two. float32
// represents all sums of two values exactly, except for formats with 5 exponent bits.
template <Mode mode> struct FloatSums {
    int drop;  // mantissa bits of float32 that the format does not have
    u32 first_special, term_bits, rest, first_digits;  // rest: mask of discarded bits. first_digits: of the first 16
    // For `otherwise`: `up` is added to positive sums and `up_below` to negative sums. `odd` is the last kept bit for
    // to_odd, and 0 for other modes.
    u32 up, up_below, odd;
    bool are_exact;
    float max;

    CFP_MEMBER FloatSums(const Spec& s, RoundingMode rounding) {
        drop = 23 - s.mantissa_bits;
        first_special = s.max_code + 1;
        term_bits = 0x80000000u | 0x7fu << drop;
        rest = (1u << drop) - 1;
        first_digits = 0xffffu << (drop - 16);
        const u32 half = rounding.mode == nearest_away ? (rest + 1) / 2 : 0;
        up = rounding.mode == toward_positive ? rest : half;
        up_below = rounding.mode == toward_negative ? rest : half;
        odd = rounding.mode == to_odd ? rest + 1 : 0;
        are_exact = has_exact_sums<float>(s);
        max = from_bits(s.max_code << drop);
    }

    CFP_MEMBER float term(u32 word, int j) const {  // code j of 4
        return from_bits(static_cast<u32>(static_cast<i32>(word << (24 - 8 * j)) >> (24 - drop)) & term_bits);
    }
    CFP_MEMBER u32 code(float value, int j) const {
        const u32 bits = to_bits(value), magnitude = (bits >> drop & 0x7f) << 8 * j;
        return magnitude | (bits & 0x80000000u) >> (24 - 8 * j);
    }
    // Returns a + b, truncated or rounded to odd.
    CFP_MEMBER float sum(float a, float b) const {
        if (mode != otherwise) return __fadd_rz(a, b);
        return are_exact ? a + b : add_to_odd_narrow(a, b);
    }
    CFP_MEMBER float rounded(float sum) const {
        const u32 bits = to_bits(sum);
        if (mode == toward_zero) return from_bits(bits & ~rest);
        return from_bits(((bits + (static_cast<i32>(bits) < 0 ? up_below : up)) & ~rest) | (((bits & rest) + rest) & odd));
    }
};

template <Mode mode> struct ByteSums : FloatSums<mode> {
    using FloatSums<mode>::FloatSums;

    CFP_MEMBER bool sum(u32 total[2], const Addresses& bytes, int tensors, i64 i) const {
        float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0}, largest = 0;
        CodeCheck check(this->first_special);
#pragma unroll 4
        for (int r = 0; r < tensors; ++r) {
            const uint2 both = *reinterpret_cast<const uint2*>(bytes.of<u8>(r) + i);
            check.see(both.x), check.see(both.y);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                acc[j] = this->rounded(this->FloatSums<mode>::sum(acc[j], this->term(j < 4 ? both.x : both.y, j % 4)));
                largest = fmaxf(largest, absolute(acc[j]));
            }
        }
        total[0] = total[1] = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) total[j / 4] |= this->code(acc[j], j % 4);
        return !check.failed() && largest <= this->max;
    }
};

// Returns the code of the sum of the codes with index i of all tensors, for any codes and sums.
template <Mode mode, class Exact>
CFP_FN u32 sum_code(const Arithmetic<mode, Exact>& arithmetic, const Coder& coder, const Addresses& bytes, int tensors,
                    i64 i, u64 seed, u64 index, u32 mask) {
    float acc = 0;
    for (int r = 0; r < tensors; ++r) {
        const u32 random = mode == stochastic ? random_of(index + static_cast<u64>(i), static_cast<u32>(4 * r), seed, mask) : 0;
        acc = arithmetic.sum(acc, decode<true>(bytes.of<u8>(r)[i], coder), true, random);
    }
    return encode(canonical(acc), coder);
}

// Returns a word of 4 codes, in which codes with an index of n or more are set to 0. i: the index of the first code.
CFP_FN u32 existing(u32 codes, i64 i, i64 n) {
    if (n - i >= 4) return codes;
    return n > i ? codes & ((1u << 8 * (n - i)) - 1) : 0;
}

// Each thread adds 8 adjacent codes of each tensor.
template <Mode mode>
CFP_FN void accumulate_bytes(const Addresses& bytes, int tensors, u8* out, i64 n, const Spec& spec, RoundingMode rounding) {
    const Arithmetic<mode, float> arithmetic(spec, rounding);
    const Coder coder = make_coder(spec);
    const ByteSums<mode> sums(spec, rounding);
    for (i64 i = 8 * thread_index(); i < n; i += 8 * thread_count()) {
        u32 total[2];
        if (!sums.sum(total, bytes, tensors, i)) {
            total[0] = total[1] = 0;
            for (int j = 0; j < 8; ++j) {
                const u32 code = sum_code(arithmetic, coder, bytes, tensors, i + j, 0, 0, 0) << 8 * (j % 4);
                total[0] |= j < 4 ? code : 0;
                total[1] |= j < 4 ? 0 : code;
            }
        }
        *reinterpret_cast<uint2*>(out + i) = make_uint2(existing(total[0], i, n), existing(total[1], i + 4, n));
    }
}

// Each thread adds the codes of 4 adjacent lanes of a group (philox.h). In each tensor, these codes are 8 words that
// begin 16 bytes apart. `index`, the index of the first element, must be a multiple of 4.
CFP_FN void accumulate_bytes_randomly(const Addresses& bytes, int tensors, u8* out, i64 n, const Spec& spec,
                                      RoundingMode rounding, u64 seed, u64 index, u32 mask) {
    const Arithmetic<stochastic, double> arithmetic(spec, rounding);
    const Coder coder = make_coder(spec);
    const FloatSums<stochastic> sums(spec, rounding);
    const u64 first_group = index / group;
    const i64 padded = (n + 7) / 8 * 8, groups = static_cast<i64>((index + padded - 1) / group - first_group) + 1;
    for (i64 t = thread_index(); t < groups * 4; t += thread_count()) {
        const u64 here = first_group + static_cast<u64>(t / 4);
        const u32 lane = static_cast<u32>(t % 4 * 4);
        const i64 first = static_cast<i64>(here * group + lane - index);
        float acc[4][8] = {}, largest = 0;
        bool is_decided = true;
        CodeCheck check(sums.first_special);
        for (int r = 0; r < tensors; ++r) {
            const u8* const from = bytes.of<u8>(r);
            u32 words[8], random[8];
#pragma unroll
            for (int place = 0; place < 8; ++place) {
                const i64 i = first + 16 * place;
                words[place] = is_index(i, padded) ? *reinterpret_cast<const u32*>(from + i) : 0;
                check.see(words[place]);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float sum[8];
                // Adds and rounds with `random`. Returns false if all tested bits of a sum are ones, because lower bits
                // could then carry.
                const auto add = [&](u32 tested) {
                    u32 digits = 0;
#pragma unroll
                    for (int place = 0; place < 8; ++place) {
                        const float exact = sums.sum(acc[j][place], sums.term(words[place], j));
                        const u32 bits = to_bits(exact) + (random[place] >> (32 - sums.drop));
                        sum[place] = from_bits(bits & ~sums.rest);
                        digits = larger(digits, bits & tested);
                    }
                    return digits != tested;
                };
                draw_first(random, here, lane + j, static_cast<u32>(4 * r), seed, mask);
                if (!add(sums.first_digits)) {
                    draw_lane(random, here, lane + j, static_cast<u32>(4 * r), seed, mask);
                    is_decided &= add(sums.rest) || sums.are_exact;
                }
#pragma unroll
                for (int place = 0; place < 8; ++place) {
                    acc[j][place] = sum[place];
                    largest = fmaxf(largest, absolute(sum[place]));
                }
            }
        }
        const auto store = [&](int place, const auto& code) {
            const i64 i = first + 16 * place;
            if (!is_index(i, padded)) return;
            u32 total = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) total |= code(i, j);
            *reinterpret_cast<u32*>(out + i) = existing(total, i, n);
        };
        if (is_decided && !check.failed() && largest <= sums.max) {
#pragma unroll
            for (int place = 0; place < 8; ++place) store(place, [&](i64, int j) { return sums.code(acc[j][place], j); });
        } else {
            for (int place = 0; place < 8; ++place)
                store(place, [&](i64 i, int j) {
                    return sum_code(arithmetic, coder, bytes, tensors, i + j, seed, index, mask) << 8 * j;
                });
        }
    }
}

#define CFP_ACCUMULATE_BYTES(mode)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, 2)                                                                 \
        accumulate_bytes_##mode(Addresses bytes, int tensors, u8* out, i64 n, u32 packed_spec, int rounding, int kahan,  \
                                u64 seed, u64 index, u32 mask) {                                                         \
        const Spec spec = unpack_spec(packed_spec);                                                                      \
        if constexpr (mode == stochastic)                                                                                \
            accumulate_bytes_randomly(bytes, tensors, out, n, spec, RoundingMode(rounding), seed, index, mask);          \
        else                                                                                                             \
            accumulate_bytes<mode>(bytes, tensors, out, n, spec, RoundingMode(rounding));                                \
    }
CFP_FOR_EACH_MODE(CFP_ACCUMULATE_BYTES)
