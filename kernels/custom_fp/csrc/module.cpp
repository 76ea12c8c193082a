// custom_fp._native: the CPU kernels behind addresses and sizes. Nothing here knows torch, so that one build serves
// every torch. native.py checks shapes, dtypes and strides before it calls.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "binades.h"
#include "cpu/kernels.h"
#include "custom_fp.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace nb = nanobind;

namespace custom_fp::bindings {
namespace {

#if defined(CFP_X86)
Isas<Kernels> isa(kernels_baseline(), &kernels_avx2(), &kernels_avx512());
#else
Isas<Kernels> isa(kernels_baseline(), nullptr, nullptr);
#endif

template <class T> T* at(uintptr_t address) { return reinterpret_cast<T*>(address); }

template <class T> std::vector<const T*> all_at(const std::vector<uintptr_t>& addresses) {
    std::vector<const T*> pointers;
    for (uintptr_t address : addresses) pointers.push_back(at<const T>(address));
    return pointers;
}

void quantize(uintptr_t x, bool wide, uintptr_t out, int64_t n, uint32_t spec, int mode, int overflow, uint64_t seed,
              uint64_t offset, uint32_t mask, int threads) {
    const Rule rule = {spec, mode, overflow, seed, offset, mask};
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        if (wide)
            isa->quantize_f64(at<const double>(x), at<float>(out), begin, end, rule);
        else
            isa->quantize_f32(at<const float>(x), at<float>(out), begin, end, rule);
    });
}

void scale(uintptr_t x, uintptr_t out, int64_t n, int shift, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->scale(at<const float>(x), at<float>(out), begin, end, shift);
    });
}

void scale_f64(uintptr_t x, uintptr_t out, int64_t n, int shift, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->scale_f64(at<const double>(x), at<float>(out), begin, end, shift);
    });
}

// None where no value is finite and nonzero
nb::object max_exponent(uintptr_t x, bool wide, int64_t n) {
    uint64_t largest = 0;
    {
        nb::gil_scoped_release release;
        FpEnvironment environment;
        largest = wide ? isa->max_magnitude_f64(at<const double>(x), 0, n)
                       : isa->max_magnitude_f32(at<const float>(x), 0, n);
    }
    return largest ? nb::cast(ceil_log2(largest)) : nb::none();
}

void accumulate(const std::vector<uintptr_t>& x, uintptr_t out, int64_t n, uint32_t spec, int mode, int overflow,
                bool kahan, uint64_t seed, uint64_t offset, uint32_t mask, int threads) {
    const Rule rule = {spec, mode, overflow, seed, offset, mask};
    const std::vector<const float*> tensors = all_at<float>(x);
    parallel(n, threads, grain / 4, [&](int64_t begin, int64_t end) {
        isa->accumulate(tensors.data(), static_cast<int>(tensors.size()), at<float>(out), begin, end, rule,
                                kahan);
    });
}

// is_wide: which of the tensors hold doubles
void accumulate_f64(const std::vector<uintptr_t>& x, const std::vector<uint8_t>& is_wide, uintptr_t out, int64_t n,
                    uint32_t spec, int mode, int overflow, bool kahan, uint64_t seed, uint64_t offset, uint32_t mask,
                    int threads) {
    const Rule rule = {spec, mode, overflow, seed, offset, mask};
    const std::vector<const void*> tensors = all_at<void>(x);
    parallel(n, threads, grain / 4, [&](int64_t begin, int64_t end) {
        isa->accumulate_f64(tensors.data(), is_wide.data(), static_cast<int>(tensors.size()), at<float>(out),
                                    begin, end, rule, kahan);
    });
}

void encode(uintptr_t x, uintptr_t codes, int code_bytes, int64_t n, uint32_t spec, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->encode(at<const float>(x), at<void>(codes), code_bytes, begin, end, spec);
    });
}

void encode_f64(uintptr_t x, uintptr_t codes, int code_bytes, int64_t n, uint32_t spec, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->encode_f64(at<const double>(x), at<void>(codes), code_bytes, begin, end, spec);
    });
}

void decode(uintptr_t codes, int code_bytes, uintptr_t out, int64_t n, uint32_t spec, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->decode(at<const void>(codes), code_bytes, at<float>(out), begin, end, spec);
    });
}

void pack(uintptr_t x, uintptr_t bytes, int64_t n, uint32_t spec, int shift, int mode, int overflow, uint64_t seed,
          uint64_t offset, uint32_t mask, int threads) {
    const Rule rule = {spec, mode, overflow, seed, offset, mask};
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->pack(at<const float>(x), at<uint8_t>(bytes), begin, end, rule, shift);
    });
}

void pack_f64(uintptr_t x, uintptr_t bytes, int64_t n, uint32_t spec, int shift, int mode, int overflow,
              uint64_t seed, uint64_t offset, uint32_t mask, int threads) {
    const Rule rule = {spec, mode, overflow, seed, offset, mask};
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->pack_f64(at<const double>(x), at<uint8_t>(bytes), begin, end, rule, shift);
    });
}

void unpack(uintptr_t bytes, uintptr_t out, int64_t n, uint32_t spec, int shift, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->unpack(at<const uint8_t>(bytes), at<float>(out), begin, end, spec, shift);
    });
}

