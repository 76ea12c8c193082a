// CPU matrix products of an Accumulator. One panel of 64 columns of b is copied into a dense buffer and serves all rows.
#pragma once

#include <algorithm>
#include <memory>

#include "accumulators/cpu_aligned.h"

namespace custom_fp {
namespace {

void dot_rows(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
              int64_t first_row, const Summing& summing) {
    const int64_t wide = (N + random_row - 1) / random_row * random_row;
    std::vector<float> columns(static_cast<size_t>(K) * panel);
    std::unique_ptr<AlignedRows> aligned;
    if (AlignedRows::allowed(summing)) aligned = std::make_unique<AlignedRows>(summing, K);
    with_mode(summing, [&](const auto& dot) {
        float row[panel];
        for (int64_t column = 0; column < N; column += panel) {
            const int64_t width = std::min<int64_t>(N - column, panel);
            for (int64_t k = 0; k < K; ++k) {
                std::memset(columns.data() + k * panel, 0, panel * sizeof(float));
                std::memcpy(columns.data() + k * panel, b + k * N + column, static_cast<size_t>(width) * sizeof(float));
            }
            if (aligned) aligned->columns(columns.data());
            for (int64_t i = begin; i < end; ++i) {
                const float* a_row = a + i * K;
                if (!aligned || !aligned->row(a_row, columns.data(), row)) {
                    const u64 element = static_cast<u64>((first_row + i) * wide + column);
                    for (int64_t j = 0; j < width; ++j)
                        row[j] = dot(a_row, 1, columns.data() + j, panel, K, element + static_cast<u64>(j));
                }
                std::memcpy(out + i * N + column, row, static_cast<size_t>(width) * sizeof(float));
            }
        }
    });
}

}  // namespace
}  // namespace custom_fp
