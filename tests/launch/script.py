"""A launcher in a process of its own, to be interrupted or killed: python script.py SWEEP_DIR '{"jobs": {}}'.

Leaves out what is done, unless `all`. Its last line is the Summary as JSON; on a LaunchError, one line.
"""

import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console

from cpdrun.errors import UserError
from cpdrun.launch import Display, Job, LaunchOptions, Session, axes_of, print_summary
from cpdrun.record import SweepDir, cancellation, state_of

DEFAULTS = {
    **{"nproc": 1, "threads": 1, "patience_s": 600, "limit_s": None, "device": "cpu"},
    **{"format": "fp32", "epochs": 1, "epoch_s": 0.01, "act": "finish"},
}
LOCAL = {"_target_": "cpdrun.launch.local.LocalExecutor", "jobs": 2, "jobs_per_gpu": 1, "warm_start": True}


def main(folder: str, text: str) -> int:
    request = json.loads(text)
    sweep = SweepDir(Path(folder))
    jobs = [Job(sweep.run(name), {**DEFAULTS, **config}, []) for name, config in request["jobs"].items()]
    if not request.get("all"):
        jobs = [job for job in jobs if not sweep.path.is_dir() or state_of(job.run) != "done"]
    cancelled_before = cancellation(sweep)
    console = Console(force_terminal=request.get("terminal"), width=100)
    options, launcher = LaunchOptions(**request.get("options", {})), {**LOCAL, **request.get("launcher", {})}
    try:
        with Session() as session:
            problems, _ = session.preflight([{**job.config, "launcher": launcher} for job in jobs], options)
            if problems:
                raise UserError(*problems)
            display = Display(console, axes_of(sweep))
            summary = session.launch(sweep, jobs, launcher, options, display, cancelled_before)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print_summary(console, sweep, summary)
    counts = dataclasses.asdict(summary) | {"failed": [failed.run for failed in summary.failed]}
    status = Path("/proc/self/status").read_text()
    peak_mb = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(json.dumps(counts | {"torch_imported": "torch" in sys.modules, "peak_mb": peak_mb}))
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
