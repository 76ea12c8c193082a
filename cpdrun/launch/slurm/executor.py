"""The executor for Slurm, which runs jobs as job arrays. Each element of an array runs the agent of one run.

The executor writes the script `results/<sweep>/array.sbatch` and submits it. Users can edit the script and submit it
themselves. Slurm copies a script at submission, so a later change does not affect submitted jobs.

Slurm sends SIGUSR1 to an element before its time limit. The agent then tells the ranks to save a checkpoint,
and requeues the element. The launcher only watches the queue, so the array continues if the launcher ends,
for example with `--no-wait` or after SIGKILL.
"""

import getpass
import time
from pathlib import Path
from typing import Any

from cpdrun.launch.attempt.connection import WarmEngine
from cpdrun.launch.attempt.ending import last_line
from cpdrun.launch.base import Event, Executor, Finding, Job, LaunchError, LaunchOptions
from cpdrun.launch.slurm.array_script import ArrayScript, by_resources
from cpdrun.launch.slurm.queued_runs import queued, submitted_of, withdraw
from cpdrun.launch.slurm.squeue import elements_in_queue, examine, slurm
from cpdrun.record import Ending, Outcome, SweepDir, write_json, write_text

PATIENCE = 150  # The launch ends after more than this many polls without an answer, which take five minutes.
POLL_S = 2.0  # A shorter interval would slow down the controller, which the whole cluster shares.


class SlurmExecutor(Executor):
    """An executor that submits jobs to Slurm, one job array for all jobs that need the same resources.

    Args:
        partition: The option `--partition` of sbatch. If this or one of the next four arguments is None, the script
            does not contain the option.
        account: The option `--account`.
        time: The option `--time`.
        gres: The option `--gres`. With "auto", one GPU per rank is requested if device=cuda.
        mem: The option `--mem`. With "auto", MEM_PER_CPU_GB gigabytes per core are requested.
        nodes: The number of nodes of a run.
        tasks_per_node: The number of tasks per node. Each task is one engine. `nodes * tasks_per_node` must divide
            nproc.
        max_parallel: The number of elements of an array that run at the same time. The same field of `options` takes
            precedence.
        warning_s: The time before the time limit at which a run must save a checkpoint, in seconds.
        setup: Shell commands to execute before each run.
        sbatch: Further options of sbatch. Each is one line of the script.
        sweep: The sweep. Its folder contains the scripts, the job numbers, and Slurm's logs.
        options: The options of the launch.
        warm: A warm engine. It is closed, because elements start on other machines.
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
        self._script = ArrayScript(
            sweep,
            asked={"partition": partition, "account": account, "time": time, "gres": gres, "mem": mem},
            nodes=nodes,
            tasks=nodes * tasks_per_node,
            max_parallel=options.max_parallel or max_parallel,
            warning_s=warning_s,
            setup=setup,
            more=sbatch,
            retries=options.retries,
        )
        self._sweep = sweep
        self._jobs: dict[str, Job] = {}  # keyed by array element
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
        return withdraw(sweep, name)

    @classmethod
    def has_queued(cls, sweep: SweepDir) -> bool:
        return bool(queued(sweep))

    @classmethod
    def examine(cls) -> Finding:
        return examine()

    def advice(self, jobs: list[Job]) -> list[str]:
        return self._script.advice(jobs)

    def would_write(self, jobs: list[Job]) -> dict[Path, str]:
        self._script.check(jobs)
        groups = enumerate(by_resources(jobs), start=1)
        return {self._sweep.array_script(number): self._script.of(group) for number, group in groups}

    def submit(self, jobs: list[Job]) -> None:
        self._script.check(jobs)
        waiting = {run: element for element, (run, _) in queued(self._sweep).items()}
        new = [job for job in jobs if job.run.name not in waiting]
        self._jobs |= {waiting[job.run.name]: job for job in jobs if job.run.name in waiting}
        for number, group in enumerate(by_resources(new), start=1):
            array = self._submit_array(number, group)
            self._jobs |= {f"{array}_{index}": job for index, job in enumerate(group)}

    def poll(self, timeout_s: float) -> list[Event]:
        if time.monotonic() - self._polled < POLL_S:
            time.sleep(timeout_s)
            return []
        self._polled = time.monotonic()
        try:
            queue = elements_in_queue(sorted({element.split("_")[0] for element in self._jobs}))
        except LaunchError:  # Slurm's controller may be restarting, in which case no jobs are lost.
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
                events.append(Event(job, _outcome(job, element, cancelled=self._cancelled)))
        return events

    def cancel(self, *, now: bool) -> None:
        self._cancelled = True
        withdraw(self._sweep)
        if now:
            slurm("scancel", *self._jobs)
        else:
            for job in self.running:
                job.run.preempt.touch()

    def close(self) -> None:
        """Do nothing, because the elements of the array continue without this process."""

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
            write_text(script, self._script.of(jobs))
        except OSError as error:
            raise LaunchError(f"cannot write {script}: {error.strerror}") from error
        array = slurm("sbatch", "--parsable", str(script)).strip().split(";")[0]
        new = {"job": array, "script": script.name, "runs": [job.run.name for job in jobs]}
        write_json(self._sweep.slurm, [*submitted_of(self._sweep), new])
        return array


def _outcome(job: Job, element: str, *, cancelled: bool) -> Outcome:
    """Return the outcome of a job whose array element is no longer in Slurm's queue."""
    if (result := job.run.result()) is not None:
        return Outcome(result.status)
    attempt = job.run.last_attempt()
    if attempt is not None and attempt.whereabouts().scheduled == element:
        return attempt.outcome() or Outcome(Ending.KILLED, reason="killed by Slurm, with its agent")
    if cancelled or job.run.preempt.exists():
        return Outcome(Ending.PREEMPTED, reason="canceled before it had begun")
    log = job.run.sweep.slurm_logs / f"{element}.log"
    words = last_line(log) or "no output"
    return Outcome(Ending.FAILED, reason=f"never began ({words}); see {log}")
