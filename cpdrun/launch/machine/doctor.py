"""Check what cpdrun needs on this machine, and suggest commands that install what is missing."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cpdrun import __version__
from cpdrun.launch.base import Finding
from cpdrun.launch.executors import schedulers
from cpdrun.launch.machine.resources import cores, gpus, no_place_for_runs
from cpdrun.parent import module_command

PROBE_TIMEOUT_S = 120
FREE_GB_WANTED = 1
STYLES = {"ok": "green", "no": "dim", "broken": "red"}


@dataclass
class DoctorDocument:
    """The software and hardware for cpdrun that this machine has or lacks."""

    findings: list[Finding]


def print_findings(console: Console, findings: list[Finding]) -> int:
    """Print a table of the findings. Return the exit code, which is 1 if something is broken."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in findings:
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\n-> {finding.fix}", "yellow")
        table.add_row(Text(finding.state, STYLES[finding.state]), finding.what, text)
    console.print(table)
    return int(any(finding.state == "broken" for finding in findings))


def examine(results_dir: Path) -> list[Finding]:
    """Check everything that a sweep in `results_dir` could need. This takes as long as importing torch."""
    version = f"{__version__}, Python {platform.python_version()} ({sys.executable})"
    return [
        Finding("cpdrun", "ok", version),
        *_trainer(probe()),
        _processor(),
        _gpus(),
        *(finding for made in schedulers() if (finding := made.examine())),
        _results(results_dir),
    ]


def _processor() -> Finding:
    if problem := no_place_for_runs():
        return Finding("processor", "broken", problem)
    return Finding("processor", "ok", f"{cores()} cores for runs")


def probe() -> dict[str, Any]:
    """Return the output of cpdrun.train.preflight.probe, or {"failure": its last line} if it ends without an answer."""
    command = module_command("cpdrun.train.preflight.probe")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"failure": f"no answer within {PROBE_TIMEOUT_S} s"}
    except (ValueError, IndexError):
        return {"failure": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def _trainer(found: dict[str, Any]) -> Iterator[Finding]:
    if "failure" in found:
        yield Finding("trainer", "broken", found["failure"], "pip install --force-reinstall cpdrun")
        return
    errors = found["errors"]
    for name in ("torch", "torchvision", "numpy", "sklearn"):
        if name in errors:
            package = "scikit-learn" if name == "sklearn" else name
            yield Finding(name, "broken", errors[name], f"pip install --force-reinstall {package}")
        else:
            yield Finding(name, "ok", found[name])
    if "custom_fp" in errors:
        yield Finding("custom_fp", "broken", errors["custom_fp"], "pip install --force-reinstall custom-fp")
    elif found["backend"] == "native":
        yield Finding("custom_fp", "ok", "native kernels on the processor")
    else:
        text = f"{found['backend']}: correct, and many times slower than the extension"
        yield Finding(
            "custom_fp",
            "no",
            text,
            "install a C++17 compiler, then custom-fp again: pip install --force-reinstall ./kernels",
        )
    yield from _cuda(found)
    for name, missing in found["data"].items():
        yield Finding(f"data {name}", "no", missing) if missing else Finding(f"data {name}", "ok", "found")


def _cuda(found: dict[str, Any]) -> Iterator[Finding]:
    cuda = found.get("cuda")
    if not cuda or not cuda["available"]:
        built = (
            f"torch is built for CUDA {cuda['built_for']}"
            if cuda and cuda["built_for"]
            else "torch has no CUDA"
        )
        yield Finding("CUDA", "no", f"no GPU that torch can use ({built}); runs use the processor")
        return
    yield Finding("CUDA", "ok", f"{cuda['built_for']}: {', '.join(cuda['devices'])}")
    if "cupy" in found["errors"]:
        package = f"cupy-cuda{cuda['built_for'].split('.')[0]}x"
        yield Finding(
            "CuPy",
            "no",
            f"{found['errors']['cupy']}; kernels on GPUs need it",
            f"pip install {package}",
        )
    else:
        yield Finding("CuPy", "ok", found["cupy"])


def _gpus() -> Finding:
    names = gpus()
    return Finding("GPUs", "ok" if names else "no", ", ".join(names) or "none visible")


def _results(folder: Path) -> Finding:
    """Check whether `folder`, or its nearest existing parent, is writable and has enough free space."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        probe_file = there / ".cpdrun-doctor"
        probe_file.touch()
        probe_file.unlink()
    except OSError as error:
        return Finding(
            "results", "broken", f"{there}: {error.strerror}", "results_dir=PATH names another folder"
        )
    free_gb = shutil.disk_usage(there).free / 1e9
    text = f"{folder.absolute()}, {free_gb:.0f} GB free"
    if free_gb >= FREE_GB_WANTED:
        return Finding("results", "ok", text)
    return Finding("results", "broken", text, "results_dir=PATH names another folder")
