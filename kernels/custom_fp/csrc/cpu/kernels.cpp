// The CPU kernels of one instruction set: CMake compiles this file once for each, with CFP_ISA as its name.
#include "cpu/accumulate.h"
#include "cpu/codes.h"
#include "cpu/elementwise.h"
#include "cpu/hadamard.h"
#include "cpu/matmul.h"

#define CFP_JOIN(a, b) a##b
#define CFP_NAME(isa) CFP_JOIN(kernels_, isa)

namespace custom_fp {

const Kernels& CFP_NAME(CFP_ISA)() {
    static const Kernels kernels = {
        quantize<float>,         quantize<double>,
        scale_range,             scale_wide_range,
        max_magnitude<float>,    max_magnitude<double>,
        accumulate_range,        accumulate_wide_range,
        encode_range,            encode_by_values<double>,
        decode_range,
        pack_range,              pack_wide_range,
        unpack_range,
        accumulate_packed_range,
        matmul_range,
        hadamard_range,
    };
    return kernels;
}

}  // namespace custom_fp
