// Sums formed at once, an element a thread; part of custom_fp.cu. x: addresses of `tensors` arrays of n elements each;
// width < 0: exact.
#pragma once

#include "accumulators/at_once.h"

extern "C" __global__ void add_at_once(const float* const* x, int tensors, double* out, i64 n, int width, int emin) {
    for (i64 i = thread_index(); i < n; i += thread_count()) {
        const auto value = [&](int r) { return x[r][i]; };
        out[i] = width < 0 ? exact_total(value, tensors) : aligned_total(value, tensors, width, emin);
    }
}
