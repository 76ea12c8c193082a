// Blocks of products aligned to their largest exponent, many results side by side: with exponents in 16-bit integers,
// products in float32 and what is left of them, cut off, in 32-bit integers. That is right where
//
//   products are float32 values (both factors have few digits) and neither they nor sums come near float32's range,
//   a block's sum fits 32 bits, and rounding is toward zero, to float32, or to nearest of 11 digits at most.
//
// Each row takes down what it met and says whether it can be trusted; dot.h does the others again.
#pragma once

#include <cmath>
#include <vector>

#include "cpu/facts.h"
#include "cpu/fp_environment.h"
#include "accumulators/kernels.h"
#include "cpu/lanes.h"

namespace custom_fp {
namespace {

constexpr int together = 4 * lanes;  // columns of one pass: four registers
typedef short ShortLanes __attribute__((vector_size(4 * lanes)));  // twice as many
typedef short HalfLanes __attribute__((vector_size(2 * lanes)));

CFP_FN ShortLanes more(ShortLanes a, ShortLanes b) {
#if defined(__AVX512F__)
    return (ShortLanes)_mm512_max_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (ShortLanes)_mm256_max_epi16((__m256i)a, (__m256i)b);
#else
    return a > b ? a : b;
#endif
}

CFP_FN UintLanes less(UintLanes a, UintLanes b) {
#if defined(__AVX512F__)
    return (UintLanes)_mm512_min_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (UintLanes)_mm256_min_epu32((__m256i)a, (__m256i)b);
#else
    return a < b ? a : b;
#endif
}

template <class V, class T> CFP_FN V splat(T x) { return x - V{}; }

CFP_FN int exponent_of(float x, int emin) {
    const u32 magnitude = to_bits(x) & 0x7fffffffu;
    const int exponent = static_cast<int>(magnitude >> 23) - 127, pinned = exponent > emin ? exponent : emin;
    return magnitude ? pinned : zero_exponent;
}

enum Kind { truncated, to_float, to_nearest };  // of rounding, to the format of sums

struct Aligning {
    int width, emin, floor;  // of sums; exponents below `floor` leave nothing
    int64_t block, partial;  // terms of a block, and of them so many whose sum fits 32 bits
    u32 keep;                // mantissa bits, of what is cut off
    NearRounder rounder;
};

struct AlignedMet {
    UintLanes low = ~UintLanes{};  // the smallest magnitude, less one in its last digit: zero is none
    UintLanes high = {}, wrapped = {};
    Met<FloatLanes> near;
};

// acc = Q(acc + block) for all blocks of `depth` terms, of `together` columns. Not inlined: the caller sets the rounding
// direction of conversions.
template <Kind kind>
__attribute__((noinline)) void add_blocks(const float* a, const i32* a_exponents, const float* b,
                                          const short* b_exponents, int64_t depth, float* sums, AlignedMet& met_by_all,
                                          const Aligning& p) {
    FloatLanes acc[4];
    for (int v = 0; v < 4; ++v) acc[v] = load<FloatLanes>(sums + v * lanes);
    AlignedMet met = met_by_all;
    const IntLanes emin = splat<IntLanes>(p.emin), floor = splat<IntLanes>(p.floor);
    const IntLanes if_zero = splat<IntLanes>(zero_exponent - p.emin), up = splat<IntLanes>(p.width + 127),
                   down = splat<IntLanes>(127 - p.width), bias = splat<IntLanes>(127);
    const UintLanes keep = splat<UintLanes>(p.keep);
    for (int64_t begin = 0; begin < depth; begin += p.block) {
        const int64_t end = depth - begin < p.block ? depth : begin + p.block;
        ShortLanes top[2] = {ShortLanes{} - short(1000), ShortLanes{} - short(1000)};
        for (int64_t k = begin; k < end; ++k) {
            const ShortLanes exponent = (ShortLanes)splat<IntLanes>(a_exponents[k]);
            for (int v = 0; v < 2; ++v) {
                ShortLanes other;
                std::memcpy(&other, b_exponents + k * panel + v * 2 * lanes, sizeof other);
                top[v] = more(top[v], exponent + other);
            }
        }
        FloatLanes scale[4], back[4];
        UintLanes total[4];
        for (int v = 0; v < 4; ++v) {
            HalfLanes half;
            std::memcpy(&half, reinterpret_cast<const char*>(top) + v * sizeof half, sizeof half);
            const UintLanes magnitude = (UintLanes)acc[v] & 0x7fffffffu;
            const IntLanes is_zero = (IntLanes)(magnitude == 0);
            const IntLanes pinned = Integers<FloatLanes>::more((IntLanes)(magnitude >> 23) - bias, emin);
            IntLanes exponent = __builtin_convertvector(half, IntLanes);
            exponent = Integers<FloatLanes>::more(exponent, pinned + (is_zero & if_zero));
            exponent = Integers<FloatLanes>::more(exponent, floor);
            scale[v] = (FloatLanes)((UintLanes)(up - exponent) << 23);
            back[v] = (FloatLanes)((UintLanes)(exponent + down) << 23);
            total[v] = (UintLanes)__builtin_convertvector(acc[v] * scale[v], IntLanes);
        }
        for (int64_t first = begin; first < end; first += p.partial) {
            const int64_t last = end - first < p.partial ? end : first + p.partial;
            UintLanes sum[4] = {};
            for (int64_t k = first; k < last; ++k) {
                const FloatLanes x = splat<FloatLanes>(a[k]);
                for (int v = 0; v < 4; ++v) {
                    const FloatLanes product = x * load<FloatLanes>(b + k * panel + v * lanes);
                    sum[v] += (UintLanes)__builtin_convertvector(product * scale[v], IntLanes);
                }
            }
            for (int v = 0; v < 4; ++v) {
                const UintLanes both = total[v] + sum[v];
                met.wrapped |= (total[v] ^ both) & (sum[v] ^ both);
                total[v] = both;
            }
        }
        for (int v = 0; v < 4; ++v) {
            FloatLanes value = __builtin_convertvector((IntLanes)total[v], FloatLanes);
            if (kind == to_nearest) {  // rounded to odd first
                const UintLanes error = total[v] - (UintLanes)__builtin_convertvector(value, IntLanes);
                const UintLanes inexact = (UintLanes)(error != 0);
                const UintLanes away = (UintLanes)((IntLanes)(total[v] ^ error) >> 31) & inexact;
                value = (FloatLanes)(((UintLanes)value + away) | (inexact & 1u));
                acc[v] = round_near<FloatLanes>(value * back[v], p.rounder, met.near) + FloatLanes{};
            } else {
                acc[v] = value * back[v];
                if (kind == truncated) acc[v] = (FloatLanes)((UintLanes)acc[v] & keep);
            }
            const UintLanes magnitude = (UintLanes)acc[v] & 0x7fffffffu;
            met.low = less(met.low, magnitude - 1u);
            met.high = (UintLanes)Integers<FloatLanes>::more((IntLanes)met.high, (IntLanes)magnitude);
        }
    }
    for (int v = 0; v < 4; ++v) store(sums + v * lanes, acc[v]);
    met_by_all = met;
}

class AlignedRows {
    const Summing& s_;
    const Spec spec_;
    const Rounder<double> total_;
    const bool total_is_float_;
    const int64_t depth_;
    Aligning p_;
    Kind kind_;
    u32 smallest_, largest_;
    std::vector<short> b_exponents_;
    std::vector<i32> a_exponents_;
    Facts columns_;

public:
    static bool allowed(const Summing& s) {
        const Spec spec = unpack_spec(s.sum);
        if (s.order != sequential || s.width < 0 || s.width > 27) return false;
        if (s.mode == toward_zero) return true;
        return s.mode == nearest_even && (spec.mantissa_bits == 23 || NearRounder::allowed(spec));
    }

