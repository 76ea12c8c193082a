"""Test vectors of a number format or an accumulator: inputs, and the results that the definition requires.

    python -m custom_fp.vectors REQUEST.json FILE      # this is how `cpdrun formats --vectors NAME` runs it

Use the vectors to test another implementation, such as hardware. The results are computed by the reference
implementation in Python (reference.py, scaled/ and tabulated/), never by a compiled kernel. Values are packed and
unpacked, so the codes are the same as in memory or on a network. The first line of the file describes the format. Each
other line is one vector:

    formats without scales      input, code and value. With stochastic rounding also `random`, the 32 random bits.
    formats with scales         a tensor of one block, or of two blocks if the whole tensor has a scale: inputs, codes,
                                scales, zero_points, tensor_scale, values and random.
    accumulators                two vectors and their dot product: a, b and result, as codes (dot_products.py).

All numbers are written in hexadecimal digits. Values are the bits of float32, and codes and scales are the bits of
their formats. NaN is 7fc00000.
"""
