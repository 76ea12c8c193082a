"""Malicious result folders: no reading command runs what they name, hangs on them, or changes what lies outside.

A sweep of two formats is trained once and copied for each case to `shared/` in the current folder, so that the module
`shared.evil` could be imported. Every case changes that copy. The commands run in this process, with an alarm.
"""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import yaml

from cpdrun.cli import main
from cpdrun.record import SweepDir, read_config, write_json, write_text
from cpdrun.record.files import MAX_ARRAYS_BYTES
from cpdrun.sweep import plan

WORDS = (
    "exp=digits_bits",
    "format=fp32,e4m3",
    "aps=false",
    "seed=0",
    "epochs=1",
    "observe=2",
    "model.width=4",
)
PREDICTED = ("format=e4m3", "aps=false")
LIMIT_S = 20  # of this process's own time, for each command
EVIL = "import pathlib\npathlib.Path(__file__).parent.with_name('ran').touch()\nclass F:\n    pass\n"
SECRET = "what lies outside is nobody's business"
FILES = (
    *("done.json", "config.yaml", "env.json", "format.json", "metrics.jsonl", "status.json", "overrides.txt"),
    *(".lock", "observed.npz", "example_outcomes.bin", "attempts/1/exit.json"),
    *("attempts/1/where.json", "attempts/1/rank0.log"),
)
OF_SWEEP = ("sweep.yaml", "calibration.json", "slurm.json", ".lock")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> SweepDir:
    """A finished sweep whose runs were observed, with an attempt each."""
    import torch

    from cpdrun.launch import Job
    from cpdrun.launch.session import write_configs
    from cpdrun.sweep import write_manifest
    from cpdrun.train.rank import run_rank

    folder = tmp_path_factory.mktemp("trained")
    threads = torch.get_num_threads()
    made = plan([*WORDS, f"results_dir={folder}", "name=shared", "device=cpu"])
    write_manifest(made)
    jobs = [Job(made.directory.run(run.name), run.config, run.overrides) for run in made.runs]
    write_configs(jobs)
    for job in jobs:
        attempt = job.run.new_attempt()
        attempt.agent_log.write_text("agent\n")
        attempt.rank_log(0).write_text("a line\n")
        write_json(attempt.where, {"host": "here", "pid": 1, "started": 1.0})
        write_json(attempt.exit, {"outcome": "finished", "exit_code": 0})
        assert run_rank(str(job.run.path)) == 0
    torch.set_num_threads(threads)
    run = str(jobs[-1].run.path)
    assert (
        main(("report", run)) == main(("predict", run, *PREDICTED)) == 0
    )  # their answers are kept in the folder
    return made.directory


