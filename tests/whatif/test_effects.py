"""Effects of an observed run are computed again if a signal ends the process that computes them."""

import signal
import sys
from pathlib import Path

import pytest

from cpdrun.parent import RUNNER_VARIABLE
from cpdrun.record import RunDir, SweepDir
from cpdrun.whatif import effects

ANSWERS = """
import json, os, signal, sys
from pathlib import Path
run, asked, out = map(Path, sys.argv[1:4])
assert os.getsid(0) == os.getpid(), "Ctrl-C on the terminal reaches this process"
assert sys.argv[4:] == ["--parent", str(os.getppid())]
with (run / "tries").open("a") as file:
    file.write("x")
if len((run / "tries").read_text()) <= int((run / "fatal").read_text()):
    os.kill(os.getpid(), signal.{signal})
out.write_text(json.dumps({{name: {{}} for name in json.loads(asked.read_text())}}))
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """ask(signal, n) -> the effects, if the signal ends the first n processes that compute them."""

    def asked(number: signal.Signals, fatal: int) -> dict:
        (tmp_path / "answers.py").write_text(ANSWERS.format(signal=number.name))
        run = SweepDir(tmp_path / "sweep").run("one")
        run.path.mkdir(parents=True)
        run.observed.write_bytes(b"observed")
        (run.path / "fatal").write_text(str(fatal))
        return effects.compute_effects(RunDir(run.path), {"narrow": {"format": "e3m0", "aps": True}})

    monkeypatch.setattr(effects, "MODULE", "answers")
    monkeypatch.delenv(RUNNER_VARIABLE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(effects.__file__).parents[2]}:{':'.join(sys.path)}")
    return asked


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_effects_are_computed_again_after_a_signal(ask, number):
    assert ask(number, 1).keys() == {"narrow"}


def test_a_process_that_always_ends_by_a_signal_is_an_error(ask):
    with pytest.raises(effects.NoEffectsError):
        ask(signal.SIGKILL, 99)


def test_an_error_of_the_process_is_an_error(ask, monkeypatch):
    monkeypatch.setitem(globals(), "ANSWERS", "raise ValueError('no observation')")
    with pytest.raises(effects.NoEffectsError, match="cannot be computed"):
        ask(signal.SIGKILL, 0)
