"""On Windows and macOS: what works there does, and what does not says so in a line. (Played here: without what only
POSIX or Linux has, and without the compiled extension.)"""

import subprocess
import sys
import textwrap

import pytest

from cpdrun.record import write_run

LACKING = {
    "win32": {
        "modules": ["fcntl", "termios", "pwd", "grp", "resource"],
        "os": ["fork", "killpg", "setsid", "pidfd_open", "sched_getaffinity", "getuid"],
        "signal": ["SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT"],
        "socket": ["AF_UNIX"],
    },
    "darwin": {"modules": [], "os": ["pidfd_open", "sched_getaffinity"], "signal": [], "socket": []},
}
NATIVE = ["custom_fp._native"]
PLAYED = """
import sys, os, signal, socket
import rich.console  # others' libraries look at the platform, too
{first}
sys.platform = {platform!r}
sys.modules.update(dict.fromkeys({modules}))
for module, names in ((os, {os}), (signal, {signal}), (socket, {socket})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""


def play(platform: str, code: str, *, first: str = "pass") -> subprocess.CompletedProcess:
    lacking = dict(LACKING[platform])
    lacking["modules"] = [*lacking["modules"], *NATIVE]
    program = PLAYED.format(platform=platform, first=first, **lacking) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


def typed(platform: str, *words: str, **play_it: str) -> subprocess.CompletedProcess:
    return play(platform, f"import cpdrun.cli; sys.exit(cpdrun.cli.main({list(words)!r}))", **play_it)


@pytest.mark.parametrize("platform", LACKING)
def test_numerics_work_by_the_reference_and_say_so_once(platform):
    code = """
    import custom_fp
    x = torch.tensor([1.3, 300.0, -2e-9])
    print(custom_fp.backend(), custom_fp.quantize(x, "e4m3").tolist(), custom_fp.quantize(x, "mxfp4").tolist())
    """
    done = play(platform, code, first="import torch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ", 1) == ["reference", "[1.25, inf, -0.0] [0.0, 256.0, -0.0]\n"]
    assert done.stderr.count("Its reference implementation runs instead") == 1


@pytest.mark.parametrize("platform", LACKING)
@pytest.mark.parametrize("words", [("--help",), ("formats", "e4m3"), ("formats", "--vectors", "e2m1")])
def test_commands_that_start_nothing_work(platform, words):
    done = typed(platform, *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("platform", LACKING)
@pytest.mark.parametrize("command", ["sweep", "search"])
def test_runs_are_refused_in_a_line_and_nothing_is_started(platform, command, tmp_path):
    done = typed(platform, command, "exp=digits_bits", f"results_dir={tmp_path}/results")
    assert done.returncode == 2
    assert f"runs are started on Linux alone, and this is {platform}" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "results").exists()


def test_a_report_of_runs_that_were_copied_here(tmp_path):
    for fmt, accuracy in (("fp32", 0.98), ("e4m3", 0.97)):
        for seed in range(3):
            write_run(
                tmp_path / "mine", format=fmt, seed=seed, metrics={"test_accuracy": accuracy + seed / 1000}
            )
    done = typed(
        "win32", "report", str(tmp_path / "mine"), first="import pandas, matplotlib.pyplot, scipy.stats"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine/report/report.html").exists()
