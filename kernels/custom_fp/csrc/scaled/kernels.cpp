// The loops over formats with scales, of one instruction set: CMake compiles this file once for each, with CFP_ISA as
// its name.
#include "scaled/cpu_affine.h"
#include "scaled/cpu_codebook.h"

#define CFP_JOIN(a, b) a##b
#define CFP_NAME(isa) CFP_JOIN(scaled_, isa)

namespace custom_fp {

const ScaledKernels& CFP_NAME(CFP_ISA)() {
    static const ScaledKernels kernels = {
        largest_bits, codebook_quantize, codebook_columns, codebook_encode, join_halves,   split_halves,
        codebook_decode, affine_range,   affine_quantize,  affine_columns,  affine_encode, affine_tile,
        affine_decode,
    };
    return kernels;
}

}  // namespace custom_fp
