"""Runs under Slurm: one readable array script a sweep, one element, with its agent, a run.

`results/<sweep>/array.sbatch` is written, submitted and left to the user: edited and sent by hand, it does
the same. Slurm copies a script when it is submitted, so that a later one does not disturb an earlier. Before
its time limit an element is sent SIGUSR1; its agent then has the ranks save and requeues that very element.
The launcher only watches: `--no-wait`, a closed laptop or kill -9 leave the array as it is.
"""

import contextlib
import getpass
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from cpdrun.launch.base import Event, Executor, Finding, Job, LaunchError, LaunchOptions
from cpdrun.launch.connection import WarmEngine
from cpdrun.launch.ending import last_line
from cpdrun.launch.slurm.squeue import elements_in_queue, slurm
from cpdrun.record import Ending, Outcome, SweepDir, read_json, write_json, write_text

AUTO = "auto"
MEM_PER_CPU_GB = 2  # torch and a data loader's images, with room
PATIENCE = 150  # polls without an answer, five minutes, before the launcher gives up watching
POLL_S = 2.0  # squeue asks the controller that the whole cluster shares


class SlurmExecutor(Executor):
    """Submits the runs as job arrays, one for each kind of resources they need, and watches them.

    Args:
        partition, account, time, gres, mem: as sbatch's options of these names; None leaves them out. gres=auto asks
            for a GPU a rank where device=cuda, mem=auto for MEM_PER_CPU_GB a core.
        nodes, tasks_per_node: of each run. Their product divides nproc; each task is an engine of its own.
        max_parallel: elements of an array at the same time; the command line's takes precedence.
        warning_s: seconds before the time limit at which a run is told to save.
        setup: shell lines before each run.
        sbatch: further options for the script.
        sweep: where script, job numbers and Slurm's own logs go.
        options: the command line's.
        warm: closed; elements start on other machines.
    """

    idle_options = ("jobs", "jobs_per_gpu")

    def __init__(
        self,
        partition: str | None,
        account: str | None,
        time: str | None,
        gres: str | None,
        mem: str | None,
        nodes: int,
        tasks_per_node: int,
        max_parallel: int | None,
        warning_s: int,
        setup: list[str],
        sbatch: list[str],
        *,
        sweep: SweepDir,
        options: LaunchOptions,
        warm: WarmEngine | None = None,
    ) -> None:
        self._asked = {"partition": partition, "account": account, "time": time, "gres": gres, "mem": mem}
        self._nodes = nodes
        self._tasks = nodes * tasks_per_node
        self._max_parallel = options.max_parallel or max_parallel
        self._warning_s = warning_s
        self._setup = setup
        self._more = sbatch
        for key, value in (*self._asked.items(), *(("sbatch", line) for line in sbatch)):
            if not str(
                value
            ).isprintable():  # the rest of a line that is broken would be a command of the script
                raise LaunchError(f"launcher.{key}={value!r}: no line breaks or control characters")
        self._sweep = sweep
        self._options = options
        self._jobs: dict[str, Job] = {}  # by array element
        self._begun: set[str] = set()
        self._cancelled = False
        self._polled = 0.0
        self._unanswered = 0
        self.slots = 0
        if warm is not None:
            warm.close()

    @classmethod
    def unavailable(cls, configs: list[dict[str, Any]], options: LaunchOptions) -> str | None:
        try:
            slurm("sbatch", "--version")
            slurm("squeue", "--noheader", "--user", getpass.getuser())
        except LaunchError as error:
            return str(error)
        return None

    @classmethod
    def withdraw(cls, sweep: SweepDir, name: str | None = None) -> int:
        waiting = [
            element
            for element, (run, state) in _queue(sweep).items()
            if state == "PENDING" and name in (None, run)
        ]
        if waiting:
            # With a filter by state, scancel takes the waiting elements of an array for one job, and cancels them all.
            only = ["--state=PENDING"] if name is None else []
            with contextlib.suppress(LaunchError):  # some have begun since
                slurm("scancel", *only, *waiting)
        return len(waiting)

    @classmethod
    def has_queued(cls, sweep: SweepDir) -> bool:
        return bool(_queue(sweep))

    @classmethod
    def examine(cls) -> Finding:
        if shutil.which("sbatch") is None:
            return Finding("Slurm", "no", "no sbatch here; sweeps run on this machine")
        try:
            partitions = slurm("sinfo", "--noheader", "--format", "%R").split()
        except LaunchError as error:
            return Finding("Slurm", "no", str(error), "ask who runs the cluster, or use --launcher local")
        return Finding("Slurm", "ok", f"partitions {', '.join(dict.fromkeys(partitions))}")

    def would_write(self, jobs: list[Job]) -> dict[Path, str]:
        self._check_tasks(jobs)
        groups = enumerate(_by_resources(jobs), start=1)
        return {self._sweep.array_script(number): self.script(group) for number, group in groups}

    def _check_tasks(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.nproc % self._tasks:
                raise LaunchError(
                    f"launcher.nodes * launcher.tasks_per_node = {self._tasks} does not divide nproc={job.nproc}"
                )

    def submit(self, jobs: list[Job]) -> None:
        self._check_tasks(jobs)
        waiting = {run: element for element, run in elements_of(self._sweep).items()}
        new = [job for job in jobs if job.run.name not in waiting]
        self._jobs |= {waiting[job.run.name]: job for job in jobs if job.run.name in waiting}
        for number, group in enumerate(_by_resources(new), start=1):
            array = self._submit_array(number, group)
            self._jobs |= {f"{array}_{index}": job for index, job in enumerate(group)}

    def poll(self, timeout_s: float) -> list[Event]:
        if time.monotonic() - self._polled < POLL_S:
            time.sleep(timeout_s)
            return []
        self._polled = time.monotonic()
        try:
            queue = elements_in_queue(sorted({element.split("_")[0] for element in self._jobs}))
        except LaunchError:  # a controller that restarts loses no job; neither do we
            self._unanswered += 1
            if self._unanswered > PATIENCE:
                raise
            return []
        self._unanswered = 0
        events = []
        for element, job in list(self._jobs.items()):
            state = queue.get(element)
            if element not in self._begun and state != "PENDING":
                self._begun.add(element)
                events.append(Event(job))
            if state is None:
                del self._jobs[element]
                events.append(Event(job, self._outcome(job, element)))
        return events

    def cancel(self, *, now: bool) -> None:
        self._cancelled = True
        self.withdraw(self._sweep)
        if now:
            slurm("scancel", *self._jobs)
        else:
            for job in self.running:
                job.run.preempt.touch()

    def close(self) -> None:
        """Elements are Slurm's: they go on without this process."""

    @property
    def running(self) -> list[Job]:
        return [self._jobs[element] for element in self._begun if element in self._jobs]

    @property
    def unfinished(self) -> int:
        return len(self._jobs)

    def _submit_array(self, number: int, jobs: list[Job]) -> str:
        script = self._sweep.array_script(number)
        try:
            self._sweep.slurm_logs.mkdir(parents=True, exist_ok=True)
            write_text(script, self.script(jobs))
        except OSError as error:
            raise LaunchError(f"cannot write {script}: {error.strerror}") from error
        array = slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
        submitted = read_json(self._sweep.slurm) or []
        submitted.append({"job": array, "script": script.name, "runs": [job.run.name for job in jobs]})
        write_json(self._sweep.slurm, submitted)
        return array

    def script(self, jobs: list[Job]) -> str:
        """The sbatch script for `jobs`, which all need the same resources."""
        limit = f"%{self._max_parallel}" if self._max_parallel else ""
        options = {
            "job-name": f"cpdrun-{self._sweep.name}",
            "array": f"0-{len(jobs) - 1}{limit}",
            "output": f"{str(self._sweep.slurm_logs.absolute()).replace('%', '%%')}/%A_%a.log",
            "open-mode": "append",
            "nodes": self._nodes,
            "ntasks-per-node": self._tasks // self._nodes,
            **self._resources(jobs[0]),
            "signal": f"B:USR1@{self._warning_s}",
        }
        names = "\n".join(f"    {shlex.quote(job.run.name)}" for job in jobs)
        command = [sys.executable, "-m", "cpdrun.launch.slurm.element"]
        flags = ["--retries", str(self._options.retries), "--tasks", str(self._tasks)]
        return SCRIPT.format(
            options="\n".join(f"#SBATCH --{key}={shlex.quote(str(value))}" for key, value in options.items()),
            more="".join(f"#SBATCH {line}\n" for line in self._more),
            setup="".join(f"{line}\n" for line in self._setup),
            names=names,
            folder=shlex.quote(str(self._sweep.runs_folder.absolute())),
            here=shlex.quote(str(Path.cwd())),
            agent=shlex.join(command),
            flags=shlex.join(flags),
        )

    def _resources(self, job: Job) -> dict[str, Any]:
        """Cores for the threads and loaders of a task's ranks, and what the yaml asks for."""
        cpus = job.nproc // self._tasks * (job.config["threads"] + job.config.get("loaders", 0))
        asked = dict(self._asked)
        if asked["gres"] == AUTO:
            asked["gres"] = f"gpu:{job.nproc // self._nodes}" if job.config["device"] == "cuda" else None
        if asked["mem"] == AUTO:
            asked["mem"] = f"{MEM_PER_CPU_GB * cpus * self._tasks // self._nodes}G"
        return {"cpus-per-task": cpus} | {key: value for key, value in asked.items() if value is not None}

    def _outcome(self, job: Job, element: str) -> Outcome:
        if (result := job.run.result()) is not None:
            return Outcome(result.status)
        attempt = job.run.last_attempt()
        if attempt is not None and attempt.whereabouts().scheduled == element:
            return attempt.outcome() or Outcome(Ending.KILLED, reason="killed by Slurm, with its agent")
        if self._cancelled or job.run.preempt.exists():
            return Outcome(Ending.PREEMPTED, reason="cancelled before it had begun")
        log = self._sweep.slurm_logs / f"{element}.log"
        words = last_line(log) or "without a word"
        return Outcome(Ending.FAILED, reason=f"never began ({words}); see {log}")


SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --requeue
{more}
# Written by `cpdrun sweep`; yours to edit, and to submit with `sbatch`. One element of the array is one run:
# finished ones end at once, stopped ones go on from their last checkpoint.
runs=(
{names}
)
cd {here}
{setup}exec {agent} {folder}/"${{runs[$SLURM_ARRAY_TASK_ID]}}" {flags}
"""


def elements_of(sweep: SweepDir) -> dict[str, str]:
    """The run of each array element of `sweep` that waits or runs: {element: run name}."""
    return {element: run for element, (run, _) in _queue(sweep).items()}


def _queue(sweep: SweepDir) -> dict[str, tuple[str, str]]:
    """Run name and state of each array element of `sweep` that is not over."""
    submitted = read_json(sweep.slurm)
    if not submitted:
        return {}
    runs = {f"{array['job']}_{i}": run for array in submitted for i, run in enumerate(array["runs"])}
    queue = elements_in_queue([array["job"] for array in submitted])
    return {element: (runs[element], state) for element, state in queue.items() if element in runs}


def _by_resources(jobs: list[Job]) -> list[list[Job]]:
    groups: dict[tuple, list[Job]] = {}
    for job in jobs:
        needs = (job.nproc, *(job.config.get(key) for key in ("threads", "loaders", "device")))
        groups.setdefault(needs, []).append(job)
    return list(groups.values())
