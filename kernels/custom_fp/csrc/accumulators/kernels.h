// The kernels for accumulators in the build for one instruction set. They run in the calling thread.
#pragma once

#include <cstdint>

#include "accumulators/dot.h"

namespace custom_fp {

// The fast paths that may be used, as a sum: aligned blocks (cpu_blocks.h) and panels (cpu_panel.h).
enum FastPaths { aligned_blocks = 1, panels_of_columns = 2 };

struct AccumulatorKernels {
    // Multiplies rows begin to end - 1 of a (MxK) by b (KxN), both dense. first_row: the index of row 0 in the whole
    // batch. The scales of a start at row 0, and those of b at column 0. They are null if there are no scales. paths:
    // the sum of the allowed FastPaths, which all return the same bits.
    void (*dot)(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                int64_t first_row, const Scales& scales, const Summing& summing, int paths);
    // Computes the elements begin to end - 1 of the sums of `count` tensors (fused_sum.h). width < 0: exact sums.
    void (*fused_sum)(const float* const* x, int count, double* out, int64_t begin, int64_t end, int width, int emin);
};

}  // namespace custom_fp
