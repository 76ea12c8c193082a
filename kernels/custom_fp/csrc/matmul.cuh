// The CUDA matrix product. Part of custom_fp.cu, whose Arithmetic it uses.
#pragma once

struct MatmulTiles {
    static constexpr int tile = 64, depth = 16;
    float a[depth][tile + 4], b[depth][tile + 4];
};

// out[z] (MxN) = a[z] (MxK) b[z] (KxN), with every partial sum rounded, in ascending order of k. A block of 16 x 16
// threads computes 64 x 64 results, 4 x 4 per thread, from tiles of 16 k in shared memory. a_step and b_step are the
// numbers of elements from one matrix of the batch to the next, or 0 if the batch shares one matrix.
template <bool kahan, class Any>
CFP_FN void matmul(const Any& arithmetic, MatmulTiles& tiles, const float* a, const float* b, float* out, i64 M, i64 K, i64 N, i64 a_step,
                   i64 b_step, bool is_plain) {
    constexpr int tile = MatmulTiles::tile, depth = MatmulTiles::depth;
    const u32 no_random[4] = {0, 0, 0, 0};
    const i64 columns = (N + tile - 1) / tile;
    const i64 row = blockIdx.x / columns * tile, column = blockIdx.x % columns * tile;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    a += blockIdx.y * a_step;
    b += blockIdx.y * b_step;
    out += static_cast<i64>(blockIdx.y) * M * N;
    float acc[4][4] = {}, c[4][4] = {};
    for (i64 start = 0; start < K; start += depth) {
        for (int t = threadIdx.x; t < depth * tile; t += 256) {
            const int k = t % depth, i = t / depth;
            tiles.a[k][i] = row + i < M && start + k < K ? a[(row + i) * K + start + k] : 0.0f;
        }
        for (int t = threadIdx.x; t < depth * tile; t += 256) {
            const int k = t / tile, j = t % tile;
            tiles.b[k][j] = column + j < N && start + k < K ? b[(start + k) * N + column + j] : 0.0f;
        }
        __syncthreads();
        const int deep = K - start < depth ? static_cast<int>(K - start) : depth;
        for (int k = 0; k < deep; ++k)
#pragma unroll  // otherwise, acc and c would be in local memory
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float term = arithmetic.product(tiles.a[k][4 * y + i], tiles.b[k][x + 16 * j]);
                    arithmetic.add(acc[i][j], c[i][j], term, kahan, true, no_random);
                }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j)
            if (row + 4 * y + i < M && column + x + 16 * j < N)
                out[(row + 4 * y + i) * N + column + x + 16 * j] = canonical(is_plain ? acc[i][j] : acc[i][j] + 0.0f);
}

#define CFP_MATMUL(name, kahan)                                                                                       \
    extern "C" __global__ void name(const float* a, const float* b, float* out, i64 M, i64 K, i64 N, i64 a_step,      \
                                    i64 b_step, u32 packed_spec) {                                                    \
        __shared__ MatmulTiles tiles;                                                                                 \
        const Spec spec = unpack_spec(packed_spec);                                                                   \
        with_arithmetic<nearest_even>(spec, RoundingMode(nearest_even << 8 | infinity), [&](const auto& arithmetic) {          \
            matmul<kahan>(arithmetic, tiles, a, b, out, M, K, N, a_step, b_step, spec.is_plain != 0);                 \
        });                                                                                                           \
    }
CFP_MATMUL(matmul_plain, false)
CFP_MATMUL(matmul_kahan, true)
