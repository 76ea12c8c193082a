"""What NVRTC makes of each CUDA kernel: registers, stack, spills, shared memory, widths of its accesses to memory.

    python scripts/kernel_table.py [--architectures 80 90 100 120] [--output results/reference/numerics/kernels.md]

No GPU is needed. Figures are those of the machine code: `cuobjdump` and `nvdisasm`, which Triton brings with torch for
CUDA. Blocks an SM, of 256 threads, are what its 65,536 registers and most threads allow. Instructions are counted as
they stand in the code, those of paths for unaligned addresses and of what is left at an end with them.
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from cupy.cuda import nvrtc
from custom_fp import compiled, cuda

RESOURCES = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
ACCESS = re.compile(r"\b(LD|ST)G?\.E((?:\.\w+)*)")
COLUMNS = (
    *("kernel", "registers", "blocks an SM", "stack, bytes", "local loads and stores", "shared, bytes"),
    *("instructions", "bytes a load", "bytes a store"),
)
REGISTERS, THREADS, MOST_THREADS = 65536, 256, {80: 2048, 86: 1536, 89: 1536, 120: 1536}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--architectures", type=int, nargs="+", default=[80, 90, 100, 120])
    parser.add_argument("--output", type=Path, help="a file that the tables are also written to")
    options = parser.parse_args()
    major, minor = nvrtc.getVersion()
    lines = [
        "# The CUDA kernels as machine code",
        "",
        f"`python scripts/kernel_table.py`, NVRTC {major}.{minor}.",
        "",
    ]
    for architecture in options.architectures:
        lines += [f"## sm_{architecture}", "", *table(architecture), ""]
    print("\n".join(lines))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines))


def table(architecture: int) -> list[str]:
    """Markdown, a row a kernel in the order of cuda.KERNELS. Spills are among the local loads and stores."""
    rows = {}
    for part in dict.fromkeys(map(compiled.part_of, cuda.KERNELS)):
        rows |= of_part(part, architecture)
    head = f"| {' | '.join(COLUMNS)} |"
    return [head, "|" + " --- |" * len(COLUMNS), *(f"| {name} | {rows[name]} |" for name in cuda.KERNELS)]


def of_part(part: tuple[str, ...], architecture: int) -> dict[str, str]:
    code = compiled.compile_source(
        compiled.source(), [f"--gpu-architecture=sm_{architecture}", "-w", *compiled.OPTIONS, *part]
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        used, listing = (
            run(*c, file.name) for c in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    texts = dict(re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", listing, re.S | re.M))
    return {name: row(architecture, texts[name], *map(int, rest)) for name, *rest in RESOURCES.findall(used)}


def row(architecture: int, text: str, registers: int, stack: int, shared: int, _: int) -> str:
    given = -(-registers // 8) * 8 * THREADS
    blocks = min(REGISTERS // given, MOST_THREADS.get(architecture, 2048) // THREADS)
    local = len(re.findall(r"\b(?:LDL|STL)\b", text))
    count = len(re.findall(r"^\s*/\*[0-9a-f]{4,}\*/", text, re.M))
    widths = {
        kind: sorted({width(how) for what, how in ACCESS.findall(text) if what == kind})
        for kind in ("LD", "ST")
    }
    cells = registers, blocks, stack, local, shared, count, *(", ".join(map(str, w)) for w in widths.values())
    return " | ".join(map(str, cells))


def width(how: str) -> int:
    """Bytes of one access of a thread, of what stands behind LDG.E, LD.E, STG.E or ST.E."""
    known = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
    return next((known[word] for word in how.split(".") if word in known), 4)


def run(program: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / program
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
