"""The agent of a run that is an element of a Slurm array. The ranks of the run are distributed over srun's tasks.

    python -m cpdrun.launch.slurm.element RUN_DIR [--retries R] [--tasks T]

Slurm sends SIGUSR1 before the time limit. The run then saves a checkpoint and stops, and the element is requeued.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

from cpdrun.launch.attempt.agent import Agent, exit_code, parser, run
from cpdrun.launch.attempt.connection import Starter, engine_command
from cpdrun.record import Ending, Outcome, RunDir


class Element(Agent):
    """An agent that is requeued after Slurm's signal that the time limit is near."""

    def __init__(self, run: RunDir, starter: Starter, *, retries: int = 0, known: int | None = None) -> None:
        super().__init__(run, starter, retries=retries, known=known)
        self.scheduled = element_name()
        self.out_of_time = False

    def time_is_up(self, *_: Any) -> None:
        """Handle SIGUSR1 by asking the ranks to save and stop. The element is then requeued."""
        self.out_of_time = True
        self.stop()


class TasksStarter(Starter):
    """Starts an engine in each of `tasks` tasks of srun. The engines find each other at a port of this node."""

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.nodes = tasks
        self._step: subprocess.Popen | None = None

    def start(
        self, request: dict[str, Any], lock: int, log: IO[str], given_up: Callable[[], bool]
    ) -> dict[str, Any] | None:
        if given_up():
            return None
        self._step = start_tasks(request, self.nodes, log)
        output, _ = self._step.communicate()
        answer = answer_of_tasks(output, self._step.returncode)
        self._step = None
        return answer

    def kill(self) -> None:
        if (step := self._step) is not None:
            step.terminate()  # srun then kills its tasks.


def start_tasks(request: dict[str, Any], tasks: int, log: IO[str]) -> subprocess.Popen:
    """Start srun with one engine in each of `tasks` tasks. The engines find each other at a free port of this node.

    Each engine prints its answer. `answer_of_tasks` reads these answers.
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    job = os.environ["SLURM_JOB_ID"]
    request = request | {"rendezvous": f"{socket.gethostname()}:{port}", "rendezvous_id": job}
    command = ["srun", f"--ntasks={tasks}", "--kill-on-bad-exit=0"]
    command += [*engine_command(), "--task", json.dumps(request)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)


def answer_of_tasks(output: bytes, code: int) -> dict[str, Any]:
    """Combine the answers that tasks printed and srun's exit code into one answer.

    The first failure is reported as the cause, because later failures are those of ranks that lost the failed rank.
    """
    answers = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            answers.append(json.loads(line))
    failed = [answer for answer in answers if answer["exit_code"]]
    return min(failed, key=lambda answer: answer["ended"]) if failed else {"exit_code": code, "rank": None}


def element_name() -> str | None:
    """Return the name of the array element or job of this process. None outside of Slurm."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID")


def requeue(run: RunDir, outcome: Outcome) -> int:
    """Requeue this element if its attempt has saved a checkpoint.

    Otherwise, the next attempt would reach the time limit at the same step.

    Returns:
        The exit code of this process.
    """
    if (
        outcome.started is None or run.saved_at() < outcome.started
    ):  # `started` is None if there was no attempt.
        print(
            "not requeued, because the time limit came before the first checkpoint. Increase launcher.time",
            flush=True,
        )
        return 1
    name = element_name()
    assert (
        name is not None
    )  # An element is only requeued after SIGUSR1, which Slurm sends, so this is inside Slurm.
    return subprocess.run(["scontrol", "requeue", name], check=False).returncode


def main(argv: list[str]) -> int:
    read = parser("python -m cpdrun.launch.slurm.element", __doc__.split("\n")[0])
    read.add_argument(
        "--tasks",
        type=int,
        default=1,
        metavar="T",
        help="number of srun tasks over which the ranks are distributed",
    )
    arguments = read.parse_args(argv)
    starter = TasksStarter(arguments.tasks) if arguments.tasks > 1 else Starter()
    element = Element(RunDir(arguments.run_dir), starter, retries=arguments.retries, known=arguments.known)
    signal.signal(signal.SIGUSR1, element.time_is_up)
    outcome = run(element)
    if element.out_of_time and outcome.status is Ending.PREEMPTED:
        return requeue(element.run, outcome)
    return exit_code(outcome)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
