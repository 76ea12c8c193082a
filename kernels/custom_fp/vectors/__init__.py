"""Known-answer vectors of a number format, for whoever builds it: inputs, and what the definition makes of them.

    python -m custom_fp.vectors REQUEST.json FILE      # cpdrun formats --vectors NAME asks so

The answers are the definition's (reference.py, scaled/ and tabulated/ in torch, never a compiled kernel), by way of
packed bytes, so that codes are what a wire or a memory holds. The first line says of what format, and defines it; each
other one is a vector:

    formats without scales      input, code, value; `random`, the 32 random bits, where rounding is stochastic
    formats with scales         a whole tensor of one block, or two where the tensor has a scale: inputs, codes, scales,
                                zero_points, tensor_scale, values, random
    accumulators                two vectors and their dot product: a, b, result; codes (dots.py)

Numbers are the bits of float32, codes and scales those of their formats, in hexadecimal digits. NaN is 7fc00000.
"""
