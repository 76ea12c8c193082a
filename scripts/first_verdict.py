"""Measure the time from a new user's first command to the first verdict of a search.

The script creates an environment, installs the wheels, and runs a search.

    python scripts/first_verdict.py dist/*.whl
    python scripts/first_verdict.py dist/*.whl --python python3.13 search exp=digits_search

The script prints the time of each stage, the machine's load before the stage, and the last lines of the answer. PATH
contains only the new environment, so no compiler is used. The environment and the runs (6 GB with torch for CUDA) are
deleted at the end. The exit status is that of the first stage that failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HALF_OF_DEMO = ["search", "exp=digits_search", "aps=true"]
COMPARE_KERNELS = """
import torch, custom_fp, custom_fp.backends
assert custom_fp.backend() == "native", custom_fp.backend()
x = torch.arange(-(2**31), 2**31, 4099).to(torch.int32).view(torch.float32)
names = "e4m3", "e5m2fnuz", "mxfp4", "posit8"
native = [custom_fp.quantize(x, name).view(torch.int32) for name in names]
custom_fp.backends.only_reference()
for name, values in zip(names, native):
    assert torch.equal(values, custom_fp.quantize(x, name).view(torch.int32)), name
print(f"{x.numel()} values in {', '.join(names)}: the native kernels equal the reference")
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words",
        nargs="+",
        help="the wheels of custom_fp and cpdrun, followed by arguments of cpdrun (default: half of the demo's search)",
    )
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    wheels = [Path(word).resolve() for word in options.words if word.endswith(".whl")]
    arguments = [word for word in options.words if not word.endswith(".whl")]
    with tempfile.TemporaryDirectory() as folder:
        return run_stages(Path(folder), wheels, options.python, arguments or HALF_OF_DEMO)


def run_stages(folder: Path, wheels: list[Path], python: str, arguments: list[str]) -> int:
    """Install the wheels in a new environment in `folder` and run cpdrun there. Return the exit status."""
    venv = folder / "venv"
    base_env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC", "CXX")}
    venv_env = base_env | {"PATH": str(venv / "bin"), "HOME": str(folder)}
    stages: list[tuple[str, list[str | Path], dict[str, str]]] = [
        ("environment", [python, "-m", "venv", venv], base_env),
        ("install", [venv / "bin/python", "-m", "pip", "install", "--quiet", *wheels], venv_env),
        ("kernels", [venv / "bin/python", "-c", COMPARE_KERNELS], venv_env),
        ("formats", [venv / "bin/cpdrun", "formats", "e4m3"], venv_env),
        ("verdict", [venv / "bin/cpdrun", *arguments], venv_env),
    ]
    first_start = time.monotonic()
    print(f"cpdrun {' '.join(arguments)}, {os.cpu_count()} cores")
    for stage, command, env in stages:
        start, load = time.monotonic(), os.getloadavg()[0]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        print(f"{stage:12} {time.monotonic() - start:6.1f} s, load before {load:.1f}", flush=True)
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            return done.returncode
        if stage in ("kernels", "verdict"):
            print(*(f"    {line}" for line in done.stdout.splitlines()[-6:]), sep="\n")
    print(f"{'total':12} {time.monotonic() - first_start:6.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
