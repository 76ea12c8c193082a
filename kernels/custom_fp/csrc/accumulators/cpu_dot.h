// CPU matrix products of an Accumulator. One panel of 64 columns of b is copied into a dense buffer and serves all rows.
#pragma once

#include <algorithm>
#include <memory>
#include <tuple>
#include <type_traits>

#include "accumulators/cpu_aligned.h"
#include "accumulators/cpu_anchored.h"
#include "accumulators/cpu_exact.h"
#include "accumulators/cpu_panel.h"

namespace custom_fp {
namespace {

constexpr int64_t prepared = 1 << 20;  // values of a, for all panels
constexpr int most_abreast = AnchoredRows<FloatLanes>::abreast;

// AnchoredRows of the batch of rows and the columns at work, prepared when they are first asked for.
template <class V> class Anchored {
    std::unique_ptr<AnchoredRows<V>> rows_;
    bool has_rows_ = false, has_columns_ = false;

public:
    Anchored(const Summing& s, int64_t depth) {
        if (is_usual(s) && AnchoredRows<V>::allowed(s)) rows_ = std::make_unique<AnchoredRows<V>>(s, depth);
    }
    void new_rows() { has_rows_ = false; }
    void new_columns() { has_columns_ = false; }
    int products(const float* a_MxK, int64_t count, const float* b_Kx64, int64_t i, float* out_Rx64) {
        if (!rows_) return 0;
        if (!has_columns_) rows_->columns(b_Kx64);
        if (!has_rows_) rows_->rows(a_MxK, count);
        has_rows_ = has_columns_ = true;
        return rows_->products(i, out_Rx64);
    }
};

// What a row is tried by, before dot.h does it result by result.
template <Mode mode> class Rows {
    template <class Sums> using Panels = std::unique_ptr<PanelRows<Sums>>;
    template <class V> using Quick = std::conditional_t<mode == nearest_even, NearSums<V, false>, CutSums<V, mode == stochastic>>;
    template <class V> using QuickOfExact = std::conditional_t<mode == nearest_even, NearSums<V, true>, Quick<V>>;
    const Summing& s_;
    const int64_t depth_;
    const Dot<mode> dot_;
    const float *a_MxK_ = nullptr, *b_Kx64_ = nullptr;
    int64_t count_ = 0;
    Anchored<FloatLanes> few_digits_;
    Anchored<DoubleLanes> many_digits_;
    bool has_columns_ = false;  // of what follows
    Facts columns_;
    std::unique_ptr<AlignedRows> aligned_;
    std::unique_ptr<ExactRows<mode>> exact_;
    // in this order
    std::tuple<Panels<FloatSums>, Panels<Quick<FloatLanes>>, Panels<QuickOfExact<FloatLanes>>, Panels<Quick<DoubleLanes>>,
               Panels<QuickOfExact<DoubleLanes>>> quick_;
    Panels<GeneralSums<mode>> panels_;

    template <class Rows> static void make(std::unique_ptr<Rows>& rows, const Summing& s) {
        if (Rows::allowed(s)) rows = std::make_unique<Rows>(s);
    }

public:
    Rows(const Summing& s, int64_t depth)
        : s_(s), depth_(depth), dot_(s), few_digits_(s, depth), many_digits_(s, depth) {
        if (ExactRows<mode>::allowed(s)) exact_ = std::make_unique<ExactRows<mode>>(s, depth);
        if (!is_usual(s)) return;
        if (AlignedRows::allowed(s)) aligned_ = std::make_unique<AlignedRows>(s, depth);
        std::apply([&](auto&... rows) { (make(rows, s), ...); }, quick_);
        make(panels_, s);
    }

    // Of both the last call counts.
    void rows(const float* a_MxK, int64_t count) {
        a_MxK_ = a_MxK;
        count_ = count;
        few_digits_.new_rows();
        many_digits_.new_rows();
    }
    void columns(const float* b_Kx64) {
        b_Kx64_ = b_Kx64;
        has_columns_ = false;
        few_digits_.new_columns();
        many_digits_.new_columns();
    }

    // 64 results each of row i and perhaps of some behind it: of how many. element: the first's among random words
    int products(int64_t i, float* out_Rx64, u64 element, const Scales& scales, int64_t width) {
        int done = few_digits_.products(a_MxK_, count_, b_Kx64_, i, out_Rx64);
        if (!done) done = many_digits_.products(a_MxK_, count_, b_Kx64_, i, out_Rx64);
        if (done) return done;
        row(a_MxK_ + i * depth_, b_Kx64_, out_Rx64, element, scales, width);
        return 1;
    }

private:
    void row(const float* a, const float* b_Kx64, float* out, u64 element, const Scales& scales, int64_t width) {
        if (!has_columns_) {
            if (aligned_) aligned_->columns(b_Kx64);
            if (exact_) exact_->columns(b_Kx64);
            if (panels_) columns_ = facts_of(b_Kx64, depth_ * panel);
            has_columns_ = true;
        }
        if (aligned_ && aligned_->row(a, b_Kx64, out)) return;
        if (exact_ && exact_->row(a, out)) return;
        if (is_usual(s_) && fused_row(s_, a, b_Kx64, out, depth_)) return;
        if (panels_) return by_panels(a, b_Kx64, out, element);
        for (int64_t j = 0; j < width; ++j)
            out[j] = dot_(a, 1, b_Kx64 + j, panel, depth_, element + static_cast<u64>(j), scales.from(0, j));
    }

    void by_panels(const float* a, const float* b_Kx64, float* out, u64 element) {
        const Facts facts = facts_of(a, depth_);
        bool tried = false, done = false;
        const auto attempt = [&](auto& rows) {
            if (tried || !rows || !rows->takes(facts, columns_)) return;
            tried = true;
            done = rows->row(a, b_Kx64, out, depth_, element);
        };
        std::apply([&](auto&... rows) { (attempt(rows), ...); }, quick_);
        if (!done) panels_->row(a, b_Kx64, out, depth_, element);
    }
};

template <Mode mode>
void dot_rows_by(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                 int64_t first_row, const Scales& scales, const Summing& summing) {
    const int64_t parts = summing.scales ? (K + summing.scales - 1) / summing.scales : 0;  // scales of a row
    const int64_t wide = (N + random_row - 1) / random_row * random_row;
    std::vector<float> columns(static_cast<size_t>(K) * panel);
    Rows<mode> rows(summing, K);
    float out_Rx64[most_abreast * panel];
    const int64_t batch = std::max<int64_t>(64, prepared / std::max<int64_t>(1, K));
    for (int64_t first = begin; first < end; first += batch) {
        const int64_t count = std::min(batch, end - first);
        rows.rows(a + first * K, count);
        for (int64_t column = 0; column < N; column += panel) {
            const int64_t width = std::min<int64_t>(N - column, panel);
            for (int64_t k = 0; k < K; ++k) {
                std::memset(columns.data() + k * panel, 0, panel * sizeof(float));
                std::memcpy(columns.data() + k * panel, b + k * N + column, static_cast<size_t>(width) * sizeof(float));
            }
            rows.columns(columns.data());
            for (int64_t i = 0; i < count;) {
                const u64 element = static_cast<u64>((first_row + first + i) * wide + column);
                const int done = rows.products(i, out_Rx64, element, scales.from((first + i) * parts, column), width);
                for (int r = 0; r < done; ++r, ++i)
                    std::memcpy(out + (first + i) * N + column, out_Rx64 + r * panel, static_cast<size_t>(width) * sizeof(float));
            }
        }
    }
}

void dot_rows(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
              int64_t first_row, const Scales& scales, const Summing& summing) {
    const auto by = [&](auto run) { run(a, b, out, begin, end, K, N, first_row, scales, summing); };
    switch (template_of(summing.mode, summing.overflow, true)) {
        case nearest_even: return by(dot_rows_by<nearest_even>);
        case toward_zero: return by(dot_rows_by<toward_zero>);
        case stochastic: return by(dot_rows_by<stochastic>);
        default: return by(dot_rows_by<otherwise>);
    }
}

}  // namespace
}  // namespace custom_fp
