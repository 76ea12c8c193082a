"""Check custom_fp on a tensor with 2**31 + 8 values, where 32-bit indices would overflow.

The checks are rounding in place, packing to 2 bits, and exponents.

python scripts/checks/large_tensor.py [cpu | cuda]        # needs 10 GB of memory; takes about a minute
"""

import argparse

import custom_fp
import torch

N = 2**31 + 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    x = torch.zeros(N, device=device)
    ends = torch.tensor([1.1, -2.2, 3.3, -4.4, 0.3, 1e-3, -0.0, 2.6], device=device)
    x[:8] = x[-8:] = ends
    assert custom_fp.max_exponent(x) == 3
    custom_fp.quantize(x, "e5m2", out=x)
    expected = custom_fp.quantize(ends, "e5m2")
    assert torch.equal(x[:8], expected) and torch.equal(x[-8:], expected)
    assert int(torch.count_nonzero(x)) == 14
    data = custom_fp.pack(x, "e1m0")
    assert data.numel() == N // 4 and torch.equal(data[-2:], custom_fp.pack(expected, "e1m0"))
    custom_fp.unpack(data, "e1m0", (N,), out=x)
    assert torch.equal(x[-8:], custom_fp.quantize(expected, "e1m0"))
    print(f"{N} values on {device}: as expected")


if __name__ == "__main__":
    main()
