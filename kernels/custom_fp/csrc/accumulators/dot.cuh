// The matrix products of an Accumulator: out[z] (MxN) = a[z] (MxK) b[z] (KxN). Each thread computes one result at a
// time. a_step and b_step are the numbers of elements from one matrix of the batch to the next, or 0 if the batch
// shares one matrix. Part of custom_fp.cu.
#pragma once

template <Mode mode>
CFP_FN void dot_products(const float* a, const float* b, float* out, i64 batch, i64 M, i64 K, i64 N, i64 a_step,
                         i64 b_step, const Scales& scales, const Summing& summing) {
    const Dot<mode> dot(summing);
    const i64 parts = summing.scales ? (K + summing.scales - 1) / summing.scales : 0;  // number of scales of a row
    const i64 wide = (N + random_row - 1) / random_row * random_row;
    for (i64 at = thread_index(); at < batch * M * N; at += thread_count()) {
        const i64 row = at / N, column = at % N, z = row / M;  // row: among all rows of the batch
        const float *a_row = a + z * a_step + (row - z * M) * K, *b_column = b + z * b_step + column;
        const Scales of_row = scales.from((a_step ? row : row - z * M) * parts, (b_step ? z * parts * N : 0) + column);
        out[at] = dot(a_row, 1, b_column, N, K, static_cast<u64>(row * wide + column), of_row);
    }
}

#define CFP_DOT(which)                                                                                               \
    extern "C" __global__ void dot_##which(                                                                          \
        const float* a, const float* b, float* out, i64 batch, i64 M, i64 K, i64 N, i64 a_step, i64 b_step,          \
        const i32* a_scales, const i32* b_scales, const i32* sum_table, const i32* product_table,                    \
        const i32* total_table, u32 sum, u32 product, u32 total, int order, int block, int width, int emin_a,        \
        int emin_b, int kahan, i64 chunk, int flush, int join, int join_acc, int split, int group, int scales,       \
        int packed_rounding, u64 seed, u32 mask) {                                                                        \
        const RoundingMode rounding(packed_rounding);                                                                                   \
        const Summing summing = {sum,    product, total, order, block, width,    emin_a,                             \
                                 emin_b, kahan,   chunk, flush, join,  join_acc, split, group, scales,               \
                                 sum_table, product_table, total_table, rounding.mode, rounding.overflow, seed, mask};         \
        dot_products<which>(a, b, out, batch, M, K, N, a_step, b_step, {a_scales, b_scales, N}, summing);            \
    }
CFP_FOR_EACH_MODE(CFP_DOT)
