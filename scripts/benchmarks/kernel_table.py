"""What machine code does NVRTC generate for each CUDA kernel, and how close to the bandwidth of a copy can it come?

    python scripts/benchmarks/kernel_table.py --output results/reference/numerics/kernels.md

The table contains registers, stack, spills, shared memory, widths of memory accesses, the number of instructions per
element, and the share of a copy's bandwidth that is possible with this number. No GPU is needed. The script takes about
three minutes.

The figures are read from the machine code with `cuobjdump` and `nvdisasm`, which are installed with Triton and torch
for CUDA. The number of blocks per SM, of 256 threads each, is limited by its 65,536 registers and its largest number of
threads. Instructions are counted in the code, including the paths for unaligned addresses and for remainders. The
number of instructions per element is the number of PTX instructions that are executed on the CPU
(kernels/tests/ptx/ptx_work.py), multiplied by the kernel's machine instructions and divided by its PTX instructions.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch  # noqa: F401  so that torch's NVRTC is used
from cupy.cuda import nvrtc as cupy_nvrtc
from custom_fp import cuda, nvrtc

sys.path.insert(0, str(Path(__file__).parents[2] / "kernels" / "tests" / "ptx"))
from ptx_device import Device, ptx_of
from ptx_work import Work, work_of

RESOURCES = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", re.M)
ACCESS = re.compile(r"\b(LD|ST)G?\.E((?:\.\w+)*)")
COLUMNS = (
    *("kernel", "registers", "blocks an SM", "stack, bytes", "local loads and stores", "shared, bytes"),
    *("instructions", "bytes a load", "bytes a store", "instructions an element", "share of a copy", "of"),
)


@dataclass(frozen=True)
class Machine:
    """The rates of a GPU.

    In each clock cycle, an SM issues 128 instructions (4 schedulers, 32 lanes): at most 64 on integers, comparisons and
    logic, 32 shared or global accesses or shuffles, 16 conversions and reciprocals, and `doubles` on float64.
    """

    name: str
    sms: int
    ghz: float
    tb_s: float
    doubles: int

    def share(self, work: Work, instructions: float, of: Counter) -> float:
        """Return the largest share of a copy's bandwidth: the time of the bytes divided by that of the instructions."""
        every = of.total() or 1
        clocks = max(
            instructions / 128,
            instructions * of["whole"] / every / 64,
            instructions * of["memory"] / every / 32,
            instructions * of["special"] / every / 16,
            work.doubles / self.doubles,
        )
        return work.bytes / (self.tb_s * 1e12) / (clocks / (self.sms * self.ghz * 1e9))


MACHINES = {
    80: Machine("A100", 108, 1.41, 2.04, 32),
    90: Machine("H100", 132, 1.7, 3.35, 64),
    100: Machine("B200", 148, 1.8, 8.0, 64),
    120: Machine("RTX 5090", 170, 2.4, 1.79, 2),
}
# The units that execute machine instructions, by the first letters of the instructions. All others work on integers.
UNITS = {
    "other": (
        *("FADD", "FMUL", "FFMA", "IMAD", "U", "R2U", "S2", "CS2", "B", "EXIT", "CALL", "RET", "WARP"),
        *("NOP", "D"),
    ),
    "memory": ("LD", "ST", "ATOM", "RED", "SHFL"),
    "special": ("MUFU", "F2F", "F2I", "I2F", "POPC", "FLO", "BREV"),
}
HEAD = """
`instructions an element` is an estimate. The kernel's PTX (compute_90) runs on the CPU on normal numbers, with as many
elements in each thread as for 2^26 elements. The number of executed PTX instructions for each element is multiplied by
the number of the kernel's machine instructions and divided by the number of its PTX instructions. A warp whose threads
diverge executes the instructions of all of them, which is not included. For products and dot products, an element is a
term of a sum. `of` names the call. If a format has a scale for the whole tensor, torch finds it, which is not counted.

`share of a copy` is the time in which memory moves the bytes of the call (inputs and results once each), divided by the
time in which the machine issues its instructions. It is 1 or more if the kernel waits for memory, so that a copy of as
many bytes is not faster. Products have no such bytes. Assumed: {machines}. In each clock, an SM issues 128
instructions: at most 64 on integers, comparisons and logic, 32 accesses and shuffles, and 16 conversions and
reciprocals. Nothing else is waited for. These figures were not measured on a GPU.
"""
REGISTERS, THREADS, MOST_THREADS = 65536, 256, {80: 2048, 86: 1536, 89: 1536, 120: 1536}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architectures", type=int, nargs="+", default=[80, 90, 100, 120])
    parser.add_argument("--output", type=Path, help="write the tables to this file as well")
    options = parser.parse_args()
    major, minor = cupy_nvrtc.getVersion()
    lines = [
        "# The CUDA kernels as machine code",
        "",
        f"`python scripts/benchmarks/kernel_table.py`, NVRTC {major}.{minor}.",
        HEAD.format(machines=", ".join(map(describe, MACHINES.values()))),
    ]
    with tempfile.TemporaryDirectory() as folder:
        device = Device(ptx_of(cuda.KERNELS), nvrtc.source(), Path(folder))
        works = work_of(device)
    for architecture in options.architectures:
        lines += [f"## sm_{architecture}", "", *table(architecture, works, device.written), ""]
    print("\n".join(lines))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines))


