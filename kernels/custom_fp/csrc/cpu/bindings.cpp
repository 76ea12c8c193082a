// Bindings of the operators for formats without scales: binary floating point, and tables of values.
#include <atomic>

#include "binades.h"
#include "bindings.h"
#include "cpu/kernels.h"
#include "custom_fp.h"

namespace custom_fp::bindings {
namespace {

typedef std::tuple<uint32_t, int, int, uint64_t, uint64_t, uint32_t, uintptr_t, uintptr_t> PackedRule;

Rule unpack_rule(const PackedRule& packed) {
    const auto& [spec, mode, overflow, seed, offset, mask, table, nearest] = packed;
    return {spec, mode, overflow, seed, offset, mask, at<const int32_t>(table), at<const int32_t>(nearest)};
}

// A rule, and the operators for formats of its kind.
struct Call {
    const Rule rule;
    const Operators& operators;

    explicit Call(const PackedRule& packed)
        : rule(unpack_rule(packed)),
          operators(rule.table ? static_cast<const Operators&>(kernels<TableKernels>()) : kernels<FormatKernels>()) {}
    const Operators* operator->() const { return &operators; }
};

void quantize(uintptr_t x, bool wide, uintptr_t out, int64_t n, const PackedRule& packed, int threads) {
    const Call call(packed);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        call->quantize(at<const void>(x), wide, at<float>(out), begin, end, call.rule);
    });
}

void scale(uintptr_t x, bool wide, uintptr_t out, int64_t n, int shift, int threads) {
    const FormatKernels& k = kernels<FormatKernels>();
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        k.scale(at<const void>(x), wide, at<float>(out), begin, end, shift);
    });
}

// Returns the exponent of the largest magnitude, or None if no value is finite and nonzero.
nb::object max_exponent(uintptr_t x, bool wide, int64_t n) {
    uint64_t largest = 0;
    {
        nb::gil_scoped_release release;
        FpEnvironment environment;
        largest = kernels<FormatKernels>().max_magnitude(at<const void>(x), wide, 0, n);
    }
    return largest ? nb::cast(ceil_log2(largest)) : nb::none();
}

// is_wide: for each tensor, whether it contains doubles. Empty if none does.
void accumulate(const std::vector<uintptr_t>& x, const std::vector<uint8_t>& is_wide, uintptr_t out, int64_t n,
                const PackedRule& packed, bool kahan, int threads) {
    const Call call(packed);
    const std::vector<const void*> terms = all_at<void>(x);
    const uint8_t* wide = is_wide.empty() ? nullptr : is_wide.data();
    parallel(n, threads, grain / 4, [&](int64_t begin, int64_t end) {
        call->accumulate(terms.data(), wide, static_cast<int>(terms.size()), at<float>(out), begin, end, call.rule,
                         kahan);
    });
}

void encode(uintptr_t x, bool wide, uintptr_t codes, int code_bytes, int64_t n, const PackedRule& packed, int threads) {
    const Call call(packed);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        call->encode(at<const void>(x), wide, at<void>(codes), code_bytes, begin, end, call.rule);
    });
}

void decode(uintptr_t codes, int code_bytes, uintptr_t out, int64_t n, const PackedRule& packed, int threads) {
    const Call call(packed);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        call->decode(at<const void>(codes), code_bytes, at<float>(out), begin, end, call.rule);
    });
}

void pack(uintptr_t x, bool wide, uintptr_t bytes, int64_t n, const PackedRule& packed, int shift, int threads) {
    const Call call(packed);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        call->pack(at<const void>(x), wide, at<uint8_t>(bytes), begin, end, call.rule, shift);
    });
}

void unpack(uintptr_t bytes, uintptr_t out, int64_t n, const PackedRule& packed, int shift, int threads) {
    const Call call(packed);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        call->unpack(at<const uint8_t>(bytes), at<float>(out), begin, end, call.rule, shift);
    });
}

void accumulate_packed(const std::vector<uintptr_t>& bytes, uintptr_t out, int64_t n, const PackedRule& packed,
                       bool kahan, int threads) {
    const Call call(packed);
    const std::vector<const uint8_t*> terms = all_at<uint8_t>(bytes);
    parallel(n, threads, grain / 4, [&](int64_t begin, int64_t end) {
        call->accumulate_packed(terms.data(), static_cast<int>(terms.size()), at<uint8_t>(out), begin, end, call.rule,
                                kahan);
    });
}

