// Code that the bindings of all kernels share. Python passes addresses and sizes. The Python callers check shapes,
// dtypes and strides.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace custom_fp::bindings {

namespace nb = nanobind;

void define_elements(nb::module_& m);
void define_tiles(nb::module_& m);
void define_scaled(nb::module_& m);
void define_accumulators(nb::module_& m);

template <class T> T* at(uintptr_t address) { return reinterpret_cast<T*>(address); }

template <class T> std::vector<const T*> all_at(const std::vector<uintptr_t>& addresses) {
    std::vector<const T*> pointers;
    for (uintptr_t address : addresses) pointers.push_back(at<const T>(address));
    return pointers;
}

// A batch of products of dense (MxK) and (KxN) matrices. shared_a, shared_b: the whole batch uses the same matrix.
struct Product {
    const float *a, *b;
    float* out;
    int64_t batch, M, K, N;
    bool shared_a, shared_b;

    // Calls body(z, a, b, out, first, last) on several threads, for rows first to last - 1 of product z.
    template <class Body> void over_rows(int threads, int64_t least_work, const Body& body) const {
        const int64_t work = std::max<int64_t>(1, K * N);
        parallel(batch * M, threads, std::max<int64_t>(1, least_work / work), 1, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end;) {
                const int64_t z = row / M, first = row - z * M, last = std::min(M, first + end - row);
                body(z, a + (shared_a ? 0 : z * M * K), b + (shared_b ? 0 : z * K * N), out + z * M * N, first, last);
                row += last - first;
            }
        });
    }
};

typedef std::tuple<uintptr_t, uintptr_t, uintptr_t, int64_t, int64_t, int64_t, int64_t, bool, bool> PackedProduct;

inline Product unpack_product(const PackedProduct& packed) {
    const auto& [a, b, out, batch, M, K, N, shared_a, shared_b] = packed;
    return {at<const float>(a), at<const float>(b), at<float>(out), batch, M, K, N, shared_a, shared_b};
}

}  // namespace custom_fp::bindings
