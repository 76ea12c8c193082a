"""Sums, casts and products against the code of APS's authors, github.com/drcut/CPD at ddd9a67: digests of its results.

How they were computed, once, in a temporary folder, on a CPU, with the inputs of `gradient`, `cast_inputs`, `matrix`:

    cast    `cast_precision` of float_kernel.cu, its CUDA words defined away, compiled by g++ 12 as C++, value by value.
    sums    `sum_gradients` of dist_util.py as it is, with `float_quantize` calling that cast and `Tensor.cuda` the
            identity. With emulate_node > 1, lines 254 to 283 of example/ResNet18/tools/mix.py run before it in each
            process, on the gradients of its own workers. The rows of 2, 4 and 8 processes come from gloo processes. For
            3, 5, 6, 7 and 12 processes, each process is a thread, and a barrier replaces the collective operations. The
            threads also give the digests of 2, 4 and 8 processes.
    GEMM    `tvm_gemm` of float_kernel.cu likewise, each block as 64 threads with a barrier for __syncthreads.

A digest is the beginning of the SHA-256 of the results' little-endian float32 bytes. The inputs avoid the errors of
their code, which cpdrun/comm/sums/codec.py lists. Two tests show such errors: three values that their cast rounds
incorrectly, and a layer that their APS turns into NaN because it rounds to zero. No row of `SUMS` has such a layer.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import custom_fp
import pytest
import torch
import yaml
from bits import reduce

from cpdrun.comm import AllReduceSync
from cpdrun.comm.sums.scaling import APS

KNOBS = yaml.safe_load((Path(__file__).parents[2] / "conf" / "sync" / "all_reduce.yaml").read_text())
del KNOBS["_target_"]
SIZES = (40, 17)

# processes, emulate_node, format; without APS: plain, Kahan; with APS: plain, Kahan
SUMS = """
2 1 e5m2 2de57342 bf58a458 4adfbc8d 4adfbc8d
2 1 e3m0 568d47de c6cb0fbf f2ae33ed f2ae33ed
2 1 e4m1 9abafb95 5295d5b6 5cb7eed8 5cb7eed8
2 1 e5m7 ee278789 9723c4e3 fca11205 fca11205
8 1 e5m2 7bea2762 3d85e871 7afecc8d 41de2a54
8 1 e3m0 84a6695a 44090fde 0027dbea da3356d6
8 1 e4m1 a85e66ef a16747de 998e7b8e 20c20b30
8 1 e5m7 e263a044 b9751f17 fe3d3262 fb7b77de
3 1 e5m2 c561d669 18a6990b f04fab8a 8e801b1b
3 1 e3m0 5b2ff1a8 331086b4 4ba2bb33 5fbeb977
3 1 e4m1 4bf8a983 cb4ebda0 895a0f5c 3e97df57
3 1 e5m7 5c583792 f4d6d7c7 09bfb47a 61551b9d
5 1 e5m2 b3af9dbe d9e14feb 657ca37b 8dd585f6
5 1 e3m0 85a1ffe3 41314638 a4c4fa46 799600e3
5 1 e4m1 241275ef b18f3346 a0542aa8 03fca012
5 1 e5m7 0eda7fc7 dafa7ff3 ba9bab82 22b56563
6 1 e5m2 cb2547ab 1801d5cd 946664fd d2f4590f
6 1 e3m0 99f4af99 9871305a 4497575d ef9e5bc4
6 1 e4m1 2d79c9e0 aa4aea52 0c3dc3a2 99d7f1c7
6 1 e5m7 ba8fcdb4 fecb37e1 c9804a02 5e14c813
7 1 e5m2 960163fb bb1a9edb 1909cd85 de465750
7 1 e3m0 521219ed fd791d0c 3aab1708 89c7c2a9
7 1 e4m1 bf0772a7 9a90788e 2377e4c2 80dc428a
7 1 e5m7 126ae9f1 2fca0da0 653daf17 2fb3f46b
12 1 e5m2 e6bc4893 c99bab73 d2b4804c 124ae85b
12 1 e3m0 f001b963 9ac80a36 faedf753 7921767b
12 1 e4m1 c7391f57 92db30ed e0c2764d 44b831e0
12 1 e5m7 63bdeb19 b2d8513e 6f2b5e2c 35861d6c
2 2 e5m2 60aeb832 60aeb832 3f15b7f2 3f15b7f2
2 2 e3m0 b43217a4 b43217a4 ba3b06d7 ba3b06d7
2 2 e4m1 7f9a18e5 7f9a18e5 e0bd30bf e0bd30bf
2 2 e5m7 0d64deb6 0d64deb6 bde6a6e6 bde6a6e6
4 4 e5m2 162d1d93 da501037 9a017391 60b1f11a
4 4 e3m0 1908c44b 0a9db7a9 f28416c8 f28416c8
4 4 e4m1 b39b6365 e86c6b95 c318de68 fe594826
4 4 e5m7 f9fc7bf0 b7d4bd05 4a31ed40 ef0eda68
3 5 e5m2 31284cfb c7443d08 263f1818 f5b0019e
3 5 e3m0 eb81d2c3 eff24384 654c3cf8 792a89dd
3 5 e4m1 94a3fcea f95bf0a3 10acc795 a236744c
3 5 e5m7 6400f8fd 34250e79 dd6e50b9 3aa24f18
6 6 e5m2 6df015d4 9ff87135 715c93ca f48bf7b9
6 6 e3m0 535b3680 4bec270f 3608f364 67bbd681
6 6 e4m1 207375a7 26919578 c199e095 483c816e
6 6 e5m7 4bc7ea9e 7fcbdc71 7dfec952 3174c266
"""


def digest(tensors: Sequence[torch.Tensor], digits: int) -> str:
    data = b"".join(tensor.numpy().astype("<f4").tobytes() for tensor in tensors)
    return hashlib.sha256(data).hexdigest()[:digits]


def gradient(layer: int, worker: int) -> torch.Tensor:
    """Sixteen-bit integers over nine binades, up to 1 in the first layer and 2^-6 in the second."""
    integers = [(i * 7919 + worker * 104729 + layer * 1299709 + 1) * 48271 for i in range(SIZES[layer])]
    return torch.tensor(
        [(k % 65521 - 32760) * 2.0 ** (-(i % 9) - 15 - 6 * layer) for i, k in enumerate(integers)]
    )


def all_reduce_sync(
    processes: int, per_process: int, fmt: str, aps: bool, kahan: bool, compat: str | None
) -> AllReduceSync:
    order = {"order": "hierarchical", "group_size": per_process} if per_process > 1 else {"order": "rank"}
    return AllReduceSync(
        format=fmt,
        scaling=APS() if aps else None,
        world_size=processes * per_process,
        parameter_names=["a", "b"],
        **KNOBS | order | {"kahan": kahan, "compat": compat},
    )


def summed(processes: int, per_process: int, fmt: str, aps: bool, kahan: bool, compat: str | None) -> str:
    sync = all_reduce_sync(processes, per_process, fmt, aps, kahan, compat)
    workers = [[gradient(0, w), gradient(1, w)] for w in range(processes * per_process)]
    return digest(reduce(sync, workers), 8)


@pytest.mark.parametrize("row", SUMS.strip().splitlines())
def test_sums_are_those_of_the_authors(row: str) -> None:
    """compat=cpd always; the default except unrounded addition (one level, no APS) and Kahan inside a node."""
    processes, per_process, fmt, *theirs = row.split()
    n, m = int(processes), int(per_process)
    for i, expected in enumerate(theirs):
        aps, kahan = i > 1, i % 2 == 1
        assert summed(n, m, fmt, aps, kahan, "cpd") == expected, (aps, kahan)
        departs = (m == 1 and not aps) or (m > 2 and kahan)
        ours = summed(n, m, fmt, aps, kahan, None)
        if not departs:
            assert ours == expected, (aps, kahan)
        elif not kahan:
            assert ours != expected, (aps, kahan)


def test_layer_that_rounds_to_zero_stays_zero() -> None:
    """In e2m1, APS in groups of 7 rounds each gradient to 0. The authors' APS then makes the whole layer NaN."""
    workers = [[gradient(0, w), gradient(1, w)] for w in range(14)]
    for compat in (None, "cpd"):
        sync = all_reduce_sync(2, 7, "e2m1", aps=True, kahan=False, compat=compat)
        assert not any(layer.any() for layer in reduce(sync, workers))


