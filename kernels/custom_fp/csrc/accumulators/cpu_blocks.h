// Blocks of products that are aligned to their largest exponent and truncated, with one multiply-add for each term.
//
// The sum of a block starts as an anchor, 1.5 2^m u, where m is the number of mantissa bits of V and u = 2^(E - width)
// is the last digit that is kept. All sums near the anchor have the last digit u, so additions toward zero drop the
// digits of a term below u. Since the sum is positive, this rounds negative terms down, although they should be
// truncated. To correct this, factors of a get one more digit, 2^-t of them, which is too small to reach u. A positive
// product is then truncated as before, and a negative product always becomes one u smaller. The number of negative
// terms, which is known from the signs of the factors, is added at the end, in units of u. Zeros are replaced by tiny
// positive numbers.
//
// A row and a panel are scaled so that their smallest exponents are 0. Sums are then multiples of 2^-width, and it is
// known before they are computed that their magnitudes are small enough. Rows for which the result might differ are
// rejected, and dot.h computes them.
//
// V is FloatLanes for widths up to 14, and DoubleLanes for larger widths. Sums are rounded toward zero, or to nearest.
#pragma once

#include <algorithm>
#include <vector>

#include "accumulators/lane_sums.h"
#include "cpu/fp_environment.h"

namespace custom_fp {
namespace {

typedef unsigned char Byte;
typedef Byte ByteLanes __attribute__((vector_size(4 * lanes)));

CFP_FN ByteLanes larger_of(ByteLanes a, ByteLanes b) {
#if defined(__AVX512F__)
    return (ByteLanes)_mm512_max_epu8((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (ByteLanes)_mm256_max_epu8((__m256i)a, (__m256i)b);
#else
    return a > b ? a : b;
#endif
}

// Returns the number of bits that are set in each byte. The bytes must be below 16.
CFP_FN ByteLanes bits_set(ByteLanes x) {
#if defined(__AVX512F__)
    const __m128i of = _mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    return (ByteLanes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(of), (__m512i)x);
#elif defined(__AVX2__)
    const __m128i of = _mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    return (ByteLanes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(of), (__m256i)x);
#else
    x = x - ((x >> 1) & 5);
    return (x & 3) + (x >> 2);
#endif
}

// Loads as many bytes as U has lanes.
template <class U> CFP_FN U widened(const Byte* from) {
#if defined(__AVX512F__)
    if constexpr (sizeof(U{}[0]) == 4)
        return (U)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    else
        return (U)_mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
    if constexpr (sizeof(U{}[0]) == 4)
        return (U)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    else
        return (U)_mm256_cvtepu8_epi64(_mm_loadu_si32(from));
#else
    U x;
    for (int i = 0; i < static_cast<int>(sizeof x / sizeof x[0]); ++i) x[i] = from[i];
    return x;
#endif
}

// The numbers must not be negative.
CFP_FN FloatLanes larger_of(FloatLanes a, FloatLanes b) { return (FloatLanes)larger_of((IntLanes)a, (IntLanes)b); }
CFP_FN DoubleLanes larger_of(DoubleLanes a, DoubleLanes b) {
#if defined(__AVX512F__)
    return (DoubleLanes)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX2__)
    return (DoubleLanes)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
    return a > b ? a : b;
#endif
}

#if defined(__AVX512F__)
CFP_FN FloatLanes add_nearest(FloatLanes a, FloatLanes b) {
    return (FloatLanes)_mm512_add_round_ps((__m512)a, (__m512)b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
CFP_FN DoubleLanes add_nearest(DoubleLanes a, DoubleLanes b) {
    return (DoubleLanes)_mm512_add_round_pd((__m512d)a, (__m512d)b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#endif

template <class V> class AlignedBlocks {
    typedef Lane<V> L;
    typedef typename L::F F;
    typedef typename L::I I;
    typedef typename L::U U;
    typedef Bits<F> B;
    typedef typename B::I Integer;
    static constexpr bool is_float = sizeof(F) == 4;
    static constexpr int width = sizeof(V) / sizeof(F), strip = 4 * width, byte_lanes = 4 * lanes;
    static constexpr int extra = is_float ? 19 : 32;       // t, the position of the additional digit of factors of a
    static constexpr int spread = 50, longest_block = 32;  // the largest range of exponents, the most terms of a block
    // E + 127 of a product is the sum of two bytes. For a zero, it is smaller than for any other product. If it is
    // below `lowest`, all terms are zero.
    static constexpr int bias_a = 64, bias_b = 63, lowest = 119;

    const Summing& s_;
    const Spec spec_;
    const int64_t depth_, quads_, blocks_;  // quads: groups of four terms in a block
    const bool nearest_;  // whether sums are rounded to nearest, and not toward zero
    const U keep_, magic_;  // magic_: added to a value's exponent to get the bits of a number whose ulp is its quantum
    const I offset_;      // added to E to get the bits of the anchor
    struct Side {
        bool taken;
        int digits, low, most;  // the smallest and the largest exponent by which nonzero factors are aligned
        double largest;
    };
    Side columns_;
    std::vector<Side> rows_;
    // Scaled factors, their exponents, and their signs, with one byte for four terms. Bytes of a are repeated four
    // times.
    std::vector<F> a_, b_;
    std::vector<u32> a_fields_, a_signs_;
    std::vector<Byte> b_fields_, b_signs_, a_terms_;

public:
    static constexpr int abreast = lanes == 16 ? 4 : 2;  // number of rows whose independent sums are computed together

    static bool allowed(const Summing& s) {
        if (s.order != sequential || s.width < 0 || s.block > longest_block) return false;
        if (s.mode != toward_zero && s.mode != nearest_even) return false;
        const int digits = unpack_spec(s.sum).mantissa_bits;
        if (s.mode == nearest_even && (digits == 0 || digits >= B::mantissa)) return false;
        if (s.chunk && (s.total & 0xffff) != (23 << 8 | 8)) return false;
        return is_float ? s.width <= 14 : s.width <= 27;  // 33 values below 2^(width + 2) fit in half a binade
    }

    AlignedBlocks(const Summing& s, int64_t depth)
        : s_(s), spec_(unpack_spec(s.sum)), depth_(depth), quads_((s.block + 3) / 4), blocks_((depth + s.block - 1) / s.block),
          nearest_(s.mode == nearest_even),
          keep_(~((B::one << (B::mantissa - spec_.mantissa_bits)) - 1) - U{}),
          magic_(((static_cast<typename B::U>(B::mantissa - spec_.mantissa_bits) << B::mantissa) |
                  B::one << (B::mantissa - 1)) - U{}),
          offset_(((static_cast<Integer>(B::mantissa - s.width) << B::mantissa) |
                   Integer(1) << (B::mantissa - 1)) - I{}) {
        b_.resize(depth * panel);
        b_fields_.resize(depth * panel);
        a_terms_.resize(blocks_ * quads_ * 4);
        b_signs_.resize(blocks_ * quads_ * panel);
    }

    void columns(const float* b_Kx64) {
        columns_ = side_of(b_Kx64, depth_ * panel, s_.emin_b);
        if (!columns_.taken) return;
        const Prepared p(columns_, s_.emin_b, bias_b, 0);
        for (int64_t i = 0; i < depth_ * panel; ++i) b_[i] = p.value(b_Kx64[i]);
        for (int64_t i = 0; i < depth_ * panel; ++i) b_fields_[i] = static_cast<Byte>(p.field(b_Kx64[i]));
        for_quads([&](int64_t quad, int64_t k, int64_t end) {
            u32 signs[panel] = {};
            for (int i = 0; k + i < end; ++i)
                for (int j = 0; j < panel; ++j) signs[j] |= p.sign(b_Kx64[(k + i) * panel + j]) << i;
            for (int j = 0; j < panel; ++j) b_signs_[quad * panel + j] = static_cast<Byte>(signs[j]);
        });
    }

    void rows(const float* a_MxK, int64_t count) {
        rows_.resize(count);
        a_.resize(count * depth_);
        a_fields_.resize(count * depth_);
        a_signs_.resize(count * blocks_ * quads_);
        for (int64_t i = 0; i < count; ++i) {
            const float* x = a_MxK + i * depth_;
            rows_[i] = side_of(x, depth_, s_.emin_a);
            if (!rows_[i].taken) continue;
            const Prepared p(rows_[i], s_.emin_a, bias_a, B::one << (B::mantissa - extra));
            for (int64_t k = 0; k < depth_; ++k) a_[i * depth_ + k] = p.value(x[k]);
            for (int64_t k = 0; k < depth_; ++k) a_fields_[i * depth_ + k] = p.field(x[k]) * 0x01010101u;
            // First, there is one byte for each term. Then a multiplication moves the four bits of a word together.
            const int64_t run = s_.block % 4 ? s_.block : depth_;
            for (int64_t k = 0; k < depth_; k += run) {
                Byte* signs = a_terms_.data() + k / s_.block * quads_ * 4;
                const int64_t n = std::min(run, depth_ - k);
                for (int64_t j = 0; j < n; ++j) signs[j] = static_cast<Byte>(p.sign(x[k + j]));
            }
            u32* signs = a_signs_.data() + i * blocks_ * quads_;
            std::memcpy(signs, a_terms_.data(), a_terms_.size());
            for (int64_t j = 0; j < blocks_ * quads_; ++j) signs[j] = (signs[j] * 0x01020408u >> 24 & 15u) * 0x01010101u;
        }
    }

    // Computes 64 results for row `first` and for as many of the next rows as can be computed with it. Returns the
    // number of rows, or 0 if the first row is rejected.
    int products(int64_t first, float* out_Rx64) const {
        const int64_t left = static_cast<int64_t>(rows_.size()) - first;
        int count = 0;
        while (count < abreast && count < left && takes(rows_[first + count])) ++count;
        if (count < abreast) count = count > 0;
        const bool done = count == abreast ? sums<abreast>(first, out_Rx64) : count && sums<1>(first, out_Rx64);
        return done ? count : 0;
    }

private:
    static CFP_MEMBER V at(const F* from) {
        V x;
        std::memcpy(&x, from, sizeof x);
        return x;
    }
    static CFP_MEMBER ByteLanes bytes_at(const Byte* from) {
        ByteLanes x;
        std::memcpy(&x, from, sizeof x);
        return x;
    }

    // Calls call(quad, begin, end) for all groups of four terms.
    template <class Call> void for_quads(const Call& call) const {
        for (int64_t block = 0; block < blocks_; ++block)
            for (int64_t i = 0; i < quads_; ++i) {
                const int64_t begin = block * s_.block + 4 * i, stop = std::min(depth_, (block + 1) * s_.block);
                call(block * quads_ + i, begin, std::min(begin + 4, stop));
            }
    }

    static Side side_of(const float* x, int64_t n, int emin) {
        const ValueRange range = value_range(x, n);
        Side side = {range.finite && range.digits <= (is_float ? 23 - extra : 12), range.digits, 0, 0, range.largest};
        if (range.most == -1000) return side;  // all values are zero
        side.low = range.least > emin ? range.least : emin;
        side.most = range.most > emin ? range.most : emin;
        side.taken = side.taken && range.least >= -126 && side.low - range.least <= 24 && side.most - side.low <= spread;
        return side;
    }

    bool takes(const Side& row) const {
        const int low = row.low + columns_.low, most = row.most > columns_.most ? row.most : columns_.most;
        if (!row.taken || !columns_.taken) return false;
        // No zero may have an exponent that matters. No sum may be subnormal in float32, or have digits that rounding
        // to nearest ignores. When rounding toward zero, no sum may be subnormal or overflow. When rounding to nearest,
        // the kernel handles these cases.
        const int last = low - s_.width;
        if (last < -126 || low < most - 126 || last < spec_.emin - (nearest_ ? B::mantissa : 0)) return false;
        const double bound = row.largest * columns_.largest * static_cast<double>(depth_);
        const double max = static_cast<double>(from_bits(magnitude_of<float>(spec_, spec_.max_code)));
        return (nearest_ || bound < max) && bound < power_of_two<double>(low < 0 ? 100 + low : 100) &&
               spec_.emin - low < (is_float ? 100 : 900);
    }

    struct Prepared {
        int low, emin;
        u32 bias;
        typename B::U digit;
        Prepared(const Side& side, int emin, int bias, typename B::U digit)
            : low(side.low), emin(emin + 127), bias(static_cast<u32>(bias - side.low - 127)), digit(digit) {}

        CFP_MEMBER F value(float x) const {
            const u32 bits = to_bits(x), is_zero = 0u - static_cast<u32>((bits & 0x7fffffffu) == 0);
            const u32 scaled = bits - (static_cast<u32>(low) << 23);
            const F y = static_cast<F>(from_bits(select(is_zero & 1u, 27u << 23, scaled)));  // 2^-100
            return from_bits(static_cast<typename B::U>(to_bits(y) | digit));
        }
        CFP_MEMBER u32 field(float x) const {
            const u32 magnitude = to_bits(x) & 0x7fffffffu;
            const u32 exponent = static_cast<u32>(larger<i32>(static_cast<i32>(magnitude >> 23), emin));
            return (exponent + bias) & (0u - static_cast<u32>(magnitude != 0));
        }
        static CFP_MEMBER u32 sign(float x) {  // a zero has no sign
            return static_cast<u32>(to_bits(x) > 0x80000000u);
        }
    };

    template <int R> bool sums(int64_t first, float* out) const {
        return nearest_ ? sums<R, true>(first, out) : sums<R, false>(first, out);
    }

    // The smallest normal value and the largest value of the sums' format, scaled in the same way as a row, as bits.
    struct Rounding {
        U min_normal, max;
    };

    // Computes the sums. Returns false if a sum overflows.
    template <int R, bool nearest> bool sums(int64_t first, float* out) const {
        F scale[R];
        Rounding rounding[R];
        for (int r = 0; r < R; ++r) {
            const int low = rows_[first + r].low + columns_.low, least = is_float ? -126 : -1022;
            scale[r] = power_of_two<F>(low);
            const F max = static_cast<F>(from_bits(magnitude_of<float>(spec_, spec_.max_code)));
            rounding[r] = {to_bits(power_of_two<F>(larger(spec_.emin - low, least))) - U{}, to_bits(max / scale[r]) - U{}};
        }
        const int64_t chunk = s_.chunk ? s_.chunk : depth_ > 0 ? depth_ : 1;
        for (int i = 0; i < R * panel; ++i) out[i] = 0;
        bool overflows = false;
        for (int64_t begin = 0; begin < depth_; begin += chunk) {
            const int64_t end = depth_ - begin < chunk ? depth_ : begin + chunk;
            F acc[R * panel] = {};
            {
                const RoundingDirection direction(FE_TOWARDZERO);
                overflows |= add_blocks<R, nearest>(first, begin, end, rounding, acc);
            }
            for (int r = 0; r < R; ++r)
                for (int j = r * panel; j < (r + 1) * panel; ++j) out[j] += static_cast<float>(acc[j] * scale[r]);
        }
        return !overflows;
    }

    // Computes E + 127 for the terms begin to end - 1, without the partial sums.
    template <int R> void fields(int64_t first, int64_t begin, int64_t end, Byte (*out)[panel]) const {
        const u32* a[R];
        for (int r = 0; r < R; ++r) a[r] = a_fields_.data() + (first + r) * depth_;
        for (int j = 0; j < panel; j += byte_lanes) {
            ByteLanes largest[R];
            for (int r = 0; r < R; ++r) largest[r] = ByteLanes{} + Byte(lowest);
            for (int64_t k = begin; k < end; ++k) {
                const ByteLanes other = bytes_at(b_fields_.data() + k * panel + j);
                for (int r = 0; r < R; ++r) largest[r] = larger_of(largest[r], (ByteLanes)(a[r][k] - UintLanes{}) + other);
            }
            for (int r = 0; r < R; ++r) std::memcpy(out[r] + j, &largest[r], sizeof(ByteLanes));
        }
    }

    // Counts the negative products of a block.
    template <int R> void negatives(int64_t first, int64_t block, Byte (*out)[panel]) const {
        for (int j = 0; j < panel; j += byte_lanes) {
            ByteLanes count[R] = {};
            for (int64_t i = block * quads_; i < (block + 1) * quads_; ++i) {
                const ByteLanes other = bytes_at(b_signs_.data() + i * panel + j);
                for (int r = 0; r < R; ++r) {
                    const u32 signs = a_signs_[(first + r) * blocks_ * quads_ + i];
                    count[r] += bits_set((ByteLanes)(signs - UintLanes{}) ^ other);
                }
            }
            for (int r = 0; r < R; ++r) std::memcpy(out[r] + j, &count[r], sizeof(ByteLanes));
        }
    }

    // Rounds values to nearest, with ties to even. The result is never -0. Since operations round toward zero here,
    // this function adds as integers if instructions cannot have their own rounding direction.
    CFP_MEMBER V round_nearest(V value, const Rounding& to, U& overflow) const {
        const U magnitude = (U)value & ~B::sign;
#if defined(__AVX512F__)
        const U exponent = (U)larger_of((V)(magnitude & B::infinity), (V)to.min_normal);
        const V magic = (V)(exponent + magic_), rounded = add_nearest(add_nearest(value, magic), -magic);
        overflow |= (U)((I)((U)rounded & ~B::sign) > (I)to.max);
        return rounded;
#else
        const int drop = B::mantissa - spec_.mantissa_bits;
        const V lift = (V)((U)((I)magnitude < (I)to.min_normal) & to.min_normal);  // aligns the digits of a subnormal
        const U digits = (U)((V)magnitude + lift), odd = digits >> drop & 1;
        const U kept = (U)((V)((digits + odd + ((B::one << (drop - 1)) - 1)) & keep_) - lift);
        overflow |= (U)((I)kept > (I)to.max);
        return (V)(kept | ((U)value & B::sign)) + V{};
#endif
    }

    // This function must not be inlined, because the caller sets the rounding direction. Returns whether a sum that is
    // rounded to nearest overflows.
    template <int R, bool nearest>
    __attribute__((noinline)) bool add_blocks(int64_t first, int64_t begin, int64_t end, const Rounding* rounding,
                                              F* acc) const {
        const F* a[R];
        for (int r = 0; r < R; ++r) a[r] = a_.data() + (first + r) * depth_;
        const U keep = keep_;
        const I offset = offset_;
        U overflow = {};
        for (int64_t from = begin; from < end; from += s_.block) {
            const int64_t to = end - from < s_.block ? end : from + s_.block;
            alignas(64) Byte field[R][panel], negative[R][panel];
            fields<R>(first, from, to, field);
            negatives<R>(first, from / s_.block, negative);
            for (int j = 0; j < panel; j += strip) {
                V sum[R][4], anchor[R][4];
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < 4; ++v) {
                        const int column = j + v * width;
                        const U before = (U)at(acc + r * panel + column);
                        V of_sum = (V)(before & B::infinity);
                        if (nearest) {  // a subnormal sum has the exponent of the smallest normal value
                            const U is_nonzero = (U)((before & ~B::sign) != 0);
                            of_sum = larger_of(of_sum, (V)(is_nonzero & rounding[r].min_normal));
                        }
                        const U of_terms = (widened<U>(field[r] + column) + (B::bias - 127)) << B::mantissa;
                        anchor[r][v] = (V)((I)larger_of((V)of_terms, of_sum) + offset);
                        sum[r][v] = anchor[r][v] + (V)(before + (before >> (8 * sizeof(F) - 1)));
                    }
                for (int64_t k = from; k < to; ++k) {
                    V y[4];
                    for (int v = 0; v < 4; ++v) y[v] = at(b_.data() + k * panel + j + v * width);
                    for (int r = 0; r < R; ++r) {
                        const V x = a[r][k] - V{};
                        for (int v = 0; v < 4; ++v) sum[r][v] = multiply_add(x, y[v], sum[r][v]);
                    }
                }
                for (int r = 0; r < R; ++r)
                    for (int v = 0; v < 4; ++v) {
                        const int column = j + v * width;
                        F* at_acc = acc + r * panel + column;
                        const U count = widened<U>(negative[r] + column) + ((U)at(at_acc) >> (8 * sizeof(F) - 1));
                        const V value = (V)((U)sum[r][v] + count) - anchor[r][v];
                        const U kept = nearest ? (U)round_nearest(value, rounding[r], overflow) : (U)value & keep;
                        std::memcpy(at_acc, &kept, sizeof kept);
                    }
            }
        }
        bool any = false;
        for (int i = 0; i < width; ++i) any = any || overflow[i];
        return any;
    }
};

}  // namespace
}  // namespace custom_fp
