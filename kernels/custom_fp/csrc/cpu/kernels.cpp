// The kernels for elements, for one instruction set. CMake compiles this file once for each, with CFP_ISA as its name.
#include "cpu/accumulate.h"
#include "cpu/codes.h"
#include "cpu/elementwise.h"
#include "cpu/hadamard.h"
#include "cpu/isa.h"
#include "cpu/matmul.h"

namespace custom_fp {

template <> const FormatKernels& kernels_for<FormatKernels, Isa::CFP_ISA>() {
    static const FormatKernels kernels = {
        {quantize_range, accumulate_range, encode_range, decode_range, pack_range, unpack_range, accumulate_packed_range,
         matmul_range},
        scale_range,
        max_magnitude_range,
        hadamard_range,
    };
    return kernels;
}

}  // namespace custom_fp
