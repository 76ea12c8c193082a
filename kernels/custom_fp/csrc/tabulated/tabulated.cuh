// Formats that are a table, on a GPU: tabulated.h says what is computed. Part of custom_fp.cu, whose loads, bytes and
// random bits these kernels use.
//
// `words`: the table of a rounding; `nearest`: of rounding to nearest. Exact numbers are floats where nothing is drawn,
// doubles in the kernels whose name ends in _drawn.

CFP_FN void read_exactly(float x, float& exact) { exact = x; }
CFP_FN void read_exactly(double x, float& exact) { exact = to_odd_float32(x); }
CFP_FN void read_exactly(float x, double& exact) { exact = static_cast<double>(x); }
CFP_FN void read_exactly(double x, double& exact) { exact = x; }

template <class Exact> struct Draws {
    static constexpr bool value = sizeof(Exact) == sizeof(double);
};

template <class Exact> CFP_FN u32 drawn_for(u64 index, u32 stream, u64 seed, u32 mask) {
    return Draws<Exact>::value ? random_of(index, stream, seed, mask) : 0;
}

template <class Exact, class F>
CFP_FN void table_quantize(const F* x, float* out, i64 n, const i32* words, u64 seed, u64 index, u32 mask) {
    const Table t = open_table(words);
    const bool wide = aligned(x) && aligned(out);
    F v[4];
    float result[4];
    for (i64 i = 4 * thread_index(); i < n; i += 4 * thread_count()) {
        load4(x, i, n, wide, v);
        for (int j = 0; j < 4; ++j) {
            Exact exact;
            read_exactly(v[j], exact);
            result[j] = value_in(exact, t, drawn_for<Exact>(index + static_cast<u64>(i + j), 0, seed, mask));
        }
        store4(out, i, n, wide, result);
    }
}

#define CFP_TABLE_QUANTIZE(name, F, Exact)                                                                            \
    extern "C" __global__ void name(const F* x, float* out, i64 n, const i32* words, u64 seed, u64 index, u32 mask) { \
        table_quantize<Exact>(x, out, n, words, seed, index, mask);                                                   \
    }
CFP_TABLE_QUANTIZE(table_quantize_f32, float, float)
CFP_TABLE_QUANTIZE(table_quantize_f64, double, float)
CFP_TABLE_QUANTIZE(table_quantize_f32_drawn, float, double)
CFP_TABLE_QUANTIZE(table_quantize_f64_drawn, double, double)

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

template <class Exact>
CFP_FN void table_pack(const float* x, u8* bytes, i64 n, const i32* words, int shift, u64 seed, u64 index, u32 mask) {
    __shared__ __align__(16) u8 staged[threads * 16];
    const Table t = open_table(words);
    const int k = t.bits;
    const double power = power_of_two<double>(shift);
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        const i64 i = first + threadIdx.x * 8;
        float v[8];
        u32 codes[8];
        load4(x, i, n, aligned(x), v);
        load4(x, i + 4, n, aligned(x), v + 4);
        for (int j = 0; j < 8; ++j) {
            Exact exact;
            if (shift)
                read_exactly(static_cast<double>(v[j]) * power, exact);
            else
                read_exactly(v[j], exact);
            const u32 random = drawn_for<Exact>(index + static_cast<u64>(i + j), 0, seed, mask);
            codes[j] = i + j < n ? code_in(exact, t, random) : 0;
        }
        join_codes(codes, staged + threadIdx.x * k, k);
        __syncthreads();
        copy_bytes(bytes + first / 8 * k, staged, bytes_of_block(first, n, k));
        __syncthreads();
    }
}
extern "C" __global__ void table_pack_plain(const float* x, u8* bytes, i64 n, const i32* words, int shift, u64 seed,
                                            u64 index, u32 mask) {
    table_pack<float>(x, bytes, n, words, shift, seed, index, mask);
}
extern "C" __global__ void table_pack_drawn(const float* x, u8* bytes, i64 n, const i32* words, int shift, u64 seed,
                                            u64 index, u32 mask) {
    table_pack<double>(x, bytes, n, words, shift, seed, index, mask);
}

struct DecodedIn {
    Table t;
    CFP_MEMBER float operator()(u32 code) const { return decoded_in(code, t); }
};
extern "C" __global__ void table_unpack(const u8* bytes, float* out, i64 n, const i32* nearest, int shift) {
    const Table t = open_table(nearest);
    unpack_codes<16>(bytes, out, n, t.bits, shift, DecodedIn{t});
}

// Q(a + b)
template <class Exact> CFP_FN float table_sum(float a, float b, const Table& t, u32 random) {
    Exact exact;
    add_exactly(a, b, t, exact);
    return value_in(exact, t, random);
}

