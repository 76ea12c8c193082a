"""Train every fix that `cpdrun report` proposes for a few bad runs, and report whether it fixes the run.

    python scripts/research/prediction/explain_fixes.py              # all experiments
    python scripts/research/prediction/explain_fixes.py range        # only this one; the table is printed

Without names, the table and made_by.txt are written to results/reference/explain. This takes about 15 minutes.

Each experiment of explain_fixes.yaml is trained in fp32 and with the changes in the file. Both runs are observed.
`cpdrun report` explains the second run, and each proposed fix is trained in a further run with the same seed. Then the
run is explained again. This second explanation is based on measured instead of computed effects. A fix works if its run
is at most half a point worse than fp32. It helps if it recovers a fifth of the loss (as `cpdrun.study.run_comparison`
counts it). Otherwise, it does not help. There is one seed and 360 test samples, of which 3.6 make a point.

All runs must come from one commit. A working tree that differs from the commit is rejected. Runs are stored in
results/explain_fixes-COMMIT. To continue after an interruption, run the same command again.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cpdrun.record import SweepDir, git_commit, write_json
from cpdrun.study.axes import plain

sys.path.insert(0, str(Path(__file__).parents[2]))
from made_by import clean_commit, write_made_by

DATA = Path(__file__).with_suffix(".yaml")
REFERENCE = Path("results/reference/explain")
IN_FRONT = "a rule in front: "
TOLERANCE, LEAST = 0.005, 0.2
BASELINE, WORSE = "fp32", "worse"
CPDRUN = (sys.executable, "-m", "cpdrun.cli")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    experiments = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"an experiment: {', '.join(experiments)}")
    parser.add_argument("--results", type=Path, help="folder of the runs")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in experiments]:
        parser.error(f"no experiment {unknown[0]!r}; there are: {', '.join(experiments)}")
    started = time.monotonic()
    commit = (git_commit() or "unknown") if given.names else clean_commit()
    results = given.results or Path(f"results/explain_fixes-{commit[:10]}")
    parts = [part(name, experiments[name], results) for name in given.names or experiments]
    lines = [
        "What `cpdrun report` says about a run: every fix it proposes, the figure behind it, and the accuracy after",
        "training with it (`scripts/research/prediction/explain_fixes.py`). `explained again` is the basis of the",
        "same fix once its run has ended. One seed of 360 test samples, of which 3.6 make a point.",
        *(line for lines in parts for line in ("", *lines)),
    ]
    print("\n".join(lines))
    if not given.names:
        REFERENCE.mkdir(parents=True, exist_ok=True)
        (REFERENCE / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_made_by(REFERENCE / "made_by.txt", commit, started, ["table.md"])
    return 0


def part(name: str, settings: Mapping[str, Any], results: Path) -> list[str]:
    """Return the lines about one experiment."""
    values = settings["worse"]
    cases = {
        BASELINE: {**settings.get("both", {}), "format": "fp32", "aps": False},
        WORSE: {**settings.get("both", {}), **values},
    }
    runs = trained(name, settings["experiment"], cases, results)
    # Write the explanation before any fix is trained, so that a repeated command proposes the same fixes.
    explanation = results / f"{name}.json"
    if not explanation.is_file():
        write_json(explanation, explained(runs[WORSE]))
    before = json.loads(explanation.read_text(encoding="utf-8"))
    fixes = {}
    for i, fix in enumerate(before["fixes"]):
        if fix["basis"] != "measured":
            fixes[f"fix {i + 1}"] = fix
    changes = {case: cases[WORSE] | read_overrides(fix["words"], runs[WORSE]) for case, fix in fixes.items()}
    runs = trained(name, settings["experiment"], cases | changes, results)
    values = {case: accuracy(run) for case, run in runs.items()}
    after = {tuple(fix["words"]): fix["basis"] for fix in explained(runs[WORSE])["fixes"]}
    lines = [f"**{name}**: {before['sentences'][0]}", ""]
    lines += [
        "| fix | figure | before | after | accuracy | it | explained again |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    for case, fix in fixes.items():
        cells = [
            plain(" ".join(fix["words"])),
            fix["figure"],
            *(shown(fix[end]) for end in ("before", "after")),
            f"{100 * values[case]:.1f}%",
            verdict(values[BASELINE], values[WORSE], values[case]),
            after.get(tuple(fix["words"]), "no fix"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"fp32 {100 * values[BASELINE]:.1f}%, as it was {100 * values[WORSE]:.1f}%."]


def trained(
    name: str, experiment: Mapping[str, Any], cases: Mapping[str, Any], results: Path
) -> dict[str, Path]:
    """Return the run of each case, after training those that are missing."""
    folder = results / "conf"
    (folder / "exp").mkdir(parents=True, exist_ok=True)
    body = {**experiment, "observe": 16, "sweep": {"cases": dict(cases), "seed": [0]}}
    (folder / "exp" / f"fixes_{name}.yaml").write_text(
        yaml.safe_dump(body, sort_keys=False), encoding="utf-8"
    )
    typed = [f"exp=fixes_{name}", f"results_dir={results}", "--config-dir", str(folder)]
    subprocess.run([*CPDRUN, "sweep", *typed], check=True, stdout=sys.stderr)
    planned = json.loads(
        subprocess.run(
            [*CPDRUN, "sweep", *typed, "--dry-run", "--json"], check=True, stdout=subprocess.PIPE
        ).stdout
    )
    sweep = SweepDir(results / f"fixes_{name}")
    found = {}
    for run in planned["runs"]:
        [case] = [
            word.removeprefix("case=").strip("'\"") for word in run["overrides"] if word.startswith("case=")
        ]
        found[case] = sweep.run(run["name"]).path
    return found


def explained(run: Path) -> dict[str, Any]:
    done = subprocess.run([*CPDRUN, "report", str(run), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def read_overrides(words: Sequence[str], run: Path) -> dict[str, Any]:
    """Convert overrides to the values of a case, keyed by config key.

    A precision rule that is added by an override is placed before the rules of the run in folder `run`.
    """
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    found = {}
    for word in words:
        if word.startswith(IN_FRONT):
            rule = yaml.safe_load(word.removeprefix(IN_FRONT).replace(":", ": "))
            found["precision.rules"] = [rule, *config["precision"]["rules"]]
        else:
            key, _, value = word.partition("=")
            found[key] = yaml.safe_load(value)
    return found


def accuracy(run: Path) -> float:
    return float(json.loads((run / "done.json").read_text(encoding="utf-8"))["metrics"]["test_accuracy"])


def verdict(baseline: float, worse: float, fixed: float) -> str:
    if baseline - fixed <= TOLERANCE + 1e-9:
        return "works"
    return "helps" if fixed - worse > max(TOLERANCE, LEAST * (baseline - worse)) else "does not"


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
