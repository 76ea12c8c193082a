// The kernels for formats that are tables of values, for one instruction set. CMake compiles this file once for each
// instruction set, with CFP_ISA as its name.
#include "cpu/isa.h"
#include "cpu/matmul.h"
#include "tabulated/cpu_tabulated.h"

namespace custom_fp {

template <> const TableKernels& kernels_for<TableKernels, Isa::CFP_ISA>() {
    static const TableKernels kernels = {
        {table_quantize_range, table_accumulate_range, table_encode_range, table_decode_range, table_pack_range,
         table_unpack_range, table_accumulate_packed_range, table_matmul_range},
    };
    return kernels;
}

}  // namespace custom_fp
