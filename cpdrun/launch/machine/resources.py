"""What this machine offers to runs: cores and GPUs, found without torch."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # "<quota> <period>" in microseconds, or "max <period>"


def no_place_for_runs() -> str | None:
    """Why no run can be started here, in a line; None where one can."""
    if sys.platform == "linux":
        return None
    return (
        f"runs are started on Linux alone, and this is {sys.platform}: use a container, a virtual machine or WSL 2; "
        "custom_fp, cpdrun formats, vectors and report work here"
    )


def cores() -> int:
    """Cores this process may use: its affinity, or the container's quota where that is smaller."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CGROUP_CPU_MAX.read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


def gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    return [
        str(i) for i, line in enumerate(ln for ln in listing.stdout.splitlines() if ln.startswith("GPU "))
    ]


class Slots:
    """Places for ranks, by name: "cpu" as often as ranks fit on the processor, or each GPU as often as it is shared.

    >>> slots = Slots(["0", "1"] * 2)
    >>> slots.take(3)
    ['0', '1', '0']
    """

    def __init__(self, free: list[str]) -> None:
        self.count = len(free)
        self._free = free

    def take(self, wanted: int) -> list[str] | None:
        """Take `wanted` places (all, where there are fewer), on GPUs as idle and as different as can be.

        Returns None, taking nothing, while too few are free.
        """
        wanted = min(wanted, self.count)
        if wanted > len(self._free):
            return None
        taken: list[str] = []
        while len(taken) < wanted:
            left, mine = Counter(self._free), Counter(taken)
            name = max(left, key=lambda name: (-mine[name], left[name]))
            self._free.remove(name)
            taken.append(name)
        return taken

    def give_back(self, places: list[str]) -> None:
        self._free.extend(places)
