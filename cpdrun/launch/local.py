"""The executor for this machine. It runs as many jobs at the same time as there are slots, each with its own agent."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

from cpdrun.launch.attempt.agent import DEFERRED_SIGNALS
from cpdrun.launch.attempt.connection import WarmEngine
from cpdrun.launch.base import Event, Executor, Job, LaunchError, LaunchOptions
from cpdrun.launch.machine.resources import Slots, cores, gpus
from cpdrun.launch.other_launchers import Elsewhere
from cpdrun.record import Ending, Outcome, SweepDir


@dataclass
class _Agent:
    job: Job
    process: subprocess.Popen
    pidfd: int
    places: list[str]


def _places(jobs: list[Job], at_once: int | None, per_gpu: int) -> Slots:
    if any(job.config["device"] != "cpu" for job in jobs) and (names := gpus()):
        slots = Slots(names * per_gpu)
        if not at_once:
            return slots
        taken = slots.take(at_once)
        assert taken is not None  # all places are free
        return Slots(taken)
    threads = max((job.config["threads"] for job in jobs), default=1)
    return Slots(["cpu"] * (at_once or max(1, cores() // threads)))


class LocalExecutor(Executor):
    """An executor that runs jobs on the cores or the GPUs of this machine.

    Args:
        jobs: The number of ranks that run at the same time. None means cores / threads, or GPUs * jobs_per_gpu.
        jobs_per_gpu: The number of ranks that share a GPU.
        warm_start: Whether to fork runs from a process that has imported torch. If not, each run imports torch itself.
        sweep: The sweep of the jobs. Not used.
        options: The options of the launch. If set, its `jobs` and `jobs_per_gpu` replace the arguments of the same
            name. Its `retries` are passed to the agents.
        warm: The warm engine to use. It remains open when this executor closes.
    """

    here = True
    idle_options = ("max_parallel",)

    def __init__(
        self,
        jobs: int | None,
        jobs_per_gpu: int,
        warm_start: bool,
        *,
        sweep: SweepDir,
        options: LaunchOptions,
        warm: WarmEngine | None = None,
    ) -> None:
        self._jobs = options.jobs or jobs
        self._jobs_per_gpu = options.jobs_per_gpu or jobs_per_gpu
        self._options = options
        self._warm = warm if warm_start else None
        self._slots = Slots([])  # replaced when the first jobs are submitted
        self._queue: deque[Job] = deque()
        self._elsewhere = Elsewhere()
        self._agents: dict[int, _Agent] = {}
        self._selector = selectors.DefaultSelector()
        self._cancelled = False

    @classmethod
    def unavailable(cls, configs: list[dict[str, Any]], options: LaunchOptions) -> str | None:
        if not options.wait:
            return "--no-wait needs --launcher slurm or --launcher pull, which train runs outside of this process"
        if any(config["device"] == "cuda" for config in configs) and not gpus():
            return (
                "device=cuda: this machine has no GPU. With device=auto, a GPU is used only if there is one"
            )
        return None

    def at_once(self, jobs: list[Job]) -> int:
        return _places(jobs, self._jobs, self._jobs_per_gpu).count

    def submit(self, jobs: list[Job]) -> None:
        if not self._slots.count:
            self._slots = _places(jobs, self._jobs, self._jobs_per_gpu)
            self.slots = self._slots.count
        self._queue.extend(jobs)
        for job in jobs:
            self._elsewhere.note(job)

    def poll(self, timeout_s: float) -> list[Event]:
        events = self._start_jobs()
        for key, _ in self._selector.select(0 if events else timeout_s):
            events += self._ended(self._agents.pop(key.data))
        ended, dropped = self._elsewhere.look()
        self._queue.extend(dropped)
        return events + ended

    def cancel(self, *, now: bool) -> None:
        self._cancelled = True
        self._queue.clear()
        self._elsewhere.jobs.clear()
        for agent in self._agents.values():
            agent.process.send_signal(signal.SIGINT if now else signal.SIGTERM)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.process.kill()
            agent.process.wait()
            os.close(agent.pidfd)
        self._agents.clear()
        self._selector.close()

    @property
    def running(self) -> list[Job]:
        return [agent.job for agent in self._agents.values()]

    @property
    def unfinished(self) -> int:
        return len(self._queue) + len(self._elsewhere.jobs) + len(self._agents)

    @classmethod
    def idle(cls, options: LaunchOptions) -> list[str]:
        no_gpu = options.jobs_per_gpu is not None and not gpus()
        return super().idle(options) + ["--jobs-per-gpu has no effect: this machine has no GPU"] * no_gpu

    def _start_jobs(self) -> list[Event]:
        events = []
        while self._queue and (places := self._slots.take(self._queue[0].nproc)) is not None:
            job = self._queue.popleft()
            if self._elsewhere.has(job):
                self._slots.give_back(places)
                self._elsewhere.jobs.append(job)
                continue
            agent = self._start(job, places)
            self._agents[agent.pidfd] = agent
            self._selector.register(agent.pidfd, selectors.EVENT_READ, agent.pidfd)
            events.append(Event(job))
        return events

    def _start(self, job: Job, places: list[str]) -> _Agent:
        command = [sys.executable, "-m", "cpdrun.launch.attempt.agent", str(job.run.path)]
        command += ["--retries", str(self._options.retries), "--parent", str(os.getpid())]
        command += ["--kill-retries", str(self._options.kill_retries)]
        command += ["--known", str(self._elsewhere.known(job))]
        descriptors = []
        if self._warm is not None:
            command += ["--warm", str(self._warm.control)]
            descriptors = [self._warm.control]
        environ = dict(os.environ)
        if places[0] != "cpu":
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(places))
        # The agent inherits the blocked signals, so a signal is delivered only when the agent has installed its
        # handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED_SIGNALS)
        try:
            process = subprocess.Popen(
                command,
                env=environ,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C on the terminal reaches only the launcher, which handles it.
            )
        except OSError as error:
            raise LaunchError(f"cannot start a process: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return _Agent(job, process, os.pidfd_open(process.pid), places)

    def _ended(self, agent: _Agent) -> list[Event]:
        self._selector.unregister(agent.pidfd)
        os.close(agent.pidfd)
        self._slots.give_back(agent.places)
        output, _ = agent.process.communicate()
        outcome = Outcome.read(_last_json(output))
        if outcome is None:
            outcome = Outcome(Ending.KILLED, agent.process.returncode, reason="its agent was killed")
        if outcome.status is not Ending.ELSEWHERE:
            return [Event(agent.job, outcome)]
        if not self._cancelled:
            self._elsewhere.jobs.append(agent.job)
        return []


def _last_json(output: bytes) -> Any:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    with contextlib.suppress(ValueError, IndexError):
        return json.loads(lines[-1])
    return None