    AlignedRows(const Summing& s, int64_t depth)
        : s_(s), spec_(unpack_spec(s.sum)), total_(make_rounder<double>(unpack_spec(s.total), nearest_even, infinity)),
          total_is_float_((s.total & 0xffff) == (23 << 8 | 8)), depth_(depth), b_exponents_(static_cast<size_t>(depth) * panel), a_exponents_(static_cast<size_t>(depth)) {
        p_.width = s.width;
        p_.emin = spec_.emin;
        p_.floor = s.width - 126;
        p_.block = s.block;
        p_.partial = int64_t(1) << (29 - s.width);
        p_.keep = ~((1u << (23 - spec_.mantissa_bits)) - 1);
        p_.rounder = make_near_rounder(spec_, infinity);
        kind_ = s.mode == toward_zero ? truncated : spec_.mantissa_bits == 23 ? to_float : to_nearest;
        const int least = kind_ != to_nearest && spec_.emin > -90 ? spec_.emin : -90;
        smallest_ = to_bits(power_of_two<float>(least)) - 1;
        largest_ = magnitude_of<float>(spec_, spec_.max_code);
    }

    void columns(const float* b_Kx64) {
        columns_ = facts_of(b_Kx64, depth_ * panel);
        for (int64_t i = 0; i < depth_ * panel; ++i) b_exponents_[i] = static_cast<short>(exponent_of(b_Kx64[i], s_.emin_b));
    }

