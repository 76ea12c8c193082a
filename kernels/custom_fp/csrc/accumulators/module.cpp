// custom_fp._accumulators: matrix products behind addresses and sizes. accumulators/native.py checks what it is given.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "accumulators/kernels.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace nb = nanobind;

namespace custom_fp::bindings {
namespace {

#if defined(CFP_X86)
Isas<AccumulatorKernels> isa(accumulators_baseline(), &accumulators_avx2(), &accumulators_avx512());
#else
Isas<AccumulatorKernels> isa(accumulators_baseline(), nullptr, nullptr);
#endif

template <class T> T* at(uintptr_t address) { return reinterpret_cast<T*>(address); }

void dot(uintptr_t a, uintptr_t b, uintptr_t out, int64_t batch, int64_t M, int64_t K, int64_t N, bool shared_a,
         bool shared_b, uintptr_t a_scales, uintptr_t b_scales, uintptr_t sum_table, uintptr_t product_table,
         uintptr_t total_table, u32 sum, u32 product, u32 total, int order, int block, int width, int emin_a, int emin_b,
         bool kahan, int64_t chunk, bool flush, int join, int join_acc, int split, int group, int scales, int mode,
         int overflow, uint64_t seed, u32 mask, int threads) {
    const Summing summing = {sum,    product, total, order, block, width, emin_a, emin_b, kahan, chunk, flush, join,
                             join_acc, split, group, scales, at<const i32>(sum_table), at<const i32>(product_table),
                             at<const i32>(total_table), mode, overflow, seed, mask};
    const Scales of_all = {at<const i32>(a_scales), at<const i32>(b_scales), N};
    const int64_t parts = scales ? (K + scales - 1) / scales : 0;  // scales of a row
    const int64_t work = std::max<int64_t>(1, K * N);
    parallel(batch * M, threads, std::max<int64_t>(1, grain / 8 / work), 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end;) {
            const int64_t i = row / M, first = row - i * M, last = std::min(M, first + end - row);
            isa->dot(at<const float>(a) + (shared_a ? 0 : i * M * K), at<const float>(b) + (shared_b ? 0 : i * K * N),
                     at<float>(out) + i * M * N, first, last, K, N, i * M,
                     of_all.from(shared_a ? 0 : i * M * parts, shared_b ? 0 : i * parts * N), summing);
            row += last - first;
        }
    });
}

void add_at_once(const std::vector<uintptr_t>& x, uintptr_t out, int64_t n, int width, int emin, int threads) {
    std::vector<const float*> terms;
    for (const uintptr_t address : x) terms.push_back(at<const float>(address));
    const int64_t least = std::max<int64_t>(1024, grain / static_cast<int64_t>(terms.size()));
    parallel(n, threads, least, 1, [&](int64_t begin, int64_t end) {
        isa->add_at_once(terms.data(), static_cast<int>(terms.size()), at<double>(out), begin, end, width, emin);
    });
}

}  // namespace
}  // namespace custom_fp::bindings

NB_MODULE(_accumulators, m) {
    m.def("dot", &custom_fp::bindings::dot);
    m.def("add_at_once", &custom_fp::bindings::add_at_once);
    custom_fp::bindings::isa.define(m);
}
