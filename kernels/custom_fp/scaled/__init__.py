"""The arithmetic of formats with scales: codebooks, elements in blocks, affine integers (of which affine.py tells).

Blocks are cut from the elements in memory order, or, where `quantize` is given an axis, along that; a codebook without
a block size has one scale for the tensor. A tensor without elements has no blocks.

NaN, inf   a block that holds one has a NaN scale and decodes to NaN throughout, so that a diverged run stays visible
-0         becomes +0 in a codebook and in mxint8, stays -0 in the floating-point elements of MX
zeros      a block of zeros decodes to zeros (a codebook without zero: to its value nearest to zero times 0)
subnormal  kept; a codebook's scale may be subnormal, MX's e8m0 ends at 2**-127
ties       codebook: to the smaller magnitude, of -v and v to v; MX: to nearest even
overflow   none in a codebook; MX elements saturate at the largest value (section 6.3 of MX 1.0)

Inputs are rounded to float32 first. blocks.py has what all such formats share; codebook.py and mx.py compute in torch
on any device, codebook_native.py and mx_native.py with the compiled extension on the CPU: the same bits.
"""
