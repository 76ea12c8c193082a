// custom_fp._native: all CPU kernels. This module does not depend on PyTorch, so one build works with every version.
#include "bindings.h"

#include <nanobind/stl/string.h>

#include <cstdlib>
#include <string>

namespace custom_fp {

Isa isa_in_use = Isa::baseline;

namespace bindings {
namespace {

const char* const isa_names[] = {"baseline", "avx2", "avx512"};

// The instruction sets that this processor supports, in ascending order.
std::vector<std::string> supported = {isa_names[0]};

void find_supported() {
#if defined(CFP_X86)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) return;
    supported.push_back(isa_names[1]);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        supported.push_back(isa_names[2]);
#endif
}

// Selects an instruction set. Returns false if this processor does not support it.
bool choose_isa(const std::string& name) {
    for (size_t i = 0; i < supported.size(); ++i)
        if (supported[i] == name) {
            isa_in_use = static_cast<Isa>(i);
            return true;
        }
    return false;
}

std::string supported_names() {
    std::string joined;
    for (const std::string& name : supported) joined += (joined.empty() ? "" : ", ") + name;
    return joined;
}

// Selects the best instruction set, up to the one that the environment variable CUSTOM_FP_ISA names.
void choose_first_isa() {
    find_supported();
    const char* highest = std::getenv("CUSTOM_FP_ISA");
    if (highest && *highest) {
        if (!choose_isa(highest)) {
            const std::string message = std::string("CUSTOM_FP_ISA is '") + highest + "'; this processor supports " +
                                        supported_names() + ". Name one of these, or unset the variable.";
            PyErr_SetString(PyExc_ValueError, message.c_str());
            nb::raise_python_error();  // unlike nanobind::value_error, it is kept as the cause of the ImportError
        }
        supported.resize(static_cast<size_t>(isa_in_use) + 1);
    }
    choose_isa(supported.back());
}

}  // namespace
}  // namespace bindings
}  // namespace custom_fp

NB_MODULE(_native, m) {
    using namespace custom_fp::bindings;
    m.doc() = "CPU kernels of custom_fp. They take addresses and sizes; use custom_fp's functions instead.";
    choose_first_isa();
    m.def("isas", [] { return supported; });
    m.def("isa", [] { return isa_names[static_cast<int>(custom_fp::isa_in_use)]; });
    m.def("use_isa", [](const std::string& name) {
        if (!choose_isa(name)) throw nb::value_error(("'" + name + "' is not one of " + supported_names()).c_str());
    });
    define_elements(m);
    define_tiles(m);
    define_scaled(m);
    define_accumulators(m);
}
