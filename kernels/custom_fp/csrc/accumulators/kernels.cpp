// The accumulators' matrix products of one instruction set: CMake compiles this file once for each, with CFP_ISA as its
// name.
#include "accumulators/cpu_at_once.h"
#include "accumulators/cpu_dot.h"

#define CFP_JOIN(a, b) a##b
#define CFP_NAME(isa) CFP_JOIN(accumulators_, isa)

namespace custom_fp {

const AccumulatorKernels& CFP_NAME(CFP_ISA)() {
    static const AccumulatorKernels kernels = {dot_rows, add_at_once};
    return kernels;
}

}  // namespace custom_fp
