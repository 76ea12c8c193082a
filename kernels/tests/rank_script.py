"""Run a script that starts its own ranks, in a process of its own."""

import subprocess
import sys
from pathlib import Path


def run_rank_script(source: str, folder: Path, timeout_s: float = 180) -> None:
    """Run the script in `folder` with the path of a file for the rendezvous, and check that it succeeds."""
    (folder / "ranks.py").write_text(source)
    command = [sys.executable, "ranks.py", str(folder / "rendezvous")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
