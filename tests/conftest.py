"""Run directories as `cpdrun sweep` creates them, and a way to train them in this process."""

import multiprocessing
import os
import sys

import pytest
import torch
import yaml
from shared_modules import shared_modules

from cpdrun.record import RunDir, write_text
from cpdrun.sweep import plan

# The fork server of this process imports these modules once. Ranks, scripts, engines and other modules run in processes
# forked from it. It runs no PyTorch operator, because a process with PyTorch's threads cannot be forked safely. Modules
# that are not installed are skipped silently.
PRELOADED = [
    *(
        "torch",
        "torch.distributed",
        "torch.distributed.launcher.api",
        "torch._dynamo",
        "sklearn.datasets",
        "pytest",
    ),
    *(
        "custom_fp.native",
        "cpdrun.comm",
        "cpdrun.sweep",
        "cpdrun.train.engine",
        "cpdrun.train.preflight.check",
    ),
    *("cpdrun.train.ranks.rendezvous", "cpdrun.train.rank", "cpdrun.attach.rank", "cpdrun.attach.recorder"),
    *("cpdrun.attach.runner", "cpdrun.attach.intercept.fsdp"),
    *("cpdrun.whatif.simulate.effects", "cpdrun.train.layers", "custom_fp.vectors.dot_products"),
]
PRELOADED_FOR_SCRIPTS = [
    *("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
    *("accelerate", "lightning", "timm", "timm.optim"),
]


def pytest_collection_modifyitems(items):
    """Skip tests that need a GPU if there is none, and choose the modules of the fork server."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
    # Only the scripts in tests/attach use large libraries other than torch.
    has_scripts = any(item.path.parent.name == "attach" for item in items)
    modules = [*PRELOADED, *PRELOADED_FOR_SCRIPTS * has_scripts, "fork_server"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)


SMALL = ("exp=digits_bits", "format=e4m3", "aps=true", "seed=0", "epochs=2", "model.width=4", "device=cpu")


@pytest.fixture
def make_run(tmp_path):
    """make_run("seed=1", ...) -> RunDir of a small digits run with its config.yaml, not yet trained."""
    made = []

    def make(*typed: str) -> RunDir:
        (planned,) = plan([*SMALL, *typed, f"results_dir={tmp_path / str(len(made))}"]).runs
        run = RunDir(tmp_path / str(len(made)) / planned.name)
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.safe_dump(planned.config))
        made.append(run)
        return run

    return make


@pytest.fixture
def snapshot(request):
    """Compare a text with the file snapshots/NAME.txt next to the test: `snapshot("headline", text)`.

    `UPDATE_SNAPSHOTS=1 python -m pytest FILE` writes the files. Read their diff before you commit it.
    """

    def compare(name: str, text: str) -> None:
        file = request.path.parent / "snapshots" / f"{name}.txt"
        if os.environ.get("UPDATE_SNAPSHOTS"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8"), "UPDATE_SNAPSHOTS=1 writes the new text"

    return compare


@pytest.fixture(scope="session", autouse=True)
def _shared_modules(tmp_path_factory):
    """Run the modules that commands start in processes forked from a server, which has imported torch."""
    with (
        shared_modules(tmp_path_factory.mktemp("modules") / "socket") as environ,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in environ.items():
            patch.setenv(name, value)
        yield


_watched: list[list[str]] = []  # an audit hook cannot be removed, so it records only while a test watches


def _note(event: str, args: tuple) -> None:
    if event == "open" and _watched:
        _watched[-1].append(str(args[0]))


@pytest.fixture(scope="session")
def _hook():
    sys.addaudithook(_note)


@pytest.fixture
def opened(_hook):
    """The paths of the files that this process opens during the test, which measure its work independently of speed."""
    _watched.append([])
    yield _watched[-1]
    _watched.pop()


@pytest.fixture
def train_here(monkeypatch):
    """train_here(run) -> the exit status of training a run in this process, which emulates all of its workers."""
    from cpdrun.train.rank import run_rank

    for name in ("RANK", "WORLD_SIZE", "CPDRUN_ATTEMPT_DIR"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    yield lambda run: run_rank(str(run.path))
    torch.set_num_threads(threads)