def cast_inputs(fmt: custom_fp.Format) -> torch.Tensor:
    """Significands of 12 bits over all binades of the format but its last, and five below its smallest value."""
    low, high = fmt.emin - fmt.mantissa_bits - 5, fmt.emax
    integers = [(-1) ** k * (2048 + k * 48271 % 2048) for k in range(3000)]
    return torch.tensor([value * 2.0 ** (low - 11 + k % (high - low)) for k, value in enumerate(integers)])


CASTS = """
e2m1 0a82a63fb07a391c e2m3 366fbbaade8bfc1e e3m0 b1a4d0bff05e0413 e3m2 acddcc08401b141f
e3m4 13e6b26594fe2dd1 e4m0 ad6dd144319c413a e4m1 fdaca8baeb468656 e4m3 69cf72acc9c4aee6
e5m0 92446d186c9f8910 e5m2 4dd0c90e3e3d09b9 e5m7 91fe74e6a1cedf6c e6m1 1a9f7964a4baf80a
"""


@pytest.mark.parametrize(("name", "theirs"), zip(CASTS.split()[::2], CASTS.split()[1::2], strict=True))
def test_casts_are_those_of_the_authors(name: str, theirs: str) -> None:
    fmt = custom_fp.Format.parse(name)
    assert digest([custom_fp.quantize(cast_inputs(fmt), fmt)], 16) == theirs


