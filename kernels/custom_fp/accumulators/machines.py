"""Matrix units whose arithmetic is published, as accumulators. This module does not import torch.

The name of a machine consists of the name of the GPU and the name of the format that it multiplies. Sums are float32,
or fp16 if the name ends in `_to_fp16`. A machine does not round its operands. Round them to the machine's format first,
with a rule for the roles input and weight, or with custom_fp.quantize.

Sources:
  MMA-Sim   Xie, Wang, Yang and Yang, "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores" (arXiv
            2511.10909), and its simulator. The authors found that the simulator gives the same bits as the GPUs. The
            machines here give the same results as the simulator.
  Fasi      Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (PeerJ Computer Science
            7:e330, 2021). On V100, T4 and A100, products are exact. Blocks are added with truncation, and without
            normalization between the additions.
  DeepSeek  DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv 2412.19437), section 3.3.2. FP8 products on Hopper keep
            about 14 bits, so partial sums are added to float32 registers after every 128 terms. The scales of their
            blocks are not part of the machine here.
  PTX       The machine code that ptxas 12.9 generates for mma.sync with fp8 operands (m16n8k32) on sm_90 and sm_100.
            These GPUs do not have this instruction in hardware (see also github.com/NVIDIA/cutlass/issues/1986). The
            code converts the operands to fp16 and computes a sum of 32 terms, starting from zero, with two fp16
            instructions. The first instruction adds the 16 terms whose k mod 4 is 0 or 1, and the second one adds the
            other terms. The sum is then added to the accumulator and rounded to nearest. The machine here adds terms in
            the given order. To reproduce the GPU's bits, reorder the terms so that each group of 32 begins with the
            terms of the first instruction.

Blackwell's instructions with block scales (tcgen05, and mma of sm_120, which MMA-Sim models in the same way) have codes
and scales as separate operands. Here, block_scales.py and encodings.py recover codes and scales from float32 values
that were rounded to nearest even. MMA-Sim supports scales for e4m3, e5m2 and e2m1 only, so there is no machine for e3m2
and e2m3 with scales.

CDNA 3's instructions with k = 4 (4x4x4, 16x16x4, 32x32x4) are missing. They use blocks of 4 terms instead of 8.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    text: str
    """The name of the accumulator, for `Accumulator.parse`."""
    what: str
    """The instruction, and the source for its arithmetic."""


_RZ = "toward_zero"
_MMA = "MMA-Sim"


def _tensor_core(of: str, terms: int, width: int, sum_: str = "fp32") -> str:
    """Return the name of the accumulator of a tensor core.

    The products of a block and the partial sum are aligned and added. The result is truncated if sums are float32, and
    rounded to nearest if sums are fp16.
    """
    rounding = "" if sum_ == "fp16" else f"-{_RZ}"
    return f"{sum_}-of_{of}-block_{terms}-width_{width}{rounding}"


def _of_groups(of: str) -> str:
    """Return the name of the accumulator of a tensor core for e2m1 with scales.

    Groups of 16 products are added exactly. The sums of the groups are then aligned by the groups' scales.
    """
    return f"fp32-of_{of}-block_64-width_35-group_16-{_RZ}"


def _matrix_core(of: str, terms: int, split: int = 1) -> str:
    """Return the name of the accumulator of a matrix core of CDNA 3.

    Products are aligned by their largest exponent and truncated. If split is 2, this is done separately for even and
    odd terms. The sum of the products and the partial sum are then aligned by the larger exponent and rounded down. The
    result is rounded to nearest.
    """
    halves = f"-split_{split}" if split > 1 else ""
    return f"fp32-of_{of}-block_{terms}-width_24-join_31_24{halves}"


# If several machines have the same arithmetic, the accumulator is named after the first of them.
MACHINES: dict[str, Machine] = {
    "v100_fp16": Machine(_tensor_core("fp16", 4, 23), f"Volta, m8n8k4; {_MMA}, Fasi"),
    "v100_fp16_to_fp16": Machine(_tensor_core("fp16", 4, 23, "fp16"), f"Volta, m8n8k4; {_MMA}"),
    "a100_fp16": Machine(_tensor_core("fp16", 8, 24), f"Ampere, m16n8k16 in two halves; {_MMA}, Fasi"),
    "a100_fp16_to_fp16": Machine(
        _tensor_core("fp16", 8, 24, "fp16"), f"Ampere, m16n8k16 in two halves; {_MMA}"
    ),
    "a100_bf16": Machine(_tensor_core("bf16", 8, 24), f"Ampere, m16n8k16 in two halves; {_MMA}, Fasi"),
    "a100_tf32": Machine(_tensor_core("tf32", 4, 24), f"Ampere, m16n8k8 in two halves; {_MMA}, Fasi"),
    "t4_fp16": Machine(_tensor_core("fp16", 8, 24), f"Turing, m16n8k8; {_MMA}"),
    "t4_fp16_to_fp16": Machine(_tensor_core("fp16", 8, 24, "fp16"), f"Turing, m16n8k8; {_MMA}"),
    "l40_fp16": Machine(_tensor_core("fp16", 8, 24), f"Ada Lovelace, as Ampere; {_MMA}"),
    "l40_bf16": Machine(_tensor_core("bf16", 8, 24), f"Ada Lovelace, as Ampere; {_MMA}"),
    "l40_tf32": Machine(_tensor_core("tf32", 4, 24), f"Ada Lovelace, as Ampere; {_MMA}"),
    "l40_fp8": Machine(
        _tensor_core("e4m3fn", 16, 13, "e8m13"), f"Ada Lovelace, m16n8k32 of e4m3 in two halves; {_MMA}"
    ),
    "l40_fp8_to_fp16": Machine(
        _tensor_core("e4m3fn", 16, 13, "fp16"), f"Ada Lovelace, m16n8k32 of e4m3 in two halves; {_MMA}"
    ),
    "h100_fp16": Machine(_tensor_core("fp16", 16, 25), f"Hopper, wgmma k16; {_MMA}"),
    "h100_fp16_to_fp16": Machine(_tensor_core("fp16", 16, 25, "fp16"), f"Hopper, wgmma k16; {_MMA}"),
    "h100_bf16": Machine(_tensor_core("bf16", 16, 25), f"Hopper, wgmma k16; {_MMA}"),
    "h100_tf32": Machine(_tensor_core("tf32", 8, 25), f"Hopper, wgmma k8; {_MMA}"),
    "h100_fp8": Machine(
        _tensor_core("e4m3fn", 32, 13, "e8m13"), f"Hopper, wgmma k32 of e4m3; {_MMA}, DeepSeek"
    ),
    "h100_fp8_e5m2": Machine(_tensor_core("e5m2", 32, 13, "e8m13"), f"Hopper, wgmma k32 of e5m2; {_MMA}"),
    "h100_fp8_e5m2_by_e4m3": Machine(
        _tensor_core("e5m2_e4m3fn", 32, 13, "e8m13"),
        f"Hopper, wgmma k32 of e5m2 (gradients) by e4m3 (weights); {_MMA}",
    ),
    "h100_fp8_to_fp16": Machine(_tensor_core("e4m3fn", 32, 13, "fp16"), f"Hopper, wgmma k32 of e4m3; {_MMA}"),
    "h100_mma_fp8": Machine(
        f"{_tensor_core('fp16', 16, 25)}-chunk_32", f"Hopper, mma.sync k32 of e4m3 and e5m2; PTX, {_MMA}"
    ),
    "h100_mma_fp8_to_fp16": Machine(
        f"{_tensor_core('fp16', 16, 25, 'fp16')}-chunk_32_fp16",
        f"Hopper, mma.sync k32 of e4m3 and e5m2; PTX, {_MMA}",
    ),
    "deepseek_v3": Machine(
        f"{_tensor_core('e4m3fn', 32, 13, 'e8m13')}-chunk_128",
        "h100_fp8, with 128 terms at a time added to float32; DeepSeek",
    ),
    "b200_fp16": Machine(_tensor_core("fp16", 16, 25), f"Blackwell, tcgen05 k16; {_MMA}"),
    "b200_bf16": Machine(_tensor_core("bf16", 16, 25), f"Blackwell, tcgen05 k16; {_MMA}"),
    "b200_tf32": Machine(_tensor_core("tf32", 8, 25), f"Blackwell, tcgen05 k8; {_MMA}"),
    "b200_fp8": Machine(_tensor_core("e4m3fn", 32, 25), f"Blackwell, tcgen05 k32 of e4m3; {_MMA}"),
    "b200_fp8_e5m2": Machine(_tensor_core("e5m2", 32, 25), f"Blackwell, tcgen05 k32 of e5m2; {_MMA}"),
    "b200_fp4": Machine(_tensor_core("e2m1fn", 32, 25), f"Blackwell, tcgen05 k32 of e2m1, no scales; {_MMA}"),
    "b200_mxfp8": Machine(_tensor_core("mxfp8_e4m3", 32, 25), f"Blackwell, mxf8f6f4 of e4m3, ue8m0; {_MMA}"),
    "b200_mxfp8_e5m2": Machine(
        _tensor_core("mxfp8_e5m2", 32, 25), f"Blackwell, mxf8f6f4 of e5m2, ue8m0; {_MMA}"
    ),
    "b200_mxfp8_e5m2_by_e4m3": Machine(
        _tensor_core("mxfp8_e5m2_mxfp8_e4m3", 32, 25), f"Blackwell, mxf8f6f4 of e5m2 by e4m3, ue8m0; {_MMA}"
    ),
    "b200_mxfp8_e4m3_by_e5m2": Machine(
        _tensor_core("mxfp8_e4m3_mxfp8_e5m2", 32, 25), f"Blackwell, mxf8f6f4 of e4m3 by e5m2, ue8m0; {_MMA}"
    ),
    "b200_mxfp4": Machine(_of_groups("mxfp4"), f"Blackwell, mxf4nvf4 (mxf4) of e2m1, ue8m0 of 32; {_MMA}"),
    "b200_nvfp4": Machine(
        _of_groups("nvfp4"), f"Blackwell, mxf4nvf4 of e2m1, ue4m3 of 16, then the tensors' scales; {_MMA}"
    ),
    "mi100_fp16": Machine("fp32-block_4-pairwise", f"CDNA 1, trees of four float32 terms; {_MMA}"),
    "mi100_bf16": Machine("fp32-block_2-pairwise", f"CDNA 1, pairs of float32 terms; {_MMA}"),
    "mi100_fp32": Machine("fp32-fused", f"CDNA 1 to 3, a fused multiply-add per term; {_MMA}"),
    "mi250_fp16": Machine(
        "fp32-of_fp16-block_4-flush-pairwise", f"CDNA 2, as CDNA 1 without subnormals; {_MMA}"
    ),
    "mi250_bf16": Machine(
        "fp32-of_bf16-block_4-flush-pairwise", f"CDNA 2, the instructions called bf16_1k; {_MMA}"
    ),
    "mi250_bf16_of_cdna1": Machine(
        "fp32-of_bf16-block_2-flush-pairwise", f"CDNA 2, CDNA 1's instructions; {_MMA}"
    ),
    "mi300_fp16": Machine(_matrix_core("fp16", 8), f"CDNA 3, k = 8 and 16; {_MMA}"),
    "mi300_bf16": Machine(_matrix_core("bf16", 8), f"CDNA 3, k = 8 and 16; {_MMA}"),
    "mi300_xf32": Machine(_matrix_core("tf32", 4), f"CDNA 3; {_MMA}"),
    "mi300_fp8": Machine(_matrix_core("e4m3fnuz", 16, 2), f"CDNA 3, e4m3fnuz (fp8); {_MMA}"),
    "mi300_fp8_e5m2": Machine(_matrix_core("e5m2fnuz", 16, 2), f"CDNA 3, e5m2fnuz (bf8); {_MMA}"),
    "mi300_fp8_e5m2_by_e4m3": Machine(
        _matrix_core("e5m2fnuz_e4m3fnuz", 16, 2), f"CDNA 3, bf8 by fp8; {_MMA}"
    ),
    "mi300_fp8_e4m3_by_e5m2": Machine(
        _matrix_core("e4m3fnuz_e5m2fnuz", 16, 2), f"CDNA 3, fp8 by bf8; {_MMA}"
    ),
}
