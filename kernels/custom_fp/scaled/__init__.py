"""The arithmetic of formats with scales: codebooks, elements in blocks, affine integers (of which affine.py tells).

Blocks are cut from the elements in memory order, or along an axis; tiles from the last two dimensions. A codebook
without a block size has one scale for the tensor. A tensor without elements has no blocks, but that one scale.

NaN, inf   a block that holds one has a NaN scale and decodes to NaN throughout, so that a diverged run stays visible; a
           scale of the tensor is taken from what is finite
-0         becomes +0 in a codebook and in integers, stays -0 in floating-point elements
zeros      a block of zeros decodes to zeros (a codebook without zero: to its value nearest to zero times 0)
subnormal  kept; a codebook's scale may be subnormal, e8m0 ends at 2**-127, a float32 scale of elements at 2**-126
ties       codebook: to the smaller magnitude, of -v and v to v; elements: to nearest even
overflow   none in a codebook; elements saturate at the largest value (section 6.3 of MX 1.0)

Inputs are rounded to float32 first. formats/block.py says each step of elements in blocks. blocks.py has what codebooks
share with them. codebook.py, tiles.py and affine.py compute in torch on any device; *_native.py with the compiled
extensions on the CPU and *_cuda.py with CUDA's kernels: the same bits.
"""
