"""Does what `cpdrun explain` proposes mend the run? Train every mend that it proposes for a few bad runs, and say.

    python scripts/explain_mends.py                # all of it: results/reference/explain/table.md, made_by.txt
    python scripts/explain_mends.py range          # one of them, printed

Each experiment of explain_mends.yaml is trained with nothing rounded and as it says, both observed; the second is
explained, and each mend becomes one run more of the same seed. Then it is explained again: what was computed has been
measured. A mend holds where the run comes within half a point of fp32, helps where it gets back a fifth of what was
lost, as cpdrun.report.why.beside counts it, and else does not. One seed of 360 test samples: a point is 3.6 of them.

All of it is of one commit: a working tree that differs from it is refused. Runs land in results/explain_mends-COMMIT;
killed and typed again it goes on.
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
from made_by import clean_commit, write_made_by

from cpdrun.record import SweepDir, git_commit, write_json
from cpdrun.study.axes.titles import plain

DATA = Path(__file__).with_suffix(".yaml")
REFERENCE = Path("results/reference/explain")
IN_FRONT = "a rule in front: "
TOLERANCE, LEAST = 0.005, 0.2
BASELINE, WORSE = "fp32", "worse"
CPDRUN = (sys.executable, "-m", "cpdrun.cli")  # of the same code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(asked)}")
    parser.add_argument("--results", type=Path, help="where runs land")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in asked]:
        parser.error(f"no experiment {unknown[0]!r}; there are: {', '.join(asked)}")
    started = time.monotonic()
    commit = (git_commit() or "unknown") if given.names else clean_commit()
    results = given.results or Path(f"results/explain_mends-{commit[:10]}")
    parts = [part(name, asked[name], results) for name in given.names or asked]
    lines = [
        "What `cpdrun explain` says of a run, every mend that it proposes, the figure that it rests on, and what",
        "training with it gave (`scripts/explain_mends.py`). `told again as`: what explain says of the same mend once",
        "its run is there. One seed, 360 test samples: a point is 3.6 of them.",
        *(line for lines in parts for line in ("", *lines)),
    ]
    print("\n".join(lines))
    if not given.names:
        REFERENCE.mkdir(parents=True, exist_ok=True)
        (REFERENCE / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        write_made_by(REFERENCE / "made_by.txt", commit, started, ["table.md"])
    return 0


def part(name: str, asked: Mapping[str, Any], results: Path) -> list[str]:
    """Lines on one experiment."""
    values = asked["worse"]
    cases = {
        BASELINE: {**asked.get("both", {}), "format": "fp32", "aps": False},
        WORSE: {**asked.get("both", {}), **values},
    }
    runs = trained(name, asked["experiment"], cases, results)
    told = results / f"{name}.json"  # before any mend is there: typed again, the same is said
    if not told.is_file():
        write_json(told, explained(runs[WORSE]))
    before = json.loads(told.read_text(encoding="utf-8"))
    mends = {}
    for i, mend in enumerate(before["mends"]):
        if mend["basis"] != "measured":
            mends[f"mend {i + 1}"] = mend
    changes = {case: cases[WORSE] | of_words(mend["words"], runs[WORSE]) for case, mend in mends.items()}
    runs = trained(name, asked["experiment"], cases | changes, results)
    values = {case: accuracy(run) for case, run in runs.items()}
    after = {tuple(mend["words"]): mend["basis"] for mend in explained(runs[WORSE])["mends"]}
    lines = [f"**{name}**: {before['sentences'][0]}", ""]
    lines += [
        "| mend | figure | before | after | accuracy | it | told again as |",
        "|---|---|--:|--:|--:|---|---|",
    ]
    for case, mend in mends.items():
        cells = [
            plain(" ".join(mend["words"])),
            mend["figure"],
            *(shown(mend[end]) for end in ("before", "after")),
            f"{100 * values[case]:.1f} %",
            verdict(values[BASELINE], values[WORSE], values[case]),
            after.get(tuple(mend["words"]), "no mend"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", f"fp32 {100 * values[BASELINE]:.1f} %, as it was {100 * values[WORSE]:.1f} %."]


def trained(
    name: str, experiment: Mapping[str, Any], cases: Mapping[str, Any], results: Path
) -> dict[str, Path]:
    """The run of each case, trained where it is not yet."""
    folder = results / "conf"
    (folder / "exp").mkdir(parents=True, exist_ok=True)
    body = {**experiment, "observe": 16, "sweep": {"cases": dict(cases), "seed": [0]}}
    (folder / "exp" / f"mends_{name}.yaml").write_text(
        yaml.safe_dump(body, sort_keys=False), encoding="utf-8"
    )
    typed = [f"exp=mends_{name}", f"results_dir={results}", "--config-dir", str(folder)]
    subprocess.run([*CPDRUN, "sweep", *typed], check=True, stdout=sys.stderr)
    planned = json.loads(
        subprocess.run(
            [*CPDRUN, "sweep", *typed, "--dry-run", "--json"], check=True, stdout=subprocess.PIPE
        ).stdout
    )
    sweep = SweepDir(results / f"mends_{name}")
    found = {}
    for run in planned["runs"]:
        [case] = [
            word.removeprefix("case=").strip("'\"") for word in run["overrides"] if word.startswith("case=")
        ]
        found[case] = sweep.run(run["name"]).path
    return found


def explained(run: Path) -> dict[str, Any]:
    told = subprocess.run([*CPDRUN, "explain", str(run), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(told.stdout)


def of_words(words: Sequence[str], run: Path) -> dict[str, Any]:
    """What was typed, as values of a case; a rule in front of those that the run has."""
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


def verdict(baseline: float, worse: float, mended: float) -> str:
    if baseline - mended <= TOLERANCE + 1e-9:
        return "holds"
    return "helps" if mended - worse > max(TOLERANCE, LEAST * (baseline - worse)) else "does not"


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
