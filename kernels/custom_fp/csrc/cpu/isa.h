// The instruction sets that this processor has of those that a module is built for, the best last, and the one in use.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

namespace custom_fp {

template <class Kernels> struct Isa {
    const char* name;
    const Kernels* kernels;
};

template <class Kernels> class Isas {
public:
    Isas(const Kernels& baseline, [[maybe_unused]] const Kernels* avx2, [[maybe_unused]] const Kernels* avx512)
        : known_{{"baseline", &baseline}} {
#if defined(CFP_X86)
        __builtin_cpu_init();
        const bool has_avx2 =
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
        if (has_avx2) known_.push_back({"avx2", avx2});
        if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512cd"))
            known_.push_back({"avx512", avx512});
#endif
        current_ = known_.back();
    }

    const Kernels* operator->() const { return current_.kernels; }
    const char* name() const { return current_.name; }

    // The tests compare the instruction sets with each other.
    void use(const std::string& name) {
        for (const Isa<Kernels>& candidate : known_)
            if (name == candidate.name) {
                current_ = candidate;
                return;
            }
        throw nanobind::value_error("not an instruction set of this processor");
    }

    std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (const Isa<Kernels>& candidate : known_) names.push_back(candidate.name);
        return names;
    }

private:
    std::vector<Isa<Kernels>> known_;
    Isa<Kernels> current_;
};

}  // namespace custom_fp
