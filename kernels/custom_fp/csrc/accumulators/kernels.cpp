// The kernels for accumulators, for one instruction set. CMake compiles this file once for each instruction set, with
// CFP_ISA as its name.
#include "accumulators/cpu_fused_sum.h"
#include "accumulators/cpu_dot.h"
#include "cpu/isa.h"

namespace custom_fp {

template <> const AccumulatorKernels& kernels_for<AccumulatorKernels, Isa::CFP_ISA>() {
    static const AccumulatorKernels kernels = {dot_rows, fused_sum};
    return kernels;
}

}  // namespace custom_fp
