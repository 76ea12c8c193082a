// The kernels for codebooks and affine integers, for one instruction set. CMake compiles this file once for each
// instruction set, with CFP_ISA as its name.
#include "cpu/isa.h"
#include "scaled/cpu_affine.h"
#include "scaled/cpu_codebook.h"

namespace custom_fp {

template <> const ScaledKernels& kernels_for<ScaledKernels, Isa::CFP_ISA>() {
    static const ScaledKernels kernels = {
        largest_bits, codebook_quantize, codebook_columns, codebook_encode, join_halves,   split_halves,
        codebook_decode, affine_range,   affine_quantize,  affine_columns,  affine_encode, affine_tile,
        affine_decode,
    };
    return kernels;
}

}  // namespace custom_fp
