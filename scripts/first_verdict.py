"""From nothing to a first verdict: a new environment, a wheel and what it needs from the package index, no compiler.

    python scripts/first_verdict.py dist/cpdrun-*.whl
    python scripts/first_verdict.py dist/cpdrun-*.whl --python python3.13 search exp=digits_search

Prints how long each stage took, how busy the machine was before it, and the answer's last lines. Only the new
environment is on the path while it runs; it and the runs (6 GB with torch for CUDA) are deleted at the end. The exit
status is that of the first stage that failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TYPED = ["search", "exp=digits_search", "aps=true"]  # half of the demo's question
KERNELS = """
import torch, custom_fp, custom_fp.backends
assert custom_fp.backend() == "native", custom_fp.backend()
x = torch.arange(-(2**31), 2**31, 4099).to(torch.int32).view(torch.float32)
names = "e4m3", "e5m2fnuz", "mxfp4", "posit8"
fast = [custom_fp.quantize(x, name).view(torch.int32) for name in names]
custom_fp.backends.only_reference()
for name, native in zip(names, fast):
    assert torch.equal(native, custom_fp.quantize(x, name).view(torch.int32)), name
print(f"{x.numel()} values in {', '.join(names)}: native, and equal to the reference")
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("typed", nargs="*", default=TYPED, help="what cpdrun is asked")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return stages(Path(folder), given.wheel.resolve(), given.python, given.typed)


def stages(folder: Path, wheel: Path, python: str, typed: list[str]) -> int:
    into = folder / "venv"
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC", "CXX")}
    env = kept | {"PATH": str(into / "bin"), "HOME": str(folder)}
    todo: list[tuple[str, list[str | Path], dict[str, str]]] = [
        ("environment", [python, "-m", "venv", into], kept),
        ("install", [into / "bin/python", "-m", "pip", "install", "--quiet", wheel], env),
        ("kernels", [into / "bin/python", "-c", KERNELS], env),
        ("formats", [into / "bin/cpdrun", "formats", "e4m3"], env),
        ("verdict", [into / "bin/cpdrun", *typed], env),
    ]
    began = time.monotonic()
    print(f"cpdrun {' '.join(typed)}, {os.cpu_count()} cores")
    for stage, words, shell in todo:
        start, load = time.monotonic(), os.getloadavg()[0]
        done = subprocess.run(words, cwd=folder, env=shell, capture_output=True, text=True, check=False)
        print(f"{stage:12} {time.monotonic() - start:6.1f} s, load before {load:.1f}", flush=True)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            return done.returncode
        if stage in ("kernels", "verdict"):
            print(*(f"    {line}" for line in done.stdout.splitlines()[-6:]), sep="\n")
    print(f"{'together':12} {time.monotonic() - began:6.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
