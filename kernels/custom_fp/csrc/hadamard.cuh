// The Hadamard transform on a GPU, which hadamard.h defines. Part of custom_fp.cu.
//
// A thread transforms blocks of up to 16 values in registers. For larger blocks, a thread block processes hadamard_tile
// values of adjacent blocks at a time in shared memory. It computes up to four distances in registers before it
// continues with the next four. A tensor (outer, length, inner) is divided into blocks along the middle dimension, so
// the values of a block have a stride of `inner`. Values after the last whole block are not changed.

constexpr int hadamard_tile = 4096;

struct HadamardBlocks {
    i64 length, inner, per_length;
    int size;
    bool is_dense;  // contiguous in memory

    CFP_MEMBER HadamardBlocks(i64 length, i64 inner, int size)
        : length(length), inner(inner), per_length(length / size), size(size), is_dense(inner == 1 && length % size == 0) {}

    CFP_MEMBER i64 first(i64 number) const {
        if (is_dense) return number * size;
        const i64 block = number / inner, plane = block / per_length;
        return (plane * length + (block - plane * per_length) * size) * inner + (number - block * inner);
    }
};

CFP_FN float flipped(float x, u32 negative) { return from_bits(to_bits(x) ^ negative << 31); }

// signs: 1 if value j has a negative sign, and else 0. before, after: whether signs are applied first or last.
template <int size>
CFP_FN void hadamard_in_registers(const float* x, float* out, i64 all, const HadamardBlocks& blocks, const u8* signs,
                                  bool before, bool after, float scale) {
    const bool wide = blocks.is_dense && size % 4 == 0 && aligned(x) && aligned(out);
    u32 flips = 0;
#pragma unroll
    for (int j = 0; j < size; ++j) flips |= static_cast<u32>(signs[j]) << j;
    const u32 first_flips = before ? flips : 0, last_flips = after ? flips : 0;
    for (i64 number = thread_index(); number < all; number += thread_count()) {
        const i64 first = blocks.first(number);
        float v[size];
        if (wide) {
#pragma unroll
            for (int j = 0; j < size / 4; ++j) load4(x + first, 4 * j, size, true, v + 4 * j);
        } else {
#pragma unroll
            for (int j = 0; j < size; ++j) v[j] = x[first + j * blocks.inner];
        }
#pragma unroll
        for (int j = 0; j < size; ++j) v[j] = flipped(v[j], first_flips >> j & 1);
        butterflies<size>(v);
#pragma unroll
        for (int j = 0; j < size; ++j) v[j] = canonical(flipped(v[j] * scale, last_flips >> j & 1));
        if (wide) {
#pragma unroll
            for (int j = 0; j < size / 4; ++j) store4(out + first, 4 * j, size, true, v + 4 * j);
        } else {
#pragma unroll
            for (int j = 0; j < size; ++j) out[first + j * blocks.inner] = v[j];
        }
    }
}

// Returns the position of a value in shared memory. It avoids bank conflicts of threads that read with a distance of
// 16.
CFP_FN int hadamard_slot(int e) { return e + e / 32; }

// Computes the distances `apart`, 2 apart, and so on to values / 2 * apart, for `n` values in shared memory.
template <int values> CFP_FN void hadamard_pass(float* shared, int n, int apart) {
    for (int group = threadIdx.x; group < n / values; group += blockDim.x) {
        const int low = group / apart * values * apart + group % apart;
        float v[values];
#pragma unroll
        for (int j = 0; j < values; ++j) v[j] = shared[hadamard_slot(low + j * apart)];
        butterflies<values>(v);
#pragma unroll
        for (int j = 0; j < values; ++j) shared[hadamard_slot(low + j * apart)] = v[j];
    }
    __syncthreads();
}

CFP_FN void hadamard_in_tiles(const float* x, float* out, i64 all, const HadamardBlocks& blocks, const u8* signs, bool before,
                              bool after, float scale, float* v) {
    const int size = blocks.size, some = hadamard_tile / size, thread = threadIdx.x, step = blockDim.x;
    for (i64 first = static_cast<i64>(blockIdx.x) * some; first < all; first += static_cast<i64>(gridDim.x) * some) {
        const int here = all - first < some ? static_cast<int>(all - first) : some, n = here * size;
        // Computes the position of value j of block t. Adjacent threads read adjacent values.
        const auto place = [&](int e, int& slot, int& j) {
            if (blocks.is_dense) {
                j = e & (size - 1), slot = hadamard_slot(e);
                return first * size + e;
            }
            const int t = blocks.inner == 1 ? e / size : e % here;
            j = blocks.inner == 1 ? e % size : e / here, slot = hadamard_slot(t * size + j);
            return blocks.first(first + t) + j * blocks.inner;
        };
        for (int e = thread, slot, j; e < n; e += step) {
            const i64 at = place(e, slot, j);
            v[slot] = flipped(x[at], before ? signs[j] : 0);
        }
        __syncthreads();
        int apart = 1;
        for (; apart * 16 <= size; apart *= 16) hadamard_pass<16>(v, n, apart);
        if (apart * 8 == size) hadamard_pass<8>(v, n, apart);
        if (apart * 4 == size) hadamard_pass<4>(v, n, apart);
        if (apart * 2 == size) hadamard_pass<2>(v, n, apart);
        for (int e = thread, slot, j; e < n; e += step) {
            const i64 at = place(e, slot, j);
            out[at] = canonical(flipped(v[slot] * scale, after ? signs[j] : 0));
        }
        __syncthreads();
    }
}

extern "C" __global__ void hadamard(const float* x, float* out, i64 outer, i64 length, i64 inner, int size, int inverse,
                                    int has_signs, u64 seed) {
    __shared__ float v[hadamard_tile + hadamard_tile / 32];
    __shared__ u8 signs[hadamard_tile];
    const HadamardBlocks blocks(length, inner, size);
    const i64 all = outer * blocks.per_length * inner;
    const bool before = has_signs && !inverse, after = has_signs && inverse;
    int k = 0;
    while (1 << k < size) ++k;
    const float scale = hadamard_scale(k);
    for (int j = threadIdx.x; j < size; j += blockDim.x)
        signs[j] = has_signs ? static_cast<u8>(hadamard_sign(static_cast<u64>(j), seed) >> 31) : 0;
    __syncthreads();
    switch (size) {
        case 1: return hadamard_in_registers<1>(x, out, all, blocks, signs, before, after, scale);
        case 2: return hadamard_in_registers<2>(x, out, all, blocks, signs, before, after, scale);
        case 4: return hadamard_in_registers<4>(x, out, all, blocks, signs, before, after, scale);
        case 8: return hadamard_in_registers<8>(x, out, all, blocks, signs, before, after, scale);
        case 16: return hadamard_in_registers<16>(x, out, all, blocks, signs, before, after, scale);
        default: hadamard_in_tiles(x, out, all, blocks, signs, before, after, scale, v);
    }
}