void accumulate_packed(const std::vector<uintptr_t>& bytes, uintptr_t out, int64_t n, uint32_t spec, int mode,
                       int overflow, bool kahan, uint64_t seed, uint64_t offset, uint32_t mask, int threads) {
    const Rule rule = {spec, mode, overflow, seed, offset, mask};
    const std::vector<const uint8_t*> tensors = all_at<uint8_t>(bytes);
    parallel(n, threads, grain / 4, [&](int64_t begin, int64_t end) {
        isa->accumulate_packed(tensors.data(), static_cast<int>(tensors.size()), at<uint8_t>(out), begin, end,
                                       rule, kahan);
    });
}

// `batch` products of dense (MxK) and (KxN) matrices; shared_a, shared_b: the same one for the whole batch
void matmul(uintptr_t a, uintptr_t b, uintptr_t out, int64_t batch, int64_t M, int64_t K, int64_t N, bool shared_a,
            bool shared_b, uint32_t spec, bool kahan, int threads) {
    const int64_t work = std::max<int64_t>(1, K * N);
    parallel(batch * M, threads, std::max<int64_t>(1, grain / work), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> buffer(static_cast<size_t>(K) * 64);
        for (int64_t at_row = begin; at_row < end;) {
            const int64_t i = at_row / M, first = at_row - i * M, last = std::min(M, first + end - at_row);
            isa->matmul(at<const float>(a) + (shared_a ? 0 : i * M * K),
                                at<const float>(b) + (shared_b ? 0 : i * K * N), at<float>(out) + i * M * N, first,
                                last, K, N, spec, kahan, buffer.data());
            at_row += last - first;
        }
    });
}

// along the middle of (outer, length, inner)
void hadamard(uintptr_t x, uintptr_t out, int64_t outer, int64_t length, int64_t inner, int64_t size, bool inverse,
              bool has_signs, uint64_t seed, int threads) {
    const Transform transform = {length, inner, size, inverse, has_signs, seed};
    parallel(outer * (length / size), threads, std::max<int64_t>(1, grain / (size * inner)), 1,
             [&](int64_t begin, int64_t end) {
                 isa->hadamard(at<const float>(x), at<float>(out), begin, end, transform);
             });
}

// see binades.h; rows has room for 254
void count_binades(uintptr_t x, int64_t n, uintptr_t rounded, uintptr_t counts, uintptr_t rows) {
    static thread_local Binades binades;
    nb::gil_scoped_release release;
    binades.count(at<const float>(x), n, at<const int32_t>(rounded), at<int64_t>(counts), at<int64_t>(rows));
}

// Passes every float32, positive ones in ascending order, through quantize and counts what breaks these laws: results
// ascend with their inputs; a negative input gives the negated result, unless that is NaN, which has no sign. A rounding
// with these properties that is right on all values and at all midpoints and their neighbours is right everywhere.
int64_t count_disorder(uint32_t spec, int mode, int overflow, int threads) {
    const Rule rule = {spec, mode, overflow, 0, 0, 0};
    std::atomic<int64_t> wrong(0);
    constexpr int64_t piece = 4096;
    parallel(int64_t(1) << 31, threads, grain, [&](int64_t begin, int64_t end) {
        std::vector<float> x(piece), up(piece + 1), down(piece);  // up[0] is what the value before the piece became
        if (begin > 0) {
            const float before = from_bits(static_cast<u32>(begin - 1));
            isa->quantize_f32(&before, up.data(), 0, 1, rule);
        }
        int64_t here = 0;
        for (int64_t start = begin; start < end; start += piece) {
            for (int32_t i = 0; i < piece; ++i) x[i] = from_bits(static_cast<u32>(start) + i);
            isa->quantize_f32(x.data(), up.data() + 1, 0, piece, rule);
            for (int32_t i = 0; i < piece; ++i) x[i] = from_bits((static_cast<u32>(start) + i) | 0x80000000u);
            isa->quantize_f32(x.data(), down.data(), 0, piece, rule);
            int32_t broken = 0;  // no value waits for that of the iteration before: compilers make vectors of it
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
}  // namespace custom_fp::bindings

NB_MODULE(_native, m) {
    m.doc() = "CPU kernels of custom_fp; addresses and sizes in, nothing out. Use custom_fp's functions instead.";
    m.def("quantize", &custom_fp::bindings::quantize);
    m.def("scale", &custom_fp::bindings::scale);
    m.def("scale_f64", &custom_fp::bindings::scale_f64);
    m.def("max_exponent", &custom_fp::bindings::max_exponent);
    m.def("accumulate", &custom_fp::bindings::accumulate);
    m.def("accumulate_f64", &custom_fp::bindings::accumulate_f64);
    m.def("encode", &custom_fp::bindings::encode);
    m.def("encode_f64", &custom_fp::bindings::encode_f64);
    m.def("decode", &custom_fp::bindings::decode);
    m.def("pack", &custom_fp::bindings::pack);
    m.def("pack_f64", &custom_fp::bindings::pack_f64);
    m.def("unpack", &custom_fp::bindings::unpack);
    m.def("accumulate_packed", &custom_fp::bindings::accumulate_packed);
    m.def("matmul", &custom_fp::bindings::matmul);
    m.def("hadamard", &custom_fp::bindings::hadamard);
    m.def("count_binades", &custom_fp::bindings::count_binades);
    m.def("count_disorder", &custom_fp::bindings::count_disorder);
    custom_fp::bindings::isa.define(m);
}
