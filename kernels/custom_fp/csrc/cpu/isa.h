// The instruction sets for which the CPU kernels are compiled, and the selection of one when the module is loaded.
//
// Each kernels.cpp is compiled once for every instruction set, with CFP_ISA as its name, and defines one table of
// functions: `template <> const TileKernels& kernels_for<TileKernels, Isa::CFP_ISA>()`.
#pragma once

namespace custom_fp {

enum class Isa { baseline, avx2, avx512 };

template <class Kernels, Isa isa> const Kernels& kernels_for();

extern Isa isa_in_use;  // set by module.cpp

// Returns the kernels of the selected instruction set.
template <class Kernels> const Kernels& kernels() {
#if defined(CFP_X86)
    if (isa_in_use == Isa::avx512) return kernels_for<Kernels, Isa::avx512>();
    if (isa_in_use == Isa::avx2) return kernels_for<Kernels, Isa::avx2>();
#endif
    return kernels_for<Kernels, Isa::baseline>();
}

}  // namespace custom_fp
