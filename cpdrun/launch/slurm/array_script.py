"""The text of a sweep's array script, `results/<sweep>/array.sbatch`."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.launch.base import Job, LaunchError
from cpdrun.launch.slurm.advice import NO_GPU, time_advice
from cpdrun.record import SweepDir

AUTO = "auto"
# The forms of a time limit that sbatch accepts.
TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
MEM_PER_CPU_GB = 2  # more than torch and the images of a data loader need


@dataclass(frozen=True)
class ArrayScript:
    """The settings that all arrays of a sweep have in common.

    Attributes:
        sweep: The sweep.
        asked: The options `partition`, `account`, `time`, `gres` and `mem` of sbatch. Options whose value is None are
            left out of the script.
        nodes: The number of nodes of a run.
        tasks: The number of tasks of a run on all nodes.
        max_parallel: The number of elements of an array that run at the same time. None for no limit.
        warning_s: The time between Slurm's signal to a run and the time limit, in seconds.
        setup: Shell commands to execute before each run.
        more: Further options of sbatch.
        retries: The number of further attempts after a failure.

    Raises:
        LaunchError: The time limit is not valid, or an option contains a line break or a control character. (The script
            would execute the text after a line break as a command.)
    """

    sweep: SweepDir
    asked: dict[str, str | None]
    nodes: int
    tasks: int
    max_parallel: int | None
    warning_s: int
    setup: list[str]
    more: list[str]
    retries: int

    def __post_init__(self) -> None:
        for key, value in (*self.asked.items(), *(("sbatch", line) for line in self.more)):
            if not str(value).isprintable():
                raise LaunchError(
                    f"launcher.{key}={value!r}: must not contain line breaks or control characters"
                )
        if (limit := self.asked["time"]) is not None and not TIME.fullmatch(str(limit)):
            raise LaunchError(
                f"launcher.time={limit}: must be minutes (90), HH:MM:SS (01:30:00) or D-HH:MM:SS (2-00:00:00)"
            )

    def check(self, jobs: list[Job]) -> None:
        """Raise LaunchError if the tasks cannot share the ranks of a run equally."""
        for job in jobs:
            if job.nproc % self.tasks:
                raise LaunchError(
                    f"launcher.nodes * launcher.tasks_per_node = {self.tasks} does not divide nproc={job.nproc}"
                )

    def of(self, jobs: list[Job]) -> str:
        """Return the sbatch script for jobs that need the same resources."""
        limit = f"%{self.max_parallel}" if self.max_parallel else ""
        options = {
            "job-name": f"cpdrun-{self.sweep.name}",
            "array": f"0-{len(jobs) - 1}{limit}",
            "output": f"{str(self.sweep.slurm_logs.absolute()).replace('%', '%%')}/%A_%a.log",
            "open-mode": "append",
            "nodes": self.nodes,
            "ntasks-per-node": self.tasks // self.nodes,
            **self._resources(jobs[0]),
            "signal": f"B:USR1@{self.warning_s}",
        }
        names = "\n".join(f"    {shlex.quote(job.run.name)}" for job in jobs)
        command = [sys.executable, "-m", "cpdrun.launch.slurm.element"]
        flags = ["--retries", str(self.retries), "--tasks", str(self.tasks)]
        return SCRIPT.format(
            options="\n".join(f"#SBATCH --{key}={shlex.quote(str(value))}" for key, value in options.items()),
            more="".join(f"#SBATCH {line}\n" for line in self.more),
            setup="".join(f"{line}\n" for line in self.setup),
            names=names,
            folder=shlex.quote(str(self.sweep.runs_folder.absolute())),
            here=shlex.quote(str(Path.cwd())),
            agent=shlex.join(command),
            flags=shlex.join(flags),
        )

    def advice(self, jobs: list[Job]) -> list[str]:
        """Return warnings about the GPUs and the time limit of these jobs, one line each."""
        lines = []
        asks_for_gpus = any("gpu" in line for line in self.more)
        if (
            self.asked["gres"] == AUTO
            and not asks_for_gpus
            and any(j.config["device"] == "auto" for j in jobs)
        ):
            lines.append(NO_GPU)
        if line := time_advice(self.sweep, jobs, self.asked["time"], self.warning_s):
            lines.append(line)
        return lines

    def _resources(self, job: Job) -> dict[str, Any]:
        """Return the options of sbatch for the resources of a job.

        A task needs one core for each thread and each data loader of its ranks.
        """
        cpus = job.nproc // self.tasks * (job.config["threads"] + job.config.get("loaders", 0))
        asked = dict(self.asked)
        if asked["gres"] == AUTO:
            asked["gres"] = f"gpu:{job.nproc // self.nodes}" if job.config["device"] == "cuda" else None
        if asked["mem"] == AUTO:
            asked["mem"] = f"{MEM_PER_CPU_GB * cpus * self.tasks // self.nodes}G"
        return {"cpus-per-task": cpus} | {key: value for key, value in asked.items() if value is not None}


SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --requeue
{more}
# `cpdrun sweep` has written this script. You can edit it and submit it with `sbatch`. Each element of the array is one
# run. Finished runs end at once, and stopped runs continue from their last checkpoint.
runs=(
{names}
)
cd {here}
{setup}exec {agent} {folder}/"${{runs[$SLURM_ARRAY_TASK_ID]}}" {flags}
"""


def by_resources(jobs: list[Job]) -> list[list[Job]]:
    """Group jobs by the resources that they need, and return the groups."""
    groups: dict[tuple, list[Job]] = {}
    for job in jobs:
        needs = (job.nproc, *(job.config.get(key) for key in ("threads", "loaders", "device")))
        groups.setdefault(needs, []).append(job)
    return list(groups.values())
