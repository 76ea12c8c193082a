"""Run a command line in a separate folder, as a reader of the documentation would.

A `cpdrun ...` command runs in a process of its own, forked from the fork server of tests/conftest.py, so that it does
not import torch again. Command lines with a pipe or a redirection are run by a shell.
"""

import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 600  # patience, for a busy machine
CPDRUN = Path(sys.executable).with_name("cpdrun")
ENVIRONMENT = {"COLUMNS": "200", "OMP_NUM_THREADS": "1", "PATH": f"{CPDRUN.parent}:{os.environ['PATH']}"}
_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Ended:
    code: int | None  # the exit code, or None if the process was still running at the deadline
    said: str
    complained: str


def type_line(line: str, folder: Path) -> Ended:
    if re.search(r"\s[|>]\s", line):
        return _by_a_shell(line, folder)
    name, *words = shlex.split(line)
    assert name == "cpdrun", line
    said, complained = folder / ".said", folder / ".complained"
    process = _context.Process(target=_main, args=(words, folder, said, complained))
    process.start()
    process.join(DEADLINE_S)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    ended = Ended(code, said.read_text(), complained.read_text())
    said.unlink()
    complained.unlink()
    return ended


def _by_a_shell(line: str, folder: Path) -> Ended:
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def _main(words: list[str], folder: Path, said: Path, complained: Path) -> None:
    os.chdir(folder)
    os.environ |= ENVIRONMENT
    for descriptor, path in ((1, said), (2, complained)):
        with path.open("w") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = ["cpdrun", *words]
    from cpdrun.cli import main

    sys.exit(main())
