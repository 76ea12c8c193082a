"""matmul against the low-precision GEMM of the APS authors (github.com/drcut/CPD, commit ddd9a67, float_kernel.cu).

Their CUDA kernel was compiled for the CPU as it is, a thread for each of a block's 64 and a barrier for __syncthreads,
with -ffp-contract=off, and run on the matrices below; here are the digests of what came out. It adds with Kahan's
compensation, k ascending; the plain sum stands in it as a comment. M is a multiple of 16: in the part for what is left
over, it compensates from memory that nothing has set. Each operand has 11 bits, so that its product of two is exact in
float32, in which that kernel forms it.
"""

import hashlib

import custom_fp
import pytest
import torch

M, K, N = 32, 37, 21
THEIRS = {  # SHA-256 of the float32 results in rows, little-endian, -0 as 0: first 16 digits; and the first three
    "e8m0": ("cbffaa05896f1f7b", [4.0, 2.0, -0.5]),
    "e7m1": ("27ecdbc8ce3b778a", [4.0, 2.0, -1.0]),
    "e5m2": ("3ab41386e0b13daa", [4.0, 2.0, -1.0]),
    "e8m2": ("3ab41386e0b13daa", [4.0, 2.0, -1.0]),
    "e4m3": ("935851b3c571ce0a", [4.0, 2.5, -0.9375]),
    "e8m3": ("a50e9a9977feaeb2", [4.0, 2.5, -0.9375]),
    "e6m5": ("59a3f6e517440072", [3.9375, 2.375, -0.90625]),
    "bf16": ("80126e02252024f2", [3.921875, 2.40625, -0.91796875]),
    "e6m9": ("ee6e8a0162d3b9bd", [3.91796875, 2.40234375, -0.912109375]),
    "fp16": ("9b74266eddd5eec1", [3.91796875, 2.40234375, -0.9140625]),
}


def matrices() -> tuple[torch.Tensor, torch.Tensor]:
    i, j = torch.arange(M * K).view(M, K), torch.arange(K * N).view(K, N)
    a = ((7 * i * i + 40503 * i + 11) % 2039 - 1019).float() / 1024
    b = ((5 * j * j + 30011 * j + 3) % 2029 - 1014).float() / 1024
    return a, b


@pytest.mark.parametrize("fmt", THEIRS)
def test_products_with_kahan_equal_the_authors_kernel(fmt):
    a, b = matrices()
    found = custom_fp.matmul(a, b, accumulator=fmt, kahan=True)
    digest, first = THEIRS[fmt]
    assert found[0, :3].tolist() == first
    assert hashlib.sha256((found + 0.0).numpy().tobytes()).hexdigest()[:16] == digest
    assert not torch.equal(found, custom_fp.matmul(a, b, accumulator=fmt)), "the plain sum is another"