@pytest.mark.parametrize(
    ("name", "value", "theirs", "right"),
    [
        ("e4m3", 2.0**-10 * (1 + 2.0**-23), 0.0, 2.0**-9),  # above the tie, by a bit that was shifted away
        ("e4m3", 248.0, 256.0, float("inf")),  # rounds past 240, the largest value
        ("e8m7", 2.0**-130, 0.0, 2.0**-130),  # a float32 subnormal that the format holds
    ],
)
def test_errors_of_the_authors_cast_are_not_reproduced(
    name: str, value: float, theirs: float, right: float
) -> None:
    assert custom_fp.quantize(torch.tensor(value), name).item() == right != theirs


def matrix(seed: int, rows: int, columns: int) -> torch.Tensor:
    integers = torch.arange(rows * columns, dtype=torch.int64)
    return (((integers * 7919 + seed) * 48271 % 251 - 125) / 256).to(torch.float32).view(rows, columns)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("e5m2", "7b9592c961e13aa5"),
        ("e4m3", "fe0e9db2909f0c12"),
        ("e3m0", "c94e9cecc63c4dfe"),
        ("e5m7", "c7e824851b520277"),
        ("e5m10", "4c5626d9d618baf3"),
    ],
)
def test_products_are_those_of_the_authors(name: str, theirs: str) -> None:
    """Theirs always sums as Kahan does."""
    ours = custom_fp.matmul(matrix(1, 16, 24), matrix(2, 24, 12), accumulator=name, kahan=True)
    assert digest([ours], 16) == theirs


def test_unrounded_gradients_are_sent_in_float32() -> None:
    sent = {}
    for compat, aps in (("cpd", False), ("cpd", True), (None, False)):
        sync = AllReduceSync(
            format="e4m3",
            scaling=APS() if aps else None,
            world_size=4,
            parameter_names=["a"],
            **KNOBS | {"compat": compat},
        )
        reduce(sync, [[torch.ones(3200)] for _ in range(4)])
        sent[compat, aps] = sync.wire_bytes()["bytes_per_step_real_worker"]
    assert sent["cpd", False] == 4 * sent[None, False] and sent["cpd", True] >= sent[None, False]


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"compat": "horovod"}, "compat='horovod': choose one of null, cpd"),
        ({"order": "tree"}, "order=tree with compat=cpd: the value must be rank or hierarchical"),
        ({"rounding": "stochastic"}, "must be nearest_even"),
        ({"error_feedback": True}, "error_feedback=true with compat=cpd"),
        ({"format": "mxfp4"}, "does not support format=mxfp4"),
    ],
)
def test_options_that_the_authors_code_lacks_are_refused(knobs: dict, says: str) -> None:
    given = {"format": "e4m3", "world_size": 4, "parameter_names": ["a"]} | KNOBS | {"compat": "cpd"} | knobs
    with pytest.raises(ValueError, match=says):
        AllReduceSync(**given)
