// CUDA kernels for formats that are tables of values, which tabulated_rounding.h defines. Part of custom_fp.cu, whose
// loads, bytes and random bits these kernels use.
//
// `table` is the table for the requested rounding, and `nearest` is the table for nearest_even. Exact numbers are
// floats that were rounded to odd. In the kernels with stochastic rounding, whose names contain `random`, they are
// doubles.

template <class F> CFP_FN void table_quantize(const F* x, float* out, i64 n, const i32* table) {
    const Table t = open_table(table);
    const bool wide = aligned(x) && aligned(out);
    F v[4];
    float result[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, wide, v);
        for (int j = 0; j < 4; ++j) result[j] = value_in(to_odd_float32(v[j]), t, 0);
        store4(out, i, n, wide, result);
    }
}

template <class F>
CFP_FN void table_quantize_randomly(const F* x, float* out, i64 n, const i32* table, u64 seed, u64 index, u32 mask) {
    const Table t = open_table(table);
    for_lanes(n, index, [&](u64 here, u32 lane, i64 first) {
        F v[8];
        u32 random[8];
        load_lane(x, first, n, v);
        draw_lane(random, here, lane, 0, seed, mask);
#pragma unroll
        for (int place = 0; place < 8; ++place) {
            const i64 i = first + 16 * place;
            if (is_index(i, n)) out[i] = value_in(static_cast<double>(v[place]), t, random[place]);
        }
    });
}

#define CFP_TABLE_QUANTIZE(suffix, F)                                                                               \
    extern "C" __global__ void table_quantize_plain_##suffix(const F* x, float* out, i64 n, const i32* table,       \
                                                             const i32* nearest, u64 seed, u64 index, u32 mask) {   \
        table_quantize(x, out, n, table);                                                                           \
    }                                                                                                               \
    extern "C" __global__ void table_quantize_random_##suffix(const F* x, float* out, i64 n, const i32* table,      \
                                                              const i32* nearest, u64 seed, u64 index, u32 mask) {  \
        table_quantize_randomly(x, out, n, table, seed, index, mask);                                               \
    }
CFP_TABLE_QUANTIZE(f32, float)
CFP_TABLE_QUANTIZE(f64, double)

template <class Code> CFP_FN void table_encode(const float* x, Code* codes, i64 n, const i32* nearest) {
    const Table t = open_table(nearest);
    float v[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, aligned(x), v);
        for (int j = 0; j < 4 && i + j < n; ++j) codes[i + j] = static_cast<Code>(code_in(v[j], t, 0));
    }
}
extern "C" __global__ void table_encode_1(const float* x, u8* codes, i64 n, const i32* nearest) {
    table_encode(x, codes, n, nearest);
}
extern "C" __global__ void table_encode_4(const float* x, u32* codes, i64 n, const i32* nearest) {
    table_encode(x, codes, n, nearest);
}

template <class Code> CFP_FN void table_decode(const Code* codes, float* out, i64 n, const i32* nearest) {
    const Table t = open_table(nearest);
    for (i64 i = thread_index(); i < n; i += thread_count()) out[i] = decoded_in(static_cast<u32>(codes[i]), t);
}
extern "C" __global__ void table_decode_1(const u8* codes, float* out, i64 n, const i32* nearest) {
    table_decode(codes, out, n, nearest);
}
extern "C" __global__ void table_decode_4(const u32* codes, float* out, i64 n, const i32* nearest) {
    table_decode(codes, out, n, nearest);
}
extern "C" __global__ void table_decode_8(const u64* codes, float* out, i64 n, const i32* nearest) {
    table_decode(codes, out, n, nearest);
}

template <bool draws>
CFP_FN void table_pack(const float* x, u8* bytes, i64 n, const i32* table, int shift, u64 seed, u64 index, u32 mask) {
    __shared__ Staged<draws, 16> staged;
    const Table t = open_table(table);
    const int k = t.bits;
    const PowerOfTwo power(shift);
    const double wide_power = power_of_two<double>(shift);
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        const i64 i = first + threadIdx.x * 8;
        float v[8];
        u32 codes[8], random[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (draws) draw_block(random, staged.words, index + static_cast<u64>(first), 0, seed, mask);
        load4(x, i, n, aligned(x), v);
        load4(x, i + 4, n, aligned(x), v + 4);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (draws)
                codes[j] = code_in(v[j] * wide_power, t, random[j]);
            else
                codes[j] = code_in(shift ? power.times_to_odd(v[j]) : v[j], t, 0);
            if (i + j >= n) codes[j] = 0;
        }
        join_codes(codes, staged.bytes + threadIdx.x * k, k);
        __syncthreads();
        copy_bytes(bytes + first / 8 * k, staged.bytes, bytes_of_block(first, n, k));
        __syncthreads();
    }
}
extern "C" __global__ void table_pack_plain(const float* x, u8* bytes, i64 n, const i32* table, const i32* nearest,
                                            int shift, u64 seed, u64 index, u32 mask) {
    table_pack<false>(x, bytes, n, table, shift, seed, index, mask);
}
extern "C" __global__ void table_pack_random(const float* x, u8* bytes, i64 n, const i32* table, const i32* nearest,
                                            int shift, u64 seed, u64 index, u32 mask) {
    table_pack<true>(x, bytes, n, table, shift, seed, index, mask);
}

