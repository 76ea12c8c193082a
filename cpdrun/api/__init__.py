"""The Python interface of cpdrun.

    import cpdrun

    answer = cpdrun.sweep(exp="digits_bits", format=["fp32", "e4m3"], aps=[True, False], jobs=2)
    cpdrun.plot(answer.path, "accuracy_vs_bits")

Each function does what the command of the same name does: it trains the same runs under the same names, skips finished
runs, and raises the errors that the command prints.

- A keyword argument with the name of an option sets this option: `jobs=2` is `--jobs 2`, and `dry_run=True` is
  `--dry-run`. Any other keyword sets a key of the configuration: `format="e4m3"`. Write a key with dots as
  `**{"optim.lr": 0.1}` or `optim={"lr": 0.1}`.
- A list makes the key an axis: `seed=[0, 1, 2]` or `seed=range(3)`. Write a single value that is a list as `[[1, 2]]`.
- Positional arguments, or the list `overrides`, are overrides as on the command line:
  `cpdrun.sweep("exp=digits_bits", "optim.lr=.1,.2")`.
- The result is an `Answer`: the document that `--json` prints (docs/json.md), which displays itself in a notebook.
- Progress is shown live in terminals and notebooks, and as lines on stderr elsewhere. `quiet=True` turns it off.
- A mistake raises `cpdrun.UserError`. Ctrl-C and `cpdrun cancel` raise `cpdrun.Stopped`, a KeyboardInterrupt, after the
  runs have saved their state. Failed runs raise nothing: `Answer.exit_code` is 1, and the answer names them.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from cpdrun.api.answer import Answer
from cpdrun.api.call import call
from cpdrun.api.read import load, plot, plots

__all__ = [  # noqa: RUF022 (in the order of the command line's help)
    "sweep",
    "search",
    "predict",
    "judge",
    "report",
    "status",
    "logs",
    "cancel",
    "formats",
    "init",
    "schema",
    "doctor",
    "load",
    "plot",
    "plots",
    "Answer",
    # Former names of functions.
    "next",
    "screen",
    "explain",
    "work",
    "vectors",
    "calibrate",
]

Names = str | PathLike[str]


def sweep(
    *words: str,
    exp: str | None = None,
    jobs: int | None = None,
    launcher: str | None = None,
    dry_run: bool = False,
    rerun: str | None = None,
    overrides: Iterable[str] = (),
    quiet: bool = False,
    **keys: Any,
) -> Answer:
    """Train every combination of an experiment's axes, and skip finished runs (`cpdrun sweep`).

    Args:
        words: Overrides as they are typed on the command line, such as "format=fp32,e4m3".
        exp: The name of an experiment.
        jobs: The number of processes at a time. By default, all cores are used.
        launcher: Where to run: "local" or "slurm".
        dry_run: Plan the runs without starting any.
        rerun: The runs to run again: "failed", "changed", or "all".
        overrides: Further overrides, in the same form as `words`.
        quiet: Show no progress.
        keys: Keys of the configuration, and further options of the command: jobs_per_gpu, retries, max_parallel,
            fail_fast, wait, keep_going, config_dir, join.
    """
    given = _given(exp=exp, jobs=jobs, launcher=launcher, dry_run=dry_run, rerun=rerun)
    return call("sweep", (*words, *overrides), given | keys, quiet=quiet)


def search(
    *words: str,
    exp: str | None = None,
    budget: str | int | None = None,
    jobs: int | None = None,
    launcher: str | None = None,
    dry_run: bool = False,
    report: bool = False,
    overrides: Iterable[str] = (),
    quiet: bool = False,
    **keys: Any,
) -> Answer:
    """Find and certify the smallest format that trains as well as the baseline (`cpdrun search`).

    Args:
        words: Overrides as they are typed on the command line, such as "format=fp32,e4m3".
        exp: The name of an experiment.
        budget: The maximum number of runs, or the maximum core time such as "2h".
        jobs: The number of processes at a time. By default, all cores are used.
        launcher: Where to run: "local" or "slurm".
        dry_run: Return the results so far and the likely cost, without starting a run.
        report: Also write tables, plots, and the HTML page.
        overrides: Further overrides, in the same form as `words`.
        quiet: Show no progress.
        keys: Keys of the configuration, such as `search={"tolerance": 1}`, and further options of the command:
            jobs_per_gpu, retries, max_parallel, fail_fast, keep_going, config_dir, plan, allocate.
    """
    given = _given(exp=exp, budget=budget, jobs=jobs, launcher=launcher, dry_run=dry_run, report=report)
    return call("search", (*words, *overrides), given | keys, quiet=quiet)


def predict(
    *words: str,
    exp: str | None = None,
    steps: int | None = None,
    jobs: int | None = None,
    dry_run: bool = False,
    overrides: Iterable[str] = (),
    quiet: bool = False,
    **keys: Any,
) -> Answer:
    """Rank formats by how likely they are to fail, from one observed baseline run (`cpdrun predict`).

    `cpdrun.predict(exp="digits_bits")` trains the baseline if needed, and observes its gradients, weights, and
    activations. `cpdrun.predict(RUN, format=["e4m3", "e3m0"])` uses a run that was observed before.

    Args:
        words: Overrides as they are typed on the command line. The name or folder of an observed run comes first.
        exp: The name of an experiment.
        steps: The number of steps to train and observe. By default, all steps of the run.
        jobs: The number of processes at a time. By default, all cores are used.
        dry_run: List the runs that would be trained, without starting any.
        overrides: Further overrides, in the same form as `words`.
        quiet: Show no progress.
        keys: Keys of the configuration, and further options of the command: jobs_per_gpu, retries, config_dir.
    """
    given = _given(exp=exp, steps=steps, jobs=jobs, dry_run=dry_run)
    return call("predict", (*words, *overrides), given | keys, quiet=quiet)


def judge(
    file: Names,
    *,
    baseline: str | None = None,
    target: float | None = None,
    margin: str | float | None = None,
    better_by: str | float | None = None,
    lower_is_better: bool | None = None,
    **options: Any,
) -> Answer:
    """Compare results from any source with a baseline (`cpdrun judge`).

    Args:
        file: A CSV file, a file with JSON lines, or "-" for stdin. Each result belongs to a variant, called an arm.
        baseline: The arm that the others are compared with.
        target: A value to compare every arm with, instead of a baseline.
        margin: How much worse than the baseline is still good enough: a number, or a percentage such as "2%".
        better_by: How much better than the baseline an arm must be. Give either this or `margin`.
        lower_is_better: True for losses, errors, and times. By default, what is usual for the name of the column of
            values.
        options: Further options of the command: candidate, arm, seed, value, state, sd, resolution, worst, confidence,
            session, ideas, idea.
    """
    given = _given(baseline=baseline, target=target, margin=margin, better_by=better_by)
    given |= _given(lower_is_better=lower_is_better, higher_is_better=lower_is_better is False)
    return call("judge", (str(file),), given | options, quiet=True)


def report(
    *names: Names,
    metric: str | None = None,
    format: Sequence[str] | None = None,
    ci: float | None = None,
    tol: str | float | None = None,
    baseline: Mapping[str, Any] | None = None,
    rows: Sequence[str] | None = None,
    cols: Sequence[str] | None = None,
    quiet: bool = True,
    **options: Any,
) -> Answer:
    """Write tables and plots of sweeps, or explain why a run is worse (`cpdrun report`).

    Args:
        names: Names or folders of sweeps, or of one run. By default, the latest sweep.
        metric: The metric to report.
        format: The files to write, such as ["csv", "html", "pdf"].
        ci: The confidence level in percent.
        tol: The margin: how much worse than the baseline is still good enough. A number in the metric's unit, or a
            percentage such as "2%".
        baseline: The runs to compare with, such as {"format": "bf16"}.
        rows: The axes of the rows of an additional table, such as ["format", "aps"].
        cols: The axes of its columns.
        quiet: Print nothing.
        options: Further options of the command: networks, costs, to, and results_dir.
    """
    given = _given(metric=metric, format=format, ci=ci, tol=tol, baseline=baseline, rows=rows, cols=cols)
    return call("report", names, given | options, quiet=quiet)


def status(*names: Names, **options: Any) -> Answer:
    """Return the progress of sweeps, run by run (`cpdrun status`). The default is the latest sweep."""
    return call("status", names, options, quiet=True)


def logs(*names: Names, rank: int | None = None, **options: Any) -> Answer:
    """Return the output of runs, or of one rank of each run (`cpdrun logs`)."""
    return call("logs", names, _given(rank=rank) | options, quiet=True)


def cancel(*names: Names, **options: Any) -> Answer:
    """Stop sweeps or runs, which can be resumed (`cpdrun cancel`)."""
    return call("cancel", names, options, quiet=True)


def formats(name: str | None = None, *, values: bool = False) -> Answer:
    """Return the number formats, or the properties and values of one format (`cpdrun formats`)."""
    return call("formats", () if name is None else (name,), _given(values=values), quiet=True)


def init(folder: Names) -> Answer:
    """Write a starter project into a new folder (`cpdrun init`)."""
    return call("init", (str(folder),), {}, quiet=True)


def doctor(**options: Any) -> Answer:
    """Return what this machine has and lacks (`cpdrun doctor`)."""
    return call("doctor", (), options, quiet=True)


# ---- Former names of commands, which keep working for one release


def next(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """Return the runs that a search would start next (`cpdrun search --plan`). Options: budget, config_dir."""
    return call("search --plan", (*words, *overrides), keywords, quiet=quiet)


def screen(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """Find the layers that need more bits, and allocate bits to layers (`cpdrun search --allocate`).

    Options: dry_run, jobs, jobs_per_gpu, retries, launcher, max_parallel, fail_fast, config_dir.
    """
    return call("search --allocate", (*words, *overrides), keywords, quiet=quiet)


def explain(*names: Names, **options: Any) -> Answer:
    """Return why a run is worse than its baseline, and what would fix it (`cpdrun report RUN`)."""
    return call("report", names, options, quiet=True)


def work(*names: Names, quiet: bool = False, **options: Any) -> Answer:
    """Train the waiting runs of sweeps on this machine until none is left (`cpdrun sweep --join`).

    Options: rerun, jobs, jobs_per_gpu, retries.
    """
    return call("sweep --join", names, options, quiet=quiet)


def vectors(name: str, **options: Any) -> Answer:
    """Return test vectors for a format or an accumulator (`cpdrun formats --vectors`).

    Options: rounding, overflow, operands, count, seed, out.
    """
    return call("formats --vectors", (name,), options, quiet=True)


def schema(kind: str | None = None, **options: Any) -> Answer:
    """Return the JSON Schema of a kind of document, or of an experiment's yaml (`cpdrun init --schema`).

    Args:
        kind: The kind of a document that commands return (docs/json.md), such as "search".
        options: Further options of the command: config_dir.
    """
    return call("init --schema", () if kind is None else (kind,), options, quiet=True)


def calibrate(*words: str, overrides: Iterable[str] = (), quiet: bool = False, **keywords: Any) -> Answer:
    """Measure this machine, and predict the time of a step with more workers (`cpdrun doctor --calibrate`).

    Options: nproc, formats, network, algorithm, overlap, repeats, config_dir.
    """
    return call("doctor --calibrate", (*words, *overrides), keywords, quiet=quiet)


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that are neither None nor False."""
    return {name: value for name, value in options.items() if value is not None and value is not False}
