// Bindings of the matrix products of an Accumulator, and of sums that are rounded once.
#include "accumulators/kernels.h"
#include "bindings.h"

namespace custom_fp::bindings {
namespace {

int allowed_paths = aligned_blocks | panels_of_columns;

// The addresses of the tables for sums, products and totals, then Accumulator.flat, then mode, overflow, seed and mask.
typedef std::tuple<uintptr_t, uintptr_t, uintptr_t, u32, u32, u32, int, int, int, int, int, bool, int64_t, bool, int, int,
                   int, int, int, int, int, uint64_t, u32>
    PackedSumming;

Summing unpack_summing(const PackedSumming& packed) {
    const auto& [sum_table, product_table, total_table, sum, product, total, order, block, width, emin_a, emin_b, kahan,
                 chunk, flush, join, join_acc, split, group, scales, mode, overflow, seed, mask] = packed;
    return {sum,   product,  total, order, block,  width,
            emin_a, emin_b,  kahan, chunk, flush,  join,
            join_acc, split, group, scales, at<const i32>(sum_table), at<const i32>(product_table),
            at<const i32>(total_table), mode, overflow, seed, mask};
}

void dot(const PackedProduct& packed_product, uintptr_t a_scales, uintptr_t b_scales, const PackedSumming& packed,
         int threads) {
    const Product p = unpack_product(packed_product);
    const Summing summing = unpack_summing(packed);
    const Scales all = {at<const i32>(a_scales), at<const i32>(b_scales), p.N};
    const int64_t parts = summing.scales ? (p.K + summing.scales - 1) / summing.scales : 0;  // number of scales of a row
    const AccumulatorKernels& k = kernels<AccumulatorKernels>();
    p.over_rows(threads, grain / 8, [&](int64_t z, const float* a, const float* b, float* out, int64_t first,
                                        int64_t last) {
        const Scales scales = all.from(p.shared_a ? 0 : z * p.M * parts, p.shared_b ? 0 : z * parts * p.N);
        k.dot(a, b, out, first, last, p.K, p.N, z * p.M, scales, summing, allowed_paths);
    });
}

void fused_sum(const std::vector<uintptr_t>& x, uintptr_t out, int64_t n, int width, int emin, int threads) {
    const std::vector<const float*> terms = all_at<float>(x);
    const int64_t least = std::max<int64_t>(1024, grain / static_cast<int64_t>(terms.size()));
    parallel(n, threads, least, 1, [&](int64_t begin, int64_t end) {
        kernels<AccumulatorKernels>().fused_sum(terms.data(), static_cast<int>(terms.size()), at<double>(out), begin,
                                                  end, width, emin);
    });
}

}  // namespace

void define_accumulators(nb::module_& m) {
    m.def("dot", &dot);
    // For tests and benchmarks: restricts matrix products to some fast paths. The results are the same bits.
    m.def("use_paths", [](bool blocks, bool panels) {
        allowed_paths = (blocks ? aligned_blocks : 0) | (panels ? panels_of_columns : 0);
    });
    m.def("fused_sum", &fused_sum);
}

}  // namespace custom_fp::bindings
