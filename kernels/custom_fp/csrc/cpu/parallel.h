// A loop over elements on several threads, which releases Python's lock and sets the floating-point environment that
// kernels need.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cpu/fp_environment.h"
#include "cpu/thread_team.h"

namespace custom_fp {

// Calls body(begin, end) for chunks of the range from 0 to n that start at multiples of `align`. Uses several threads
// if each gets at least `grain` elements.
template <class Body> void parallel(int64_t n, int threads, int64_t grain, int64_t align, const Body& body) {
    nanobind::gil_scoped_release release;
    const int64_t useful = std::min<int64_t>(threads, n / grain);
    if (useful <= 1) {
        FpEnvironment environment;
        body(int64_t(0), n);
        return;
    }
    const int64_t share = (n + useful - 1) / useful;
    const int64_t chunk = (std::max((share + 3) / 4, grain) + align - 1) / align * align;
    std::atomic<int64_t> next(0);
    run_team(static_cast<unsigned>(useful), [&] {
        FpEnvironment environment;
        for (int64_t begin; (begin = next.fetch_add(chunk)) < n;) body(begin, std::min(n, begin + chunk));
    });
}

template <class Body> void parallel(int64_t n, int threads, int64_t grain, const Body& body) {
    parallel(n, threads, grain, 1024, body);
}

constexpr int64_t grain = 1 << 17;

}  // namespace custom_fp
