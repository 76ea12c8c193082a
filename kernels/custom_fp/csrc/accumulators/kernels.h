// What one instruction set's build of the accumulators' matrix products and sums at once offers, in the calling thread.
#pragma once

#include <cstdint>

#include "accumulators/dot.h"

namespace custom_fp {

struct AccumulatorKernels {
    // Rows begin..end of a (MxK) times b (KxN), both dense; first_row: the number of row 0 among all of the batch. Scales of
    // a are of row 0, those of b of column 0; null where there are none.
    void (*dot)(const float* a, const float* b, float* out, int64_t begin, int64_t end, int64_t K, int64_t N,
                int64_t first_row, const Scales& scales, const Summing& summing);
    // Elements begin..end of the sums of `count` tensors, each formed at once: at_once.h. width < 0: exact
    void (*add_at_once)(const float* const* x, int count, double* out, int64_t begin, int64_t end, int width, int emin);
};

const AccumulatorKernels& accumulators_baseline();
#if defined(CFP_X86)
const AccumulatorKernels& accumulators_avx2();
const AccumulatorKernels& accumulators_avx512();
#endif

}  // namespace custom_fp