    // 64 results of a row; false where they cannot be trusted.
    bool row(const float* a, const float* b_Kx64, float* out) {
        const Facts facts = facts_of(a, depth_);
        if (!facts.finite || !columns_.finite || facts.digits + columns_.digits > 24) return false;
        const int least = facts.least + columns_.least, most = facts.most + columns_.most;
        if (least < -98 || most > 124) return false;
        for (int64_t k = 0; k < depth_; ++k) {  // twice, to be spread over pairs of lanes
            const u32 exponent = static_cast<u32>(exponent_of(a[k], s_.emin_a)) & 0xffffu;
            a_exponents_[k] = static_cast<i32>(exponent | exponent << 16);
        }
        if (kind_ == truncated) return sum<truncated>(a, b_Kx64, out);
        return kind_ == to_float ? sum<to_float>(a, b_Kx64, out) : sum<to_nearest>(a, b_Kx64, out);
    }

private:
    template <Kind kind> bool sum(const float* a, const float* b, float* out) {
        AlignedMet met;
        const int64_t chunk = s_.chunk ? s_.chunk : depth_;
        for (int64_t begin = 0; begin < depth_; begin += chunk) {
            const int64_t deep = depth_ - begin < chunk ? depth_ - begin : chunk;
            float acc[panel] = {};
            {
                const RoundingDirection direction(kind == truncated ? FE_TOWARDZERO : FE_TONEAREST);
                for (int j = 0; j < panel; j += together)
                    add_blocks<kind>(a + begin, a_exponents_.data() + begin, b + begin * panel + j,
                                     b_exponents_.data() + begin * panel + j, deep, acc + j, met, p_);
            }
            if (!s_.chunk) {
                std::memcpy(out, acc, sizeof acc);
            } else {
                for (int j = 0; j < panel && total_is_float_; ++j) out[j] = (begin ? out[j] : 0.0f) + acc[j];
                for (int j = 0; j < panel && !total_is_float_; ++j) {
                    const double before = begin ? static_cast<double>(out[j]) : 0.0;
                    const double exact = add_to_odd(before, static_cast<double>(acc[j]));
                    out[j] = static_cast<float>(round<nearest_even>(exact, total_, 0));
                }
            }
        }
        if (depth_ == 0) std::memset(out, 0, panel * sizeof(float));
        return trusted(met);
    }

    bool trusted(const AlignedMet& met) const {
        Met<float> near;
        gather(met.near, near);
        u32 low = ~0u, high = 0, wrapped = 0;
        for (int i = 0; i < lanes; ++i) {
            low = low < met.low[i] ? low : met.low[i];
            high = high > met.high[i] ? high : met.high[i];
            wrapped |= met.wrapped[i];
        }
        const bool rounded = kind_ != to_nearest || near.largest <= p_.rounder.limit;
        return low >= smallest_ && high <= largest_ && !(wrapped >> 31) && rounded;
    }
};

}  // namespace
}  // namespace custom_fp
