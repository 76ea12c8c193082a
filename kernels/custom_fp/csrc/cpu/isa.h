// Chooses, among the instruction sets that a module is compiled for, the one whose kernels run.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace custom_fp {

template <class Kernels> struct Isa {
    const char* name;
    const Kernels* kernels;
};

// The instruction sets that this processor supports, in ascending order, and the one in use: at first the last of them.
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

    // Adds to a module the functions with which tests compare instruction sets, and obeys the environment variable
    // CUSTOM_FP_ISA: this processor is treated as one without the instruction sets above the named one.
    void define(nanobind::module_& m) {
        const char* highest = std::getenv("CUSTOM_FP_ISA");
        if (highest && *highest) {
            if (!supports(highest)) {
                const std::string message = std::string("CUSTOM_FP_ISA is '") + highest + "'; this processor supports " +
                                            joined_names() + ". Name one of these, or unset the variable.";
                PyErr_SetString(PyExc_ValueError, message.c_str());
                nanobind::raise_python_error();  // unlike nanobind::value_error, kept as the ImportError's cause
            }
            while (highest != std::string(known_.back().name)) known_.pop_back();
            current_ = known_.back();
        }
        m.def("isas", [this] { return names(); });
        m.def("isa", [this] { return current_.name; });
        m.def("use_isa", [this](const std::string& name) {
            if (!supports(name))
                throw nanobind::value_error(("'" + name + "' is not one of " + joined_names()).c_str());
            for (const Isa<Kernels>& candidate : known_)
                if (name == candidate.name) current_ = candidate;
        });
    }

private:
    bool supports(const std::string& name) const {
        for (const Isa<Kernels>& candidate : known_)
            if (name == candidate.name) return true;
        return false;
    }

    std::vector<std::string> names() const {
        std::vector<std::string> names;
        for (const Isa<Kernels>& candidate : known_) names.push_back(candidate.name);
        return names;
    }

    std::string joined_names() const {
        std::string joined;
        for (const std::string& name : names()) joined += (joined.empty() ? "" : ", ") + name;
        return joined;
    }

    std::vector<Isa<Kernels>> known_;
    Isa<Kernels> current_;
};

}  // namespace custom_fp
