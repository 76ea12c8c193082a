"""On Windows and macOS, commands that start no run work, and the others are refused in one line.

The tests emulate these systems: they remove what only POSIX or Linux has, and the compiled extension.
"""

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
EMULATION = """
import sys, os, signal, socket
import rich.console  # other libraries also read the platform, so they are imported first
{first}
sys.platform = {platform!r}
sys.modules.update(dict.fromkeys({modules}))
for module, names in ((os, {os}), (signal, {signal}), (socket, {socket})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""


def run(platform: str, code: str, *, first: str = "pass") -> subprocess.CompletedProcess:
    """Run code on an emulated system. The statement `first` runs before the emulation starts."""
    lacking = dict(LACKING[platform])
    lacking["modules"] = [*lacking["modules"], *NATIVE]
    program = EMULATION.format(platform=platform, first=first, **lacking) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("platform", LACKING)
def test_commands_without_runs_work_and_runs_are_refused_in_one_line(platform, tmp_path):
    code = f"""
    from cpdrun.cli import main
    assert main(["formats", "e4m3"]) == 0
    for command in ("sweep", "search"):
        assert main([command, "exp=digits_bits", "results_dir={tmp_path}/results"]) == 2
    main(["--help"])
    """
    done = run(platform, code)
    assert done.returncode == 0 and "usage: cpdrun" in done.stdout, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and not (tmp_path / "results").exists()
    assert all(f"runs can only be started on Linux, but this system is {platform}" in line for line in lines)


def test_reports_and_the_reference_implementation_work_on_windows(tmp_path):
    for fmt, accuracy in (("fp32", 0.98), ("e4m3", 0.97)):
        for seed in range(3):
            metrics = {"test_accuracy": accuracy + seed / 1000}
            write_run(tmp_path / "mine", format=fmt, seed=seed, metrics=metrics)
    code = f"""
    import custom_fp
    x = torch.tensor([1.3, 300.0, -2e-9])
    print(custom_fp.backend(), custom_fp.quantize(x, "e4m3").tolist(), custom_fp.quantize(x, "mxfp4").tolist())
    from cpdrun.cli import main
    assert main(["formats", "--vectors", "e2m1"]) == 0
    sys.exit(main(["report", {str(tmp_path / "mine")!r}]))
    """
    done = run("win32", code, first="import torch, pandas, matplotlib.pyplot, scipy.stats")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("reference [1.25, inf, -0.0] [0.0, 256.0, -0.0]\n")
    assert done.stderr.count("Its reference implementation runs instead") == 1
    assert (tmp_path / "mine/report/report.html").exists()