void matmul(const PackedProduct& packed_product, const PackedRule& packed, bool kahan, int threads) {
    const Call call(packed);
    const Product p = unpack_product(packed_product);
    p.over_rows(threads, grain, [&](int64_t, const float* a, const float* b, float* out, int64_t first, int64_t last) {
        std::vector<float> buffer(static_cast<size_t>(p.K) * 64);
        call->matmul(a, b, out, first, last, p.K, p.N, call.rule, kahan, buffer.data());
    });
}

// Transforms blocks along the middle dimension of (outer, length, inner).
void hadamard(uintptr_t x, uintptr_t out, int64_t outer, int64_t length, int64_t inner, int64_t size, bool inverse,
              bool has_signs, uint64_t seed, int threads) {
    const Transform transform = {length, inner, size, inverse, has_signs, seed};
    parallel(outer * (length / size), threads, std::max<int64_t>(1, grain / (size * inner)), 1,
             [&](int64_t begin, int64_t end) {
                 kernels<FormatKernels>().hadamard(at<const float>(x), at<float>(out), begin, end, transform);
             });
}

// See binades.h. `rows` must have room for 254 rows.
void count_binades(uintptr_t x, int64_t n, uintptr_t rounded, uintptr_t counts, uintptr_t rows) {
    static thread_local Binades binades;
    nb::gil_scoped_release release;
    binades.count(at<const float>(x), n, at<const int32_t>(rounded), at<int64_t>(counts), at<int64_t>(rows));
}

// Rounds every float32, positive ones in ascending order, and counts the violations of two laws. First, results must
// ascend with their inputs. Second, a negative input must give the negated result, unless the result is NaN, which has
// no sign. If a rounding with these properties is correct for all values, all midpoints and their neighbors, it is
// correct for all numbers.
int64_t count_disorder(uint32_t spec, int mode, int overflow, int threads) {
    const Rule rule = {spec, mode, overflow, 0, 0, 0};
    const auto quantize_range = kernels<FormatKernels>().quantize;
    std::atomic<int64_t> wrong(0);
    constexpr int64_t piece = 4096;
    parallel(int64_t(1) << 31, threads, grain, [&](int64_t begin, int64_t end) {
        std::vector<float> x(piece), up(piece + 1), down(piece);  // up[0] is the result of the value before the piece
        if (begin > 0) {
            const float before = from_bits(static_cast<u32>(begin - 1));
            quantize_range(&before, false, up.data(), 0, 1, rule);
        }
        int64_t here = 0;
        for (int64_t start = begin; start < end; start += piece) {
            for (int32_t i = 0; i < piece; ++i) x[i] = from_bits(static_cast<u32>(start) + i);
            quantize_range(x.data(), false, up.data() + 1, 0, piece, rule);
            for (int32_t i = 0; i < piece; ++i) x[i] = from_bits((static_cast<u32>(start) + i) | 0x80000000u);
            quantize_range(x.data(), false, down.data(), 0, piece, rule);
            int32_t broken = 0;  // iterations are independent, so that compilers vectorize them
            for (int32_t i = 0; i < piece; ++i) {
                const int32_t last = static_cast<int32_t>(to_bits(up[i]));
                const int32_t result = static_cast<int32_t>(to_bits(up[i + 1]));
                const int32_t is_nan = (static_cast<int32_t>(start) + i > 0x7f800000) | (result > 0x7f800000);
                const int32_t sign = is_nan ? 0 : INT32_MIN;
                broken += (result < last) + (static_cast<int32_t>(to_bits(down[i])) != (result | sign));
            }
            here += broken;
            up[0] = up[piece];
        }
        wrong += here;
    });
    return wrong;
}

}  // namespace

void define_elements(nb::module_& m) {
    m.def("quantize", &quantize);
    m.def("scale", &scale);
    m.def("max_exponent", &max_exponent);
    m.def("accumulate", &accumulate);
    m.def("encode", &encode);
    m.def("decode", &decode);
    m.def("pack", &pack);
    m.def("unpack", &unpack);
    m.def("accumulate_packed", &accumulate_packed);
    m.def("matmul", &matmul);
    m.def("hadamard", &hadamard);
    m.def("count_binades", &count_binades);
    m.def("count_disorder", &count_disorder);
}

}  // namespace custom_fp::bindings
