// Rounds to a table of values with a step function, a register of numbers at a time. Also computes exact sums and
// products of float32 values, rounded to odd.
//
// In most binades, the values of a table are the multiples of a power of two. Adding and subtracting 1.5 * 2^23 times
// this power rounds to these values. t.lifts has this number, or NaN if the result would differ from the step function
// (tabulated/lifts.py checks this). If the result of the addition is NaN, the value is looked up in the cells.
#pragma once

#include "cpu/value_range.h"
#include "cpu/gather.h"
#include "cpu/matmul_near.h"
#include "cpu/partial_lanes.h"
#include "tabulated/tabulated_rounding.h"

namespace custom_fp {
namespace {

// ---- looking up steps -----------------------------------------------------------------------------------------------

template <bool by_octave> CFP_FN IntLanes sides_of(FloatLanes key, const Table& t) {
    const IntLanes bits = (IntLanes)Lanes::bits(key), magnitude = bits & 0x7fffffff, zero = {};
    IntLanes cell;
    if (by_octave) {
        const IntLanes octave = gather(t.octaves, magnitude >> 23);
        cell = (octave >> 5) + ((magnitude & 0x7fffff) >> (octave & 31));
    } else {
        const IntLanes past = (magnitude >> t.shift) - (t.first + t.last);  // the next line clamps the cell
        cell = Lanes::more(-Lanes::more(-past, zero) + t.last, zero);
    }
    cell += (bits >> 31) & t.half;
    return cell + cell - (IntLanes)(magnitude > gather(t.thresholds, cell));
}

// ---- exact numbers -------------------------------------------------------------------------------------------------

CFP_FN bool any(IntLanes mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    i32 met = 0;
    for (int i = 0; i < lanes; ++i) met |= mask[i];
    return met != 0;
#endif
}

constexpr i32 half_of_largest = 0x7f000000;  // 2^127: sums of smaller values do not overflow

CFP_FN FloatLanes odd_lanes(FloatLanes near, FloatLanes error) {
    const IntLanes inexact = (IntLanes)(error != 0.0f), beyond = ((IntLanes)near ^ (IntLanes)error) >> 31;
    return (FloatLanes)(((IntLanes)near + (beyond & inexact)) | (inexact & 1));
}

// Calls body(i) for every lane, to compute in double. This happens rarely.
template <class Body> FloatLanes one_by_one(const Body& body) {
    FloatLanes result;
    for (int i = 0; i < lanes; ++i) result[i] = to_odd_float32(body(i));
    return result;
}

// Returns a + b, rounded to odd.
CFP_FN FloatLanes exact_sum(FloatLanes a, FloatLanes b) {
    const IntLanes larger = Lanes::more((IntLanes)a & 0x7fffffff, (IntLanes)b & 0x7fffffff);
    if (any((IntLanes)(larger >= half_of_largest)))
        return one_by_one([&](int i) { return add_to_odd(static_cast<double>(a[i]), static_cast<double>(b[i])); });
    const FloatLanes sum = a + b, b_part = sum - a;
    return odd_lanes(sum, (a - (sum - b_part)) + (b - b_part));
}

// Returns a * b, rounded to odd.
CFP_FN FloatLanes exact_product(FloatLanes a, FloatLanes b) {
    if (has_fma) {
        constexpr i32 least = 0x0d800000;  // 2^-100: the error of a larger product is a float32
        const FloatLanes product = a * b;
        const IntLanes magnitude = (IntLanes)product & 0x7fffffff;
        const IntLanes small = (IntLanes)(magnitude < least) & (IntLanes)(a != 0.0f) & (IntLanes)(b != 0.0f);
        if (!any(small | (IntLanes)(magnitude >= half_of_largest))) return odd_lanes(product, multiply_add(a, b, -product));
    }
    return one_by_one([&](int i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
}

// ---- rounding ------------------------------------------------------------------------------------------------------

// Rounds to tables of kind table_steps.
class LaneRounder {
public:
    explicit LaneRounder(const Table& table)
        : t_(table), uses_lifts_(table.lifts[lift_use] != 0), is_short_(table.lifts[lift_short] != 0),
          first_(table.lifts[lift_first]) {
        signed_zero_ = IntLanes{} + table.lifts[lift_zero];
#if defined(__AVX512F__)
        for (int i = 0; i < 4; ++i) window_[i] = _mm512_loadu_ps(table.lifts + lift_window + 16 * i);
#endif
    }

    // Rounds a float32, or a number that was rounded to odd.
    FloatLanes of(FloatLanes key) const {
        if (uses_lifts_) {
            const FloatLanes lift = lift_of(key), lifted = some((key + lift) - lift, (IntLanes)(key != 0.0f));
            if (!any((IntLanes)(lifted != lifted))) return with_zero(lifted, key);
        }
        return by_cells(key);
    }

    FloatLanes sum(FloatLanes a, FloatLanes b) const { return of(exact_sum(a, b)); }

    // Rounds the sum of two values of the table. If values have at most 11 digits and float32 rounds their sum, the
    // smaller value adds less than a quarter of the distance from the larger one to the nearest step.
    FloatLanes sum_of_values(FloatLanes a, FloatLanes b) const {
        if (uses_lifts_ && is_short_) {
            const FloatLanes near = a + b, lift = lift_of(near);
            const FloatLanes lifted = some((near + lift) - lift, (IntLanes)(near != 0.0f));
            if (!any((IntLanes)(lifted != lifted))) return with_zero(lifted, near);
        }
        return sum(a, b);
    }

    // Rounds a * b once, with a fused addition. The lift is chosen by the float32 nearest to the product.
    FloatLanes product(FloatLanes a, FloatLanes b) const {
        if (has_fma && uses_lifts_) {
            const FloatLanes near = a * b, lift = lift_of(near);
            const IntLanes is_some = (IntLanes)(near != 0.0f) | ((IntLanes)(a != 0.0f) & (IntLanes)(b != 0.0f));
            const FloatLanes lifted = some(multiply_add(a, b, lift) - lift, is_some);
            if (!any((IntLanes)(lifted != lifted))) return with_zero(lifted, near);
        }
        return by_cells(exact_product(a, b));
    }

private:
    Table t_;
    bool uses_lifts_, is_short_;
    i32 first_;
    IntLanes signed_zero_;

    FloatLanes by_cells(FloatLanes key) const {
        const IntLanes side = t_.by_octave ? sides_of<true>(key, t_) : sides_of<false>(key, t_);
        return (FloatLanes)gather(t_.values, side);
    }
    static FloatLanes some(FloatLanes x, IntLanes mask) { return (FloatLanes)((IntLanes)x & mask); }
    FloatLanes with_zero(FloatLanes x, FloatLanes sign) const {
        return (FloatLanes)((IntLanes)x | ((IntLanes)sign & signed_zero_));
    }

#if defined(__AVX512F__)
    __m512 window_[4];

    FloatLanes lift_of(FloatLanes key) const {
        const UintLanes binade = (((UintLanes)key & 0x7fffffffu) + 0x7fffffu) >> 23;
        const __m512i at = _mm512_min_epu32((__m512i)(binade - static_cast<u32>(first_)), _mm512_set1_epi32(63));
        const __m512 low = _mm512_permutex2var_ps(window_[0], at, window_[1]);
        const __m512 high = _mm512_permutex2var_ps(window_[2], at, window_[3]);
        return (FloatLanes)_mm512_mask_mov_ps(low, _mm512_cmpgt_epi32_mask(at, _mm512_set1_epi32(31)), high);
    }
#else
    FloatLanes lift_of(FloatLanes key) const {
        const UintLanes binade = (((UintLanes)key & 0x7fffffffu) + 0x7fffffu) >> 23;
        return (FloatLanes)gather(t_.lifts + lift_binades, (IntLanes)binade);
    }
#endif
};

// ---- sums ----------------------------------------------------------------------------------------------------------

constexpr int registers_per_pass = 4;  // registers that are rounded independently

// Computes acc = Q(acc + g), or Kahan's version. is_value: g is a value of the table.
template <bool kahan, bool is_value>
CFP_FN void add_lanes(const FloatLanes* g, FloatLanes* acc, FloatLanes* c, const LaneRounder& to) {
    if (!kahan) {
        for (int v = 0; v < registers_per_pass; ++v) acc[v] = is_value ? to.sum_of_values(g[v], acc[v]) : to.sum(g[v], acc[v]);
        return;
    }
    FloatLanes y[registers_per_pass], t[registers_per_pass];
    for (int v = 0; v < registers_per_pass; ++v) y[v] = is_value ? to.sum_of_values(g[v], -c[v]) : to.sum(g[v], -c[v]);
    for (int v = 0; v < registers_per_pass; ++v) t[v] = to.sum_of_values(acc[v], y[v]);
    for (int v = 0; v < registers_per_pass; ++v) c[v] = to.sum_of_values(t[v], -acc[v]);
    for (int v = 0; v < registers_per_pass; ++v) {
        const IntLanes finite = (IntLanes)(((IntLanes)t[v] & 0x7fffffff) < 0x7f800000);
        c[v] = (FloatLanes)((IntLanes)to.sum_of_values(c[v], -y[v]) & finite);
        acc[v] = t[v];
    }
}

// n is at most the size of acc and c, which is a multiple of the number of elements per pass.
template <bool kahan> void add_all(const float* g, float* acc, float* c, int64_t n, const LaneRounder& to) {
    for (int64_t i = 0; i < n; i += registers_per_pass * lanes) {
        FloatLanes term[registers_per_pass] = {}, sum[registers_per_pass], lost[registers_per_pass];
        for (int v = 0; v < registers_per_pass; ++v) {
            const int64_t at = i + v * lanes;
            if (at < n) term[v] = load_partial(g + at, n - at);
            sum[v] = load<FloatLanes>(acc + at);
            if (kahan) lost[v] = load<FloatLanes>(c + at);
        }
        add_lanes<kahan, false>(term, sum, lost, to);
        for (int v = 0; v < registers_per_pass; ++v) {
            store(acc + i + v * lanes, sum[v]);
            if (kahan) store(c + i + v * lanes, lost[v]);
        }
    }
}

// ---- products ------------------------------------------------------------------------------------------------------

// Computes acc = Q(acc + Q(a_k b_k)), or Kahan's version, for one row of a and a panel of b.
template <bool kahan> void table_row(const float* a, const float* b_Kx64, float* out, int64_t K, const LaneRounder& to) {
    for (int column = 0; column < panel; column += registers_per_pass * lanes) {
        FloatLanes acc[registers_per_pass] = {}, c[registers_per_pass] = {}, term[registers_per_pass];
        for (int64_t k = 0; k < K; ++k) {
            const FloatLanes left = a[k] - FloatLanes{};
            for (int v = 0; v < registers_per_pass; ++v)
                term[v] = to.product(left, load<FloatLanes>(b_Kx64 + k * panel + column + v * lanes));
            add_lanes<kahan, true>(term, acc, c, to);
        }
        for (int v = 0; v < registers_per_pass; ++v) store(out + column + v * lanes, acc[v]);
    }
}

// Multiplies rows begin to end - 1 of a (MxK) by b (KxN). `buffer` has room for K * 64 values.
void table_matmul_range(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                        const Rule& rule, bool kahan, float* buffer) {
    const LaneRounder to(open_table(rule.nearest));
    float row[panel];
    for (int64_t column = 0; column < N; column += panel) {
        const size_t width = static_cast<size_t>(smaller(int64_t(panel), N - column));
        for (int64_t k = 0; k < K; ++k) {
            std::memset(buffer + k * panel, 0, panel * sizeof(float));
            std::memcpy(buffer + k * panel, b + k * N + column, width * sizeof(float));
        }
        for (int64_t i = begin; i < end; ++i) {
            (kahan ? table_row<true> : table_row<false>)(a + i * K, buffer, row, K, to);
            std::memcpy(out + i * N + column, row, width * sizeof(float));
        }
    }
}

}  // namespace
}  // namespace custom_fp