struct DecodedIn {
    Table t;
    CFP_MEMBER float operator()(u32 code) const { return decoded_in(code, t); }
};
extern "C" __global__ void table_unpack(const u8* bytes, float* out, i64 n, const i32* nearest, int shift) {
    const Table t = open_table(nearest);
    unpack_codes<16>(bytes, out, n, t.bits, shift, DecodedIn{t});
}

// The counterpart of Arithmetic for tables.
template <bool draws> struct TableArithmetic {
    Table t;

    CFP_MEMBER float sum(float a, float b, bool, u32 random) const {
        if (draws) return value_in(add_to_odd(static_cast<double>(a), static_cast<double>(b)), t, random);
        return value_in(add_to_odd_narrow(a, b), t, 0);
    }
    CFP_MEMBER float product(float a, float b) const { return value_in(multiply_to_odd_narrow(a, b), t, 0); }
    CFP_MEMBER void add(float& acc, float& c, float g, bool kahan, bool member, const u32 random[4]) const {
        add_rounded(acc, c, g, kahan, member, random, [&](auto... x) { return sum(x...); });
    }
};

extern "C" __global__ void table_accumulate_plain(Addresses x, int tensors, float* out, i64 n, const i32* table,
                                                  const i32* nearest, int kahan, u64 seed, u64 index, u32 mask) {
    accumulate(TableArithmetic<false>{open_table(table)}, x, tensors, out, n, kahan != 0);
}
extern "C" __global__ void __launch_bounds__(threads, 2)
    table_accumulate_random(Addresses x, int tensors, float* out, i64 n, const i32* table, const i32* nearest, int kahan,
                            u64 seed, u64 index, u32 mask) {
    const TableArithmetic<true> arithmetic = {open_table(table)};
    if (kahan)
        accumulate_randomly<true>(arithmetic, nullptr, x, tensors, out, n, seed, index, mask);
    else
        accumulate_randomly<false>(arithmetic, nullptr, x, tensors, out, n, seed, index, mask);
}

struct CodedIn {
    int k;
    Table t, nearest;
    CFP_MEMBER float value(u32 code) const { return decoded_in(code, t); }
    CFP_MEMBER u32 code(float value) const { return code_in(value, nearest, 0); }
};

#define CFP_TABLE_ACCUMULATE_PACKED(mode, draws)                                                                      \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                                          \
        table_accumulate_packed_##mode(Addresses bytes, int tensors, u8* out, i64 n, const i32* table,                \
                                      const i32* nearest, int kahan, u64 seed, u64 index, u32 mask) {                 \
        __shared__ Staged<draws, 16> staged;                                                                          \
        const Table t = open_table(table);                                                                            \
        accumulate_packed(staged, TableArithmetic<draws>{t}, CodedIn{t.bits, t, open_table(nearest)}, bytes, tensors, \
                          out, n, kahan != 0, seed, index, mask);                                                     \
    }
CFP_TABLE_ACCUMULATE_PACKED(plain, false)
CFP_TABLE_ACCUMULATE_PACKED(random, true)

// out[z] (MxN) = a[z] (MxK) b[z] (KxN), with products and partial sums rounded to nearest, in ascending order of k.
// Each thread computes one result. a_step and b_step are the numbers of elements from one matrix of the batch to the
// next, or 0 if the batch shares one matrix.
extern "C" __global__ void table_matmul(const float* a, const float* b, float* out, i64 batch, i64 M, i64 K, i64 N,
                                        i64 a_step, i64 b_step, const i32* nearest, int kahan) {
    const TableArithmetic<false> arithmetic = {open_table(nearest)};
    const u32 no_random[4] = {0, 0, 0, 0};
    for (i64 at = thread_index(); at < batch * M * N; at += thread_count()) {
        const i64 z = at / (M * N), row = at / N % M, column = at % N;
        const float *left = a + z * a_step + row * K, *right = b + z * b_step + column;
        float acc = 0, c = 0;
        for (i64 k = 0; k < K; ++k)
            arithmetic.add(acc, c, arithmetic.product(left[k], right[k * N]), kahan != 0, true, no_random);
        out[at] = acc;
    }
}
