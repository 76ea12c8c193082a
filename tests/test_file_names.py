"""Test scripts/checks/file_names.py, which `make lint` runs, on a small tree of files."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "checks" / "file_names.py"


def test_names_that_say_nothing_or_are_in_many_folders_are_reported(tmp_path):
    for path in (
        "cpdrun/held.py",
        "cpdrun/launch/watching.py",
        "kernels/custom_fp/csrc/outside.h",
        "scripts/rounding.py",  # a noun
        "scripts/seed_power.py",
        *(
            f"cpdrun/{folder}/{name}.py"
            for folder in ("data", "models", "tasks")
            for name in ("base", "names")
        ),
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert [line.split(maxsplit=1)[0].rstrip(":") for line in found.stdout.splitlines()] == [
        "cpdrun/held.py",
        "names.py",
        "kernels/custom_fp/csrc/outside.h",
        "cpdrun/launch/watching.py",
    ]
