"""Known-answer vectors of a number format or an accumulator: inputs, and the results that the definition gives.

    python -m custom_fp.vectors REQUEST.json FILE      # how cpdrun formats --vectors NAME runs it

Use them to test another implementation, such as hardware. The results come from the reference implementation in Python
(reference.py, scaled/ and tabulated/), never from a compiled kernel. Values are packed and unpacked, so codes are what
memory or a network would hold. The first line of the file describes the format. Each other line is one vector:

    formats without scales      input, code, value; `random`, the 32 random bits, if rounding is stochastic
    formats with scales         a tensor of one block, or of two if the tensor has a scale: inputs, codes, scales,
                                zero_points, tensor_scale, values, random
    accumulators                two vectors and their dot product: a, b, result, as codes (dot_products.py)

Numbers are written as the bits of float32, and codes and scales as those of their formats, in hexadecimal digits. NaN
is 7fc00000.
"""