// acc = Q(acc + g), or Kahan's form of it, in step r
template <class Exact>
CFP_FN void table_add(float& acc, float& c, float g, bool kahan, const Table& t, u64 index, int r, u64 seed, u32 mask) {
    const auto random = [&](int j) { return drawn_for<Exact>(index, static_cast<u32>(4 * r + j), seed, mask); };
    if (!kahan) {
        acc = table_sum<Exact>(g, acc, t, random(0));
        return;
    }
    const float y = table_sum<Exact>(g, -c, t, random(0)), total = table_sum<Exact>(acc, y, t, random(1));
    const float gained = table_sum<Exact>(total, -acc, t, random(2)), lost = table_sum<Exact>(gained, -y, t, random(3));
    c = (to_bits(total) & 0x7fffffffu) < 0x7f800000u ? lost : 0.0f;
    acc = total;
}

// `x`: `tensors` arrays of n elements each
template <class Exact>
CFP_FN void table_accumulate(const Addresses& x, int tensors, float* out, i64 n, const i32* words, bool kahan, u64 seed,
                             u64 index, u32 mask) {
    const Table t = open_table(words);
    for (i64 i = thread_index(); i < n; i += thread_count()) {
        float acc = 0, c = 0;
        for (int r = 0; r < tensors; ++r)
            table_add<Exact>(acc, c, x.of<float>(r)[i], kahan, t, index + static_cast<u64>(i), r, seed, mask);
        out[i] = acc;
    }
}
extern "C" __global__ void table_accumulate_plain(Addresses x, int tensors, float* out, i64 n, const i32* words,
                                                  int kahan, u64 seed, u64 index, u32 mask) {
    table_accumulate<float>(x, tensors, out, n, words, kahan != 0, seed, index, mask);
}
extern "C" __global__ void table_accumulate_drawn(Addresses x, int tensors, float* out, i64 n, const i32* words,
                                                  int kahan, u64 seed, u64 index, u32 mask) {
    table_accumulate<double>(x, tensors, out, n, words, kahan != 0, seed, index, mask);
}

// `bytes`: `tensors` payloads of n codes each
template <class Exact>
CFP_FN void table_accumulate_packed(const Addresses& bytes, int tensors, u8* out, i64 n, const i32* words,
                                    const i32* nearest, bool kahan, u64 seed, u64 index, u32 mask) {
    __shared__ __align__(16) u8 staged[threads * 16];
    const Table t = open_table(words), to_codes = open_table(nearest);
    const int k = t.bits;
    for (i64 first = static_cast<i64>(blockIdx.x) * threads * 8; first < n; first += static_cast<i64>(gridDim.x) * threads * 8) {
        const i64 i = first + threadIdx.x * 8, size = bytes_of_block(first, n, k);
        float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0}, c[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        u32 codes[8];
        for (int r = 0; r < tensors; ++r) {
            copy_bytes(staged, bytes.of<u8>(r) + first / 8 * k, size);
            __syncthreads();
            if (i < n) {
                split_codes(staged + threadIdx.x * k, codes, k);
                for (int j = 0; j < 8; ++j)
                    table_add<Exact>(acc[j], c[j], decoded_in(codes[j], t), kahan, t, index + static_cast<u64>(i + j), r,
                                     seed, mask);
            }
            __syncthreads();
        }
        for (int j = 0; j < 8; ++j) codes[j] = i + j < n ? code_in(acc[j], to_codes, 0) : 0;
        join_codes(codes, staged + threadIdx.x * k, k);
        __syncthreads();
        copy_bytes(out + first / 8 * k, staged, size);
        __syncthreads();
    }
}
extern "C" __global__ void table_accumulate_packed_plain(Addresses bytes, int tensors, u8* out, i64 n,
                                                         const i32* words, const i32* nearest, int kahan, u64 seed,
                                                         u64 index, u32 mask) {
    table_accumulate_packed<float>(bytes, tensors, out, n, words, nearest, kahan != 0, seed, index, mask);
}
extern "C" __global__ void table_accumulate_packed_drawn(Addresses bytes, int tensors, u8* out, i64 n,
                                                         const i32* words, const i32* nearest, int kahan, u64 seed,
                                                         u64 index, u32 mask) {
    table_accumulate_packed<double>(bytes, tensors, out, n, words, nearest, kahan != 0, seed, index, mask);
}

// out[z] (MxN) = a[z] (MxK) b[z] (KxN), products and partial sums rounded to nearest, k ascending: a thread a result.
// a_step, b_step: elements from one matrix of the batch to the next, 0 where all share one.
extern "C" __global__ void table_matmul(const float* a, const float* b, float* out, i64 batch, i64 M, i64 K, i64 N,
                                        i64 a_step, i64 b_step, const i32* nearest, int kahan) {
    const Table t = open_table(nearest);
    for (i64 at = thread_index(); at < batch * M * N; at += thread_count()) {
        const i64 z = at / (M * N), row = at / N % M, column = at % N;
        const float *left = a + z * a_step + row * K, *right = b + z * b_step + column;
        float acc = 0, c = 0;
        for (i64 k = 0; k < K; ++k) {
            const double product = static_cast<double>(left[k]) * static_cast<double>(right[k * N]);
            table_add<float>(acc, c, value_in(to_odd_float32(product), t, 0), kahan != 0, t, 0, 0, 0, 0);
        }
        out[at] = acc;
    }
}
