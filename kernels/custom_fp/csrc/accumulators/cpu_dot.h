// The CPU matrix products of an Accumulator. A panel of 64 columns of b is copied into a dense buffer and used for all
// rows.
//
// There are two fast paths: aligned blocks (cpu_blocks.h) and sums in panels (cpu_panel.h and cpu_aligned.h). dot.h
// computes all results that the fast paths cannot compute.
#pragma once

#include <algorithm>
#include <memory>
#include <tuple>
#include <type_traits>

#include "accumulators/cpu_aligned.h"
#include "accumulators/cpu_blocks.h"
#include "accumulators/cpu_panel.h"
#include "accumulators/kernels.h"

namespace custom_fp {
namespace {

// The fast paths are not worthwhile on x86-64 without AVX2, which is only a fallback.
#if defined(__x86_64__) && !defined(__AVX2__)
constexpr bool has_fast_paths = false;
#else
constexpr bool has_fast_paths = true;
#endif

constexpr int64_t prepared = 1 << 20;  // number of values of a that are prepared together for all panels
constexpr int most_abreast = AlignedBlocks<FloatLanes>::abreast;

// The aligned blocks of the current rows and columns, which are prepared when they are first needed.
template <class V> class PreparedBlocks {
    std::unique_ptr<AlignedBlocks<V>> blocks_;
    bool has_rows_ = false, has_columns_ = false;

public:
    PreparedBlocks(const Summing& s, int64_t depth, int paths) {
        if constexpr (has_fast_paths)
            if (paths & aligned_blocks && is_usual(s) && AlignedBlocks<V>::allowed(s)) blocks_ = std::make_unique<AlignedBlocks<V>>(s, depth);
    }
    void new_rows() { has_rows_ = false; }
    void new_columns() { has_columns_ = false; }
    int products([[maybe_unused]] const float* a_MxK, [[maybe_unused]] int64_t count,
                 [[maybe_unused]] const float* b_Kx64, [[maybe_unused]] int64_t i, [[maybe_unused]] float* out_Rx64) {
        if constexpr (has_fast_paths) {
            if (!blocks_) return 0;
            if (!has_columns_) blocks_->columns(b_Kx64);
            if (!has_rows_) blocks_->rows(a_MxK, count);
            has_rows_ = has_columns_ = true;
            return blocks_->products(i, out_Rx64);
        }
        return 0;
    }
};

// Computes rows with the first path that is correct for them.
template <Mode mode> class Rows {
    template <class Sums> using Panels = std::unique_ptr<PanelRows<Sums>>;
    // Sums in registers of floats and of doubles. Doubles are for exact products in sums of more digits, and for
    // rounding modes whose random bits follow after many digits.
    template <class... Sums>
    using PanelsOf = std::tuple<Panels<FloatSums>, Panels<FlushedSums>, Panels<FusedSums>, Panels<ExactSums<mode, false>>,
                                Panels<ExactSums<mode, true>>, Panels<Sums>...>;
    typedef std::conditional_t<mode == nearest_even,
                               PanelsOf<NearSums<FloatLanes, false>, NearSums<FloatLanes, true>, NearSums<DoubleLanes, true>>,
                               PanelsOf<CutSums<FloatLanes, mode == stochastic>, CutSums<DoubleLanes, true>>>
        FastPanels;
    const Summing& s_;
    const int64_t depth_;
    const Dot<mode> dot_;
    const float *a_MxK_ = nullptr, *b_Kx64_ = nullptr;
    int64_t count_ = 0;
    PreparedBlocks<FloatLanes> few_digits_;
    PreparedBlocks<DoubleLanes> many_digits_;
    // The panels, in the order in which they are tried. The general one is always correct.
    std::conditional_t<has_fast_paths, FastPanels, std::tuple<>> panels_;
    Panels<GeneralSums<mode>> general_;
    std::unique_ptr<AlignedPanel<mode>> aligned_;
    bool has_columns_ = false;  // whether the panels have the current columns
    ValueRange columns_;

    template <class Rows> static void make(std::unique_ptr<Rows>& rows, const Summing& s) {
        if (Rows::allowed(s)) rows = std::make_unique<Rows>(s);
    }
    template <class Call> void each_panel(const Call& call) {
        std::apply([&](auto&... rows) { ((rows ? call(*rows) : void()), ...); }, panels_);
        if (general_) call(*general_);
    }

public:
    Rows(const Summing& s, int64_t depth, int paths)
        : s_(s), depth_(depth), dot_(s), few_digits_(s, depth, paths), many_digits_(s, depth, paths) {
        if (!(paths & panels_of_columns)) return;
        std::apply([&](auto&... rows) { (make(rows, s), ...); }, panels_);
        make(general_, s);
        if (has_fast_paths) make(aligned_, s);
    }

    // Sets the rows and the columns for `products`.
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

    // Computes 64 results of row i, and possibly of some rows after it. Returns the number of rows. `element` is the
    // index of the first result, for its random words.
    int products(int64_t i, float* out_Rx64, u64 element, const Scales& scales, int64_t width) {
        int done = few_digits_.products(a_MxK_, count_, b_Kx64_, i, out_Rx64);
        if (!done) done = many_digits_.products(a_MxK_, count_, b_Kx64_, i, out_Rx64);
        if (done) return done;
        const float* a = a_MxK_ + i * depth_;
        if (!row_of_panel(a, out_Rx64, element, scales, width))
            for (int64_t j = 0; j < width; ++j)
                out_Rx64[j] = dot_(a, 1, b_Kx64_ + j, panel, depth_, element + static_cast<u64>(j), scales.from(0, j));
        return 1;
    }

private:
    // Computes a row with a panel. Returns false if no panel can compute it.
    bool row_of_panel(const float* a, float* out, u64 element, const Scales& scales, int64_t width) {
        if (!has_columns_) {
            columns_ = value_range(b_Kx64_, depth_ * panel);
            each_panel([&](auto& rows) { rows.new_columns(); });
            if (aligned_) aligned_->new_columns();
            has_columns_ = true;
        }
        const ValueRange range = value_range(a, depth_);
        if (aligned_) return aligned_->takes(range, columns_) && aligned_->row(a, b_Kx64_, out, depth_, scales, width);
        bool tried = false, done = false;
        const auto attempt = [&](auto& rows) {
            if (tried || !rows || !rows->takes(range, columns_, depth_)) return;
            tried = true;
            done = rows->row(a, b_Kx64_, out, depth_, element);
        };
        std::apply([&](auto&... rows) { (attempt(rows), ...); }, panels_);
        return done || (general_ && general_->row(a, b_Kx64_, out, depth_, element));
    }
};

template <Mode mode>
void dot_rows_by(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                 int64_t first_row, const Scales& scales, const Summing& summing, int paths) {
    const int64_t parts = summing.scales ? (K + summing.scales - 1) / summing.scales : 0;  // number of scales of a row
    const int64_t wide = (N + random_row - 1) / random_row * random_row;
    std::vector<float> columns(static_cast<size_t>(K) * panel);
    Rows<mode> rows(summing, K, paths);
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
              int64_t first_row, const Scales& scales, const Summing& summing, int paths) {
    const auto by = [&](auto run) { run(a, b, out, begin, end, K, N, first_row, scales, summing, paths); };
    switch (template_of(summing.mode, summing.overflow, true)) {
        case nearest_even: return by(dot_rows_by<nearest_even>);
        case toward_zero: return by(dot_rows_by<toward_zero>);
        case stochastic: return by(dot_rows_by<stochastic>);
        default: return by(dot_rows_by<otherwise>);
    }
}

}  // namespace
}  // namespace custom_fp
