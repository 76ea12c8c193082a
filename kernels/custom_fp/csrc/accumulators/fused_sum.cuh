// Sums that are rounded once. A thread adds one element of `tensors` arrays of n elements. width < 0: exact sums. Part
// of custom_fp.cu.
#pragma once

#include "accumulators/fused_sum.h"

extern "C" __global__ void fused_sum(Addresses x, int tensors, double* out, i64 n, int width, int emin) {
    for (i64 i = thread_index(); i < n; i += thread_count()) {
        const auto value = [&](int r) { return x.of<float>(r)[i]; };
        out[i] = width < 0 ? exact_total(value, tensors) : aligned_total(value, tensors, width, emin);
    }
}