def describe(machine: Machine) -> str:
    m = machine
    return f"{m.name}: {m.sms} SMs at {m.ghz} GHz, {m.tb_s} TB/s, {m.doubles} float64 instructions a clock"


def table(architecture: int, works: dict[str, Work], written: dict[str, int]) -> list[str]:
    """Return a Markdown table of all kernels. Local loads and stores include spills."""
    found = {}
    for part in dict.fromkeys(map(nvrtc.part_of, cuda.KERNELS)):
        found |= read_part(part, architecture)
    rows = [
        f"| {name} | {row(architecture, *found[name], works.get(name), written[name])} |"
        for name in cuda.KERNELS
    ]
    return [f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS), *rows]


def read_part(part: tuple[str, ...], architecture: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the listing and the resources of each kernel of a part."""
    code = nvrtc.compile_source(
        nvrtc.source(), [f"--gpu-architecture=sm_{architecture}", "-w", *nvrtc.OPTIONS, *part]
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        used, listing = (
            run(*c, file.name) for c in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    texts = dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", listing, re.S | re.M))
    return {name: (texts[name], tuple(map(int, rest))) for name, *rest in RESOURCES.findall(used)}


def row(architecture: int, text: str, used: tuple[int, ...], work: Work | None, written: int) -> str:
    registers, stack, shared, _ = used
    given = -(-registers // 8) * 8 * THREADS
    blocks = min(REGISTERS // given, MOST_THREADS.get(architecture, 2048) // THREADS)
    opcodes = INSTRUCTION.findall(text)
    local = sum(opcode in ("LDL", "STL") for opcode in opcodes)
    widths = {
        kind: sorted({width(how) for what, how in ACCESS.findall(text) if what == kind})
        for kind in ("LD", "ST")
    }
    cells = (
        registers,
        blocks,
        stack,
        local,
        shared,
        len(opcodes),
        *(", ".join(map(str, w)) for w in widths.values()),
    )
    return " | ".join(map(str, (*cells, *bound(architecture, opcodes, work, written))))


def bound(architecture: int, opcodes: list[str], work: Work | None, written: int) -> tuple[str, str, str]:
    """Return the last three columns of a row. They are empty for unknown GPUs and for kernels without a test case."""
    if work is None:
        return "", "", ""
    units = Counter(unit_of(opcode) for opcode in opcodes if opcode != "NOP")
    instructions = work.instructions * units.total() / written
    is_product = work.bytes < 1
    machine = None if is_product else MACHINES.get(architecture)
    share = f"{machine.share(work, instructions, units):.2f}" if machine else ""
    return f"{instructions:.0f}", share, work.what


def unit_of(opcode: str) -> str:
    return next((unit for unit, starts in UNITS.items() if opcode.startswith(starts)), "whole")


def width(how: str) -> int:
    """Return the bytes of one access of a thread, from the suffix of LDG.E, LD.E, STG.E or ST.E."""
    known = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    return next((known[word] for word in how.split(".") if word in known), 4)


def run(program: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / program
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
