"""Time whole commands: a dry run, the status of a sweep with 2,000 runs, and a report on 35 runs.

    python scripts/benchmarks/commands.py                                          # the installed version
    python scripts/benchmarks/commands.py OLD/.venv/bin/cpdrun .venv/bin/cpdrun    # two versions, alternating

The runs are trained once, for one epoch of exp=digits_bits. The 2,000 runs are copies of them. The versions run
alternately. The smallest wall time and the smallest CPU time of each command are reported. The CPU time is less
affected by other programs than the time that a user waits.
"""

import hashlib
import resource
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import yaml
from harness import Report, make_parser

RUNS = 2000
SWEEP = "exp=digits_bits format=fp32,e5m2,e4m3,e3m0 aps=false,true seed=0,1,2,3,4 epochs=1 name=few"
COMMANDS = {
    "sweep exp=digits_bits --dry-run": "sweep exp=digits_bits --dry-run",
    f"status of {RUNS:,} runs": "status many",
    "report on 35 runs": "report few",
}


def time_command(cpdrun: str, words: str, results: Path) -> tuple[float, float]:
    """Run a command, and return its processor time and its wall time in seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        shlex.split(f"{cpdrun} {words} results_dir={results}"), check=True, stdout=subprocess.DEVNULL
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def copy_runs(few: Path, many: Path) -> None:
    """Make a sweep of RUNS runs by copying the runs of another sweep under new names."""
    runs, names = sorted((few / "runs").iterdir()), []
    for i in range(RUNS):
        source = runs[i % len(runs)]
        names.append(f"{source.name[:-11]}-{hashlib.sha256(str(i).encode()).hexdigest()[:10]}")
        shutil.copytree(source, many / "runs" / names[-1], ignore=shutil.ignore_patterns("ckpt", "*.bin"))
    manifest = yaml.safe_load((few / "sweep.yaml").read_text(encoding="utf-8")) | {
        "sweep": "many",
        "runs": names,
    }
    (many / "sweep.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "cpdrun", nargs="*", default=["cpdrun"], metavar="COMMAND", help="how to start cpdrun"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results-dir", type=Path, help="keep the runs there, and use them if they exist")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, Report(arguments.output) as report:
        results = arguments.results_dir or Path(temporary)
        if not (results / "many").exists():
            time_command(arguments.cpdrun[-1], f"sweep {SWEEP}", results)
            copy_runs(results / "few", results / "many")
        rows = []
        for name, words in COMMANDS.items():
            turns = [
                [time_command(cpdrun, words, results) for cpdrun in arguments.cpdrun]
                for _ in range(arguments.repeats)
            ]
            best = [
                [min(times) for times in zip(*of_one, strict=True)] for of_one in zip(*turns, strict=True)
            ]
            first = best[0][0]
            for cpdrun, (processor, wall) in zip(arguments.cpdrun, best, strict=True):
                rows.append(
                    (name, f"`{cpdrun}`", f"{processor:.2f}", f"{processor / first:.2f}", f"{wall:.2f}")
                )
        heads = ("command", "version", "processor, s", "ratio", "wall, s")
        report.add_table(heads, rows, text_columns=2)


if __name__ == "__main__":
    main()
