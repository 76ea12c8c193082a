// The loops over scaled formats of one instruction set: CMake compiles this file once for each, with CFP_ISA as its name.
#include "tiles/cpu_tiles.h"

#define CFP_JOIN(a, b) a##b
#define CFP_NAME(isa) CFP_JOIN(tiles_, isa)

namespace custom_fp {

const TileKernels& CFP_NAME(CFP_ISA)() {
    static const TileKernels kernels = {largest_bits, quantize_tiles, encode_tiles, decode_tiles,
                                        quantize_one, encode_one,     decode_one,   join_range,  split_range};
    return kernels;
}

}  // namespace custom_fp
