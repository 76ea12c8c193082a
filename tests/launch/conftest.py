"""Launching without training: jobs whose ranks run stand_in.py, one warm engine for all tests."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import HERE, make_job
from shared_modules import STAND_IN_VARIABLE

from cpdrun.launch.attempt.connection import WarmEngine
from cpdrun.launch.base import Job, LaunchOptions
from cpdrun.launch.local import LocalExecutor
from cpdrun.record import SweepDir

MakeJob = Callable[..., Job]


@contextlib.contextmanager
def playing() -> Iterator[None]:
    """Let all engines that are started in this context only pretend to train, as stand_in.py describes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STAND_IN_VARIABLE, "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
        yield


@pytest.fixture(scope="module", autouse=True)
def _stand_in() -> Iterator[None]:
    with playing():
        yield


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmEngine]:
    with playing():
        engine = WarmEngine()
        engine.start()
    yield engine
    engine.close()


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDir:
    return SweepDir(tmp_path / "sweep")


@pytest.fixture
def job(sweep: SweepDir) -> MakeJob:
    """job(name, act=..., epochs=..., ...) -> a Job whose config is on disk."""

    return lambda name="one", **config: make_job(sweep, name, **config)


@pytest.fixture
def local(sweep: SweepDir, warm: WarmEngine) -> Iterator[Callable[..., LocalExecutor]]:
    """local(jobs=2, ...) -> a LocalExecutor on the session's warm engine."""
    made = []

    def make(*, jobs: int | None = 2, jobs_per_gpu: int = 1, **options: Any) -> LocalExecutor:
        executor = LocalExecutor(
            jobs, jobs_per_gpu, warm_start=True, sweep=sweep, options=LaunchOptions(**options), warm=warm
        )
        made.append(executor)
        return executor

    yield make
    for executor in made:
        executor.close()
