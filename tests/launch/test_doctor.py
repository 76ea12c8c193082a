"""The doctor: healthy here, and each illness with its remedy."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from cpdrun.launch.machine import doctor
from cpdrun.launch.machine.doctor import examine, print_findings

HEALTHY = {
    "errors": {},
    "torch": "2.9",
    "torchvision": "0.24",
    "numpy": "2.0",
    "sklearn": "1.5",
    "cupy": "14",
    "custom_fp": "present",
    "backend": "native",
    "cuda": {"built_for": None, "available": False, "devices": []},
    "data": {"digits": None},
}


def test_this_machine_is_healthy(tmp_path):
    findings = {finding.what: finding for finding in examine(tmp_path / "results")}
    assert findings["torch"].state == "ok"
    assert findings["data digits"].state == "ok"
    out = io.StringIO()
    assert print_findings(Console(file=out, width=150), list(findings.values())) == 0
    assert "GB free" in out.getvalue()


@pytest.mark.parametrize(
    ("illness", "what", "state", "remedy"),
    [
        ({"errors": {"torch": "ImportError: no"}}, "torch", "broken", "pip install --force-reinstall torch"),
        ({"backend": "reference"}, "custom_fp", "no", "C++17 compiler"),
        (
            {
                "cuda": {"built_for": "13.2", "available": True, "devices": ["H200"]},
                "errors": {"cupy": "ImportError: no"},
            },
            "CuPy",
            "no",
            "pip install cupy-cuda13x",
        ),
    ],
)
def test_a_problem_is_reported_with_its_fix(monkeypatch, tmp_path, illness, what, state, remedy):
    monkeypatch.setattr(doctor, "probe", lambda: HEALTHY | illness)
    finding = next(finding for finding in examine(tmp_path) if finding.what == what)
    assert finding.state == state
    assert remedy in finding.fix


def test_a_trainer_that_does_not_start_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.sys, "executable", "/bin/false")
    findings = examine(tmp_path)
    trainer = next(finding for finding in findings if finding.what == "trainer")
    assert trainer.state == "broken" and "exit code 1" in trainer.text
    assert print_findings(Console(file=io.StringIO()), findings) == 1


def test_a_results_dir_that_cannot_be_written_is_broken():
    finding = doctor._results(Path("/proc/nowhere"))
    assert finding.state == "broken"
    assert "results_dir" in finding.fix
