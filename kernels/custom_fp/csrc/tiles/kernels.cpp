// The kernels for formats with scales, for one instruction set. CMake compiles this file once for each instruction set,
// with CFP_ISA as its name.
#include "cpu/isa.h"
#include "tiles/cpu_tiles.h"

namespace custom_fp {

template <> const TileKernels& kernels_for<TileKernels, Isa::CFP_ISA>() {
    static const TileKernels kernels = {largest_bits, quantize_tiles, encode_tiles, decode_tiles,
                                        quantize_one, encode_one,     decode_one,   join_range,  split_range};
    return kernels;
}

}  // namespace custom_fp
