// Sums formed at once, an element a thread; part of custom_fp.cu. x: `tensors` arrays of n elements each;
// width < 0: exact.
#pragma once

#include "accumulators/at_once.h"

extern "C" __global__ void add_at_once(Addresses x, int tensors, double* out, i64 n, int width, int emin) {
    for (i64 i = thread_index(); i < n; i += thread_count()) {
        const auto value = [&](int r) { return x.of<float>(r)[i]; };
        out[i] = width < 0 ? exact_total(value, tensors) : aligned_total(value, tensors, width, emin);
    }
}
