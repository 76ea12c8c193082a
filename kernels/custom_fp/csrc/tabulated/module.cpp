// custom_fp._tabulated: the loops over formats that are a table behind addresses and sizes; tabulated/native.py checks
// what it gives.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "tabulated/kernels.h"

namespace custom_fp::bindings {
namespace {

#if defined(CFP_X86)
Isas<TableKernels> isa(tabulated_baseline(), &tabulated_avx2(), &tabulated_avx512());
#else
Isas<TableKernels> isa(tabulated_baseline(), nullptr, nullptr);
#endif

template <class T> T* at(uintptr_t address) { return reinterpret_cast<T*>(address); }

template <class T> std::vector<T*> all_at(const std::vector<uintptr_t>& addresses) {
    std::vector<T*> pointers;
    for (uintptr_t address : addresses) pointers.push_back(at<T>(address));
    return pointers;
}

TableRule rule_of(uintptr_t table, uintptr_t nearest, uint64_t seed, uint64_t offset, uint32_t mask) {
    return {at<const i32>(table), at<const i32>(nearest), seed, offset, mask};
}

void quantize(uintptr_t x, bool wide, uintptr_t out, int64_t n, uintptr_t table, uintptr_t nearest, uint64_t seed,
              uint64_t offset, uint32_t mask, int threads) {
    const TableRule rule = rule_of(table, nearest, seed, offset, mask);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->quantize(at<const void>(x), wide, at<float>(out), begin, end, rule);
    });
}

void encode(uintptr_t x, bool wide, uintptr_t codes, int code_bytes, int64_t n, uintptr_t nearest, int threads) {
    const TableRule rule = rule_of(nearest, nearest, 0, 0, 0);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->encode(at<const void>(x), wide, at<void>(codes), code_bytes, begin, end, rule);
    });
}

void decode(uintptr_t codes, int code_bytes, uintptr_t out, int64_t n, uintptr_t table, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->decode(at<const void>(codes), code_bytes, at<float>(out), begin, end, at<const i32>(table));
    });
}

void pack(uintptr_t x, bool wide, uintptr_t bytes, int64_t n, int shift, uintptr_t table, uintptr_t nearest,
          uint64_t seed, uint64_t offset, uint32_t mask, int threads) {
    const TableRule rule = rule_of(table, nearest, seed, offset, mask);
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->pack(at<const void>(x), wide, at<uint8_t>(bytes), begin, end, rule, shift);
    });
}

void unpack(uintptr_t bytes, uintptr_t out, int64_t n, int shift, uintptr_t table, int threads) {
    parallel(n, threads, grain, [&](int64_t begin, int64_t end) {
        isa->unpack(at<const uint8_t>(bytes), at<float>(out), begin, end, at<const i32>(table), shift);
    });
}

void accumulate(const std::vector<uintptr_t>& x, const std::vector<uint8_t>& is_wide, uintptr_t out, int64_t n,
                bool kahan, uintptr_t table, uintptr_t nearest, uint64_t seed, uint64_t offset, uint32_t mask,
                int threads) {
    const TableRule rule = rule_of(table, nearest, seed, offset, mask);
    const std::vector<const void*> terms = all_at<const void>(x);
    parallel(n, threads, grain / 4, [&](int64_t begin, int64_t end) {
        isa->accumulate(terms.data(), is_wide.data(), static_cast<int>(terms.size()), at<float>(out), begin, end, rule,
                        kahan);
    });
}

void accumulate_packed(const std::vector<uintptr_t>& bytes, uintptr_t out, int64_t n, bool kahan, uintptr_t table,
                       uintptr_t nearest, uint64_t seed, uint64_t offset, uint32_t mask, int threads) {
    const TableRule rule = rule_of(table, nearest, seed, offset, mask);
    const std::vector<const uint8_t*> terms = all_at<const uint8_t>(bytes);
    parallel(n, threads, grain / 4, [&](int64_t begin, int64_t end) {
        isa->accumulate_packed(terms.data(), static_cast<int>(terms.size()), at<uint8_t>(out), begin, end, rule, kahan);
    });
}

// `batch` products of dense (MxK) and (KxN) matrices; shared_a, shared_b: the same one for the whole batch
void matmul(uintptr_t a, uintptr_t b, uintptr_t out, int64_t batch, int64_t M, int64_t K, int64_t N, bool shared_a,
            bool shared_b, bool kahan, uintptr_t nearest, int threads) {
    const int64_t work = std::max<int64_t>(1, K * N);
    parallel(batch * M, threads, std::max<int64_t>(1, grain / work), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> buffer(static_cast<size_t>(K) * 64);
        for (int64_t at_row = begin; at_row < end;) {
            const int64_t i = at_row / M, first = at_row - i * M, last = std::min(M, first + end - at_row);
            isa->matmul(at<const float>(a) + (shared_a ? 0 : i * M * K), at<const float>(b) + (shared_b ? 0 : i * K * N),
                        at<float>(out) + i * M * N, first, last, K, N, at<const i32>(nearest), kahan, buffer.data());
            at_row += last - first;
        }
    });
}

}  // namespace
}  // namespace custom_fp::bindings

NB_MODULE(_tabulated, m) {
    m.doc() = "CPU loops of formats that are a table; use custom_fp's functions instead.";
    m.def("quantize", &custom_fp::bindings::quantize);
    m.def("encode", &custom_fp::bindings::encode);
    m.def("decode", &custom_fp::bindings::decode);
    m.def("pack", &custom_fp::bindings::pack);
    m.def("unpack", &custom_fp::bindings::unpack);
    m.def("accumulate", &custom_fp::bindings::accumulate);
    m.def("accumulate_packed", &custom_fp::bindings::accumulate_packed);
    m.def("matmul", &custom_fp::bindings::matmul);
    custom_fp::bindings::isa.define(m);
}
