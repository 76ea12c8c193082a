"""cpdrun from Python, in the words of the command line.

    import cpdrun

    found = cpdrun.sweep(exp="digits_bits", format=["fp32", "e4m3"], aps=[True, False], jobs=2)
    cpdrun.plot(found.path, "accuracy_vs_bits")

Each function does what the command of its name does, by the same code: the same runs under the same names, finished
ones skipped, the same errors.

- A keyword that is an option of the command is that option: `jobs=2` is `--jobs 2`, `dry_run=True` is `--dry-run`.
  Every other is a key of the configuration: `format="e4m3"`; with dots `**{"optim.lr": .1}` or `optim={"lr": .1}`.
- A list is an axis: `seed=[0, 1, 2]`, `seed=range(3)`. A value that is a list itself stands in one: `[[1, 2]]`.
- Words as one types them go in front, or as `overrides`: `cpdrun.sweep("exp=digits_bits", "optim.lr=.1,.2")`.
- What comes back is an `Answer`: the document that `--json` prints (docs/json.md), which shows itself in a notebook.
- Progress is a live line in a terminal and in a notebook, and lines on stderr elsewhere; `quiet=True` leaves it away.
- What is wrong with what was asked raises `cpdrun.UserError`, whose text is the line that the command prints. Ctrl-C,
  and `cpdrun cancel` from a shell, raise `cpdrun.Stopped`, a KeyboardInterrupt, once the runs have saved. Runs that
  fail raise nothing: `Answer.exit_code` is 1, and the answer names them.
"""

from collections.abc import Iterable
from os import PathLike
from typing import Any

from cpdrun.api.answer import Answer
from cpdrun.api.call import call
from cpdrun.api.read import load, plot, plots

__all__ = [  # noqa: RUF022 (as a user meets them)
    "sweep",
    "search",
    "next",
    "screen",
    "predict",
    "judge",
    "report",
    "explain",
    "status",
    "logs",
    "cancel",
    "work",
    "calibrate",
    "formats",
    "vectors",
    "init",
    "schema",
    "doctor",
    "load",
    "plot",
    "plots",
    "Answer",
]


def sweep(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """Train every combination of an experiment's axes; finished runs are skipped (`cpdrun sweep`).

    Options: dry_run, jobs, jobs_per_gpu, retries, rerun, launcher, max_parallel, fail_fast, wait, config_dir.
    """
    return call("sweep", (*words, *overrides), keywords, quiet=quiet)


def search(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """The smallest format that trains as well as the baseline, certified (`cpdrun search`).

    Options: budget, dry_run, report, jobs, jobs_per_gpu, retries, launcher, max_parallel, fail_fast, config_dir. The
    settings of the search are keys: `search={"tolerance": 1}`.
    """
    return call("search", (*words, *overrides), keywords, quiet=quiet)


def next(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """What a search would run next, how long it takes, and what it would settle; starts nothing (`cpdrun next`).

    Options: budget, config_dir.
    """
    return call("next", (*words, *overrides), keywords, quiet=quiet)


def screen(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """Which layers and roles need high bits, and the fewest bits that follow (`cpdrun screen`).

    Options: dry_run, jobs, jobs_per_gpu, retries, launcher, max_parallel, fail_fast, config_dir.
    """
    return call("screen", (*words, *overrides), keywords, quiet=quiet)


def predict(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """Rank formats by how likely they are to fail, from one observed run of the baseline (`cpdrun predict`).

    For an experiment: `cpdrun.predict(exp="digits_bits")`. For a run that was observed:
    `cpdrun.predict(RUN, format=["e4m3", "e3m0"])`. Options: steps, dry_run, jobs, jobs_per_gpu, retries, config_dir.
    """
    return call("predict", (*words, *overrides), keywords, quiet=quiet)


def judge(file: str | PathLike[str], **keywords: Any) -> Answer:
    """Return the verdict for results from anywhere: a CSV file, JSON lines or "-" for stdin (`cpdrun judge`).

    Options: baseline, target, margin, better_by, lower_is_better, candidate, arm, seed, value, state, sd, resolution,
    worst, confidence, session, ideas, idea.
    """
    return call("judge", (str(file),), keywords, quiet=True)


def report(*names: str, quiet: bool = True, **keywords: Any) -> Answer:
    """Tables and plots of accuracy against bits, written beside the runs (`cpdrun report`); `cpdrun.plot` draws one.

    `names`: of sweeps, or their folders; the latest by default. Options: metric, format, ci, tol, baseline, rows, cols,
    networks, costs, to; and results_dir.
    """
    return call("report", names, keywords, quiet=quiet)


def explain(*names: str, **keywords: Any) -> Answer:
    """Why a run is worse than its baseline, and what would mend it (`cpdrun explain`)."""
    return call("explain", names, keywords, quiet=True)


def status(*names: str, **keywords: Any) -> Answer:
    """How far sweeps are, run by run (`cpdrun status`); the latest by default."""
    return call("status", names, keywords, quiet=True)


def logs(*names: str, **keywords: Any) -> Answer:
    """What runs printed (`cpdrun logs`). Option: rank."""
    return call("logs", names, keywords, quiet=True)


def cancel(*names: str, **keywords: Any) -> Answer:
    """Stop a sweep or a run; it can be resumed (`cpdrun cancel`)."""
    return call("cancel", names, keywords, quiet=True)


def work(*names: str, quiet: bool = False, **keywords: Any) -> Answer:
    """Take the waiting runs of sweeps, here, until none is left (`cpdrun work`).

    Options: rerun, jobs, jobs_per_gpu, retries.
    """
    return call("work", names, keywords, quiet=quiet)


def calibrate(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """Measure this machine; forecast steps with more workers and other networks (`cpdrun calibrate`).

    Options: nproc, formats, network, algorithm, overlap, repeats, config_dir.
    """
    return call("calibrate", (*words, *overrides), keywords, quiet=quiet)


def formats(name: str | None = None, **keywords: Any) -> Answer:
    """Which number formats there are; or one of them, value by value (`cpdrun formats`). Option: values."""
    return call("formats", () if name is None else (name,), keywords, quiet=True)


def vectors(name: str, **keywords: Any) -> Answer:
    """Known answers of a number format: inputs, codes, values (`cpdrun vectors`).

    Options: rounding, overflow, count, seed, out.
    """
    return call("vectors", (name,), keywords, quiet=True)


def init(folder: str | PathLike[str], **keywords: Any) -> Answer:
    """Write a project of one's own that runs into `folder` (`cpdrun init`)."""
    return call("init", (str(folder),), keywords, quiet=True)


def schema(**keywords: Any) -> Answer:
    """The JSON Schema of an experiment's yaml, for editors (`cpdrun schema`). Option: config_dir."""
    return call("schema", (), keywords, quiet=True)


def doctor(**keywords: Any) -> Answer:
    """What this machine has, what it lacks, and what mends it (`cpdrun doctor`)."""
    return call("doctor", (), keywords, quiet=True)
