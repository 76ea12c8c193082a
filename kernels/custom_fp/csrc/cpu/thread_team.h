// Several threads for one call. If the process has OpenMP, which PyTorch uses, OpenMP's threads are used, because they
// spin for milliseconds after each operation of PyTorch, and other threads would have to share their cores. Otherwise,
// and in a forked child, which has no OpenMP threads, threads are started for each call.
#pragma once

#include <pthread.h>

#include <thread>
#include <vector>

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace custom_fp {

typedef void (*OpenMpParallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

inline bool& forked() {
    static bool value = false;
    return value;
}

// Finds GOMP_parallel, which g++ calls for `#pragma omp parallel`. LLVM's runtime also has it.
inline OpenMpParallel find_open_mp() {
#if defined(__linux__)
    pthread_atfork(nullptr, nullptr, [] { forked() = true; });
    return reinterpret_cast<OpenMpParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
#else
    return nullptr;
#endif
}

// Calls body() on each of `size` threads, including the calling thread. body must do all of the work for any number of
// threads.
template <class Body> void run_team(unsigned size, const Body& body) {
    static const OpenMpParallel open_mp = find_open_mp();
    if (open_mp && !forked()) {
        open_mp([](void* data) { (*static_cast<const Body*>(data))(); }, const_cast<Body*>(&body), size, 0);
        return;
    }
    std::vector<std::thread> others;
    for (unsigned i = 1; i < size; ++i) others.emplace_back(body);
    body();
    for (std::thread& other : others) other.join();
}

}  // namespace custom_fp
