// The loops over formats that are a table, of one instruction set: CMake compiles this file once for each, with CFP_ISA
// as its name.
#include "cpu/matmul.h"
#include "tabulated/cpu_tabulated.h"

#define CFP_JOIN(a, b) a##b
#define CFP_NAME(isa) CFP_JOIN(tabulated_, isa)

namespace custom_fp {

const TableKernels& CFP_NAME(CFP_ISA)() {
    static const TableKernels kernels = {
        table_quantize_range, table_encode_range,     table_decode_range,           table_pack_range,
        table_unpack_range,   table_accumulate_range, table_accumulate_packed_range, table_matmul_range,
    };
    return kernels;
}

}  // namespace custom_fp
