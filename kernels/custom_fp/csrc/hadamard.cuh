// The Hadamard transform on a GPU; hadamard.h says what is computed. Part of custom_fp.cu.
//
// A thread block transforms hadamard_tile values at a time, in shared memory: as many neighbouring blocks of `size` as
// that holds. Legend: (outer, length, inner), in blocks along the middle, whose values lie `inner` apart. What is left of
// a length is not touched.

constexpr int hadamard_tile = 4096;

extern "C" __global__ void hadamard(const float* x, float* out, i64 outer, i64 length, i64 inner, int size, int inverse,
                                    int has_signs, u64 seed) {
    __shared__ float v[hadamard_tile];
    const i64 per_length = length / size, all = outer * per_length * inner;
    const int some = hadamard_tile / size, thread = threadIdx.x, step = blockDim.x;
    int k = 0;
    while (1 << k < size) ++k;
    const float scale = hadamard_scale(k);
    for (i64 first = static_cast<i64>(blockIdx.x) * some; first < all; first += static_cast<i64>(gridDim.x) * some) {
        const int here = all - first < some ? static_cast<int>(all - first) : some;
        // value j of transform t, so that neighbouring threads read neighbouring values
        const auto place = [&](int e, int& t, int& j) {
            t = inner == 1 ? e / size : e % here;
            j = inner == 1 ? e % size : e / here;
            const i64 number = first + t, block = number / inner, column = number - block * inner;
            const i64 plane = block / per_length, row = (block - plane * per_length) * size + j;
            return (plane * length + row) * inner + column;
        };
        for (int e = thread, t, j; e < here * size; e += step) {
            const i64 at = place(e, t, j);
            const u32 sign = has_signs && !inverse ? hadamard_sign(static_cast<u64>(j), seed) : 0;
            v[t * size + j] = from_bits(to_bits(x[at]) ^ sign);
        }
        __syncthreads();
        for (int apart = 1; apart < size; apart *= 2) {
            for (int pair = thread; pair < here * (size / 2); pair += step) {
                const int low = pair / apart * 2 * apart + pair % apart;
                const float a = v[low], b = v[low + apart];
                v[low] = a + b;
                v[low + apart] = a - b;
            }
            __syncthreads();
        }
        for (int e = thread, t, j; e < here * size; e += step) {
            const i64 at = place(e, t, j);
            const u32 sign = has_signs && inverse ? hadamard_sign(static_cast<u64>(j), seed) : 0;
            out[at] = canonical(from_bits(to_bits(v[t * size + j] * scale) ^ sign));
        }
        __syncthreads();
    }
}