@pytest.fixture
def received(trained, tmp_path, monkeypatch) -> SweepDir:
    """The copy that a case changes, next to a folder `outside`. The file `ran` appears if code of the copy was run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "cpdrun.report.plots.available", lambda: iter(())
    )  # plots take most of a report's time
    monkeypatch.setattr("cpdrun.whatif.effects.subprocess.run", _in_this_process)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    shutil.copytree(trained.path, tmp_path / "shared", symlinks=True)
    (tmp_path / "shared" / "__init__.py").touch()
    write_text(tmp_path / "shared" / "evil.py", EVIL)
    (tmp_path / "outside" / "wandb").mkdir(parents=True)
    (tmp_path / "outside" / "table.csv").write_text(SECRET)
    yield SweepDir(Path("shared"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shared", "evil")]:
        del sys.modules[name]


def _in_this_process(command, **options):
    """Compute effects without importing torch again. Nothing else may be started."""
    from subprocess import CompletedProcess

    from cpdrun.whatif.effects import MODULE
    from cpdrun.whatif.simulate.effects import main as observe

    assert command[1] == "-m" and MODULE in command[2:4], command
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        # Leave out --parent, because it names this process, which is not its own child.
        code = observe(command[command.index(MODULE) + 1 : command.index("--parent")])
    return CompletedProcess(command, code, out.getvalue())


class HungError(BaseException):
    """A command took too long."""


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, ring), signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    signal.setitimer(signal.ITIMER_REAL, 6 * LIMIT_S)  # a pipe costs no time of this process's own
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in zip((signal.SIGALRM, signal.SIGVTALRM), before, strict=True):
            signal.signal(number, handler)


def call(*words: str) -> tuple[int, str]:
    """Run a command; its exit code and what it said. Raises HungError."""
    said = io.StringIO()
    with _alarm(), redirect_stdout(said), redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code
    return code, said.getvalue()


def commands(sweep: SweepDir) -> list[tuple[str, ...]]:
    run = next((path for path in sorted(sweep.runs_folder.glob("*")) if "e4m3" in path.name), sweep.path)
    named = ("results_dir=.", "name=shared", "device=cpu", "--dry-run")
    return [
        ("status", "shared", "results_dir=."),
        ("status", "shared", "results_dir=.", "--json"),
        ("report", "shared", "results_dir=.", "--format", "md,csv,html"),
        ("logs", str(run)),
        ("logs", str(run), "--json"),
        ("report", str(run)),
        ("predict", str(run), *PREDICTED),
        ("sweep", *WORDS, *named),
        ("search", *(word for word in WORDS if word != "seed=0"), *named),
        ("next", "shared", "results_dir=."),
        ("cancel", "shared", "results_dir=."),
    ]


def everything(folder: Path) -> dict[str, str]:
    return {str(p): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


Case = Callable[[SweepDir, Path], None]
Put = Callable[[Path, Path], None]


def config(**values: object) -> Case:
    """Keys of every config.yaml; `a__b` is a.b."""

    def change(sweep: SweepDir, outside: Path) -> None:
        for run in sweep.runs():
            found = read_config(run)
            for key, value in values.items():
                *parents, last = key.split("__")
                place = found
                for parent in parents:
                    place = place[parent]
                place[last] = value
            write_text(run.config, yaml.safe_dump(found))

    return change


def each(names: tuple[str, ...], put: Put, *, of_sweep: bool = False) -> Case:
    """Put something in place of these files of every run, or of the sweep."""

    def change(sweep: SweepDir, outside: Path) -> None:
        for folder in [sweep.path] if of_sweep else [run.path for run in list(sweep.runs())]:
            for name in names:
                path = folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                path.parent.mkdir(parents=True, exist_ok=True)
                put(path, outside)

    return change


def unix_socket(path: Path, outside: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def link(target: str) -> Put:
    """Link a file to another one, which may be below `outside`."""
    return lambda path, outside: path.symlink_to(target.replace("outside", str(outside)))


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.mkdir()


link_to_file, link_to_nothing, link_to_folder = map(link, ("outside/table.csv", "outside/made", "outside"))
endless_device = link("/dev/zero")


def text(content: str) -> Put:
    return lambda path, outside: path.write_text(content) and None


def made_once(make: Put) -> Put:
    """Write a large file once for each case, and link it wherever it is asked for."""

    def put(path: Path, outside: Path) -> None:
        made = Path(make.__name__).absolute()
        if not made.exists():
            make(made, outside)
        os.link(made, path)

    return put


@made_once
def long_line(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        for _ in range(300):
            file.write(b"1" * (1 << 20))


@made_once
def many_rows(path: Path, outside: Path) -> None:
    with path.open("w") as file:
        file.writelines(f'{{"epoch": {i}, "name{i % 5000}": 0.5}}\n' for i in range(60_000))


@made_once
def bomb(path: Path, outside: Path) -> None:
    """Write a few megabytes that unpack to more than any observation."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file,
        file.open("about.npy", "w") as member,
    ):
        for _ in range(MAX_ARRAYS_BYTES // (1 << 20) + 1):
            member.write(bytes(1 << 20))


def objects(path: Path, outside: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (Path.touch, (Path("ran"),))

    np.savez(path, about=np.array([Evil()], dtype=object))


def many_attempts(sweep: SweepDir, outside: Path) -> None:
    for run in sweep.runs():
        for name in ("9" * 200, "00", "1e3", "\u0663", *map(str, range(2, 500))):
            (run.path / "attempts" / name).mkdir()


def answers(sweep: SweepDir, outside: Path) -> None:
    for path in sweep.prediction.path.glob("effects-*.json"):
        odd = [3, {"role": 3}, {"role": {"gradient": 3}}, {"role": {"gradient": {"all": {"snr_db": []}}}}]
        keys = json.loads(path.read_text())
        write_json(path, {key: odd[i % len(odd)] for i, key in enumerate(keys)})


def manifest(**values: object) -> Case:
    def change(sweep: SweepDir, outside: Path) -> None:
        write_text(sweep.manifest, yaml.safe_dump(yaml.safe_load(sweep.manifest.read_text()) | values))

    return change


FORMATS = "cpdrun.train.precision.run_formats.Formats"
ALIASES = "format: fp32\na0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
PICKLED = {"_target_": "pandas.read_pickle", "filepath_or_buffer": "shared/x.pkl"}
RULE = {"modules": "*", "role": "weight", "format": "shared.evil.F"}
EVIL_CLASS = {"_target_": "shared.evil.F"}
REMOVES = {"_target_": "cpdrun.record.remove", "path": {"_target_": "pathlib.Path", "_args_": ["outside"]}}
CASES: dict[str, Case] = {
    "code in format": config(format="shared.evil.F"),
    "code in precision": config(precision=EVIL_CLASS),
    "code in a format of precision": config(precision__weights="shared.evil.F"),
    "code in accumulator": config(precision__accumulator="shared.evil.F"),
    "code in a rule": config(precision__rules=[RULE]),
    "code in modules of a rule": config(precision__rules=[{**RULE, "modules": EVIL_CLASS}]),
    "code in recipe": config(recipe="shared.evil.F", recipes=EVIL_CLASS),
    "code in model and data": config(model=EVIL_CLASS, data=EVIL_CLASS),
    "code elsewhere": config(
        **dict.fromkeys(("optim", "schedule", "task", "partition", "launcher"), EVIL_CLASS)
    ),
    "code in sync": config(sync=EVIL_CLASS),
    "code in parts of sync": config(sync__compressor=EVIL_CLASS, sync__gather="shared.evil.F"),
    "code in scaling": config(aps=True, scaling=EVIL_CLASS),
    "a pickle in precision": config(precision__weights=PICKLED),
    "our own code, misused": config(precision=REMOVES),
    "our own code as a scaling": config(aps=True, scaling={"_target_": "cpdrun.record.write_text"}),
    "an interpolation": config(precision__weights="${oc.env:HOME}"),
    "a script": config(script={"path": "shared/evil.py", "arguments": "", "metrics": {}}),
    "code in the asked baseline": manifest(
        search={"baseline": {"format": "shared.evil.F"}, "axis": "shared.evil.F"}
    ),
    "code in the asked overrides": manifest(
        overrides=["+x={_target_: shared.evil.F}", "hydra.searchpath=[shared]"]
    ),
    "pipes": each(FILES, pipe),
    "links out of the folder": each(FILES, link_to_file),
    "folders": each(FILES, folder),
    "endless devices": each(FILES, endless_device),
    "sockets": each(FILES, unix_socket),
    "pipes of the sweep": each(OF_SWEEP, pipe, of_sweep=True),
    "folders of the sweep": each(OF_SWEEP, folder, of_sweep=True),
    "endless devices of the sweep": each(OF_SWEEP, endless_device, of_sweep=True),
    "links of the sweep": each(OF_SWEEP, link_to_file, of_sweep=True),
    "a report elsewhere": each(("report", "predict", "slurm", "screen"), link_to_folder, of_sweep=True),
    "a report's files elsewhere": each(("report/table.csv", "report/wandb"), link_to_file, of_sweep=True),
    "a stop elsewhere": each((".stop", ".lock"), link_to_nothing, of_sweep=True),
    "locks elsewhere": each((".lock", ".preempt", ".holder"), link_to_nothing),
    "attempts elsewhere": each(("attempts",), link_to_folder),
    "checkpoints elsewhere": each(("ckpt", "observed.parts"), link_to_folder),
    "runs elsewhere": each(("runs",), link_to_folder, of_sweep=True),
    "a run elsewhere": each(("runs/x-e4m3-elsewhere",), link_to_folder, of_sweep=True),
    "runs in a circle": each(("runs/circle",), lambda path, _: path.symlink_to(".."), of_sweep=True),
    "a pipe among runs": each(("runs/x-e4m3",), pipe, of_sweep=True),
    "one long line": each(("metrics.jsonl", "done.json", "attempts/1/rank0.log", "config.yaml"), long_line),
    "many rows of many names": each(("metrics.jsonl",), many_rows),
    "many odd attempts": many_attempts,
    "deep JSON": each(
        ("done.json", "metrics.jsonl", "env.json", "attempts/1/exit.json"), text("[" * 200_000)
    ),
    "a number of 5,000 digits": each(
        ("done.json", "metrics.jsonl", "status.json"), text(f'{{"epoch": {"9" * 5000}}}')
    ),
    "aliases of aliases": each(("config.yaml", "overrides.txt"), text(ALIASES)),
    "deep yaml": each(("config.yaml",), text("format: " + "[" * 5000)),
    "tags of Python": each(("config.yaml",), text("format: !!python/object/apply:os.system ['touch ran']")),
    "a sweep of tags": each(("sweep.yaml",), text("runs: !!python/name:shared.evil.F"), of_sweep=True),
    "an observation that unpacks to too much": each(("observed.npz",), bomb),
    "an observation of objects": each(("observed.npz",), objects),
    "data everywhere": each(("env.json",), text(json.dumps({"data_path": "/", "data_sha256": "0"}))),
    "code everywhere": each(("env.json",), text('{"code": {"a": {"file": "/dev/zero", "sha256": "0"}}}')),
    "answers that are none": answers,
    "jobs that are none": each(
        ("slurm.json",),
        text('[{"job": "--help", "script": "x", "runs": ["x"]}, {"job": "1;touch ran", "runs": []}]'),
        of_sweep=True,
    ),
}


def test_reading_in_a_process_of_its_own(received):
    """Run the command as a user would, with the folder's modules on Python's path."""
    CASES["code in a format of precision"](received, Path("outside"))
    each(("status.json", "metrics.jsonl", "attempts/1/where.json"), pipe)(received, Path("outside"))
    shutil.rmtree(received.prediction.path)
    (words,) = [words for words in commands(received) if words[0] == "predict"]
    process = subprocess.Popen(  # subprocess.run is replaced
        [sys.executable, "-m", "cpdrun.cli", *words],
        env=os.environ | {"PYTHONPATH": f"{Path.cwd()}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = process.communicate(timeout=300)[0]
    assert process.returncode in (0, 1, 2) and not Path("ran").exists() and "Traceback" not in said
    assert "shared.evil.F, which is not part of cpdrun" in said


@pytest.mark.parametrize("case", CASES)
def test_reading_a_malicious_folder(received, case):
    outside = Path("outside").resolve()
    CASES[case](received, outside)
    before = everything(outside)
    for words in commands(received):
        code, said = call(*words)
        assert code in (0, 1, 2), words
        assert "Traceback" not in said and SECRET not in said, (words, said)
        assert not Path("ran").exists() and "shared" not in sys.modules, words
        assert everything(outside) == before, words
