"""Train one run of each committed reference again, and compare its weights with the stored ones.

    python scripts/check_references.py                       # one run of each reference that has a values.csv
    python scripts/check_references.py digits_bits llama_fp4 # only these
    python scripts/check_references.py digits_bits --pick 3  # another run of it

The code that is checked out trains the run. The runs are stored in results/references-check. A Markdown table shows
for each run whether its weights are those of values.csv, bit for bit. If not, it shows the metrics of both. Weights can
differ on another type of processor, because its matrix products add in another order. The exit status is 1 if any
weights differ.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from references import DATA, Part, read_parts
from research.claims.values import MEASURED, VALUES, Values, read_runs, read_values

from cpdrun.record import SweepDir
from cpdrun.report import ReportError

REFERENCES = Path("results/reference")
RUNS = Path("results/references-check")


class NotComparedError(Exception):
    """Raised if no run of a reference could be trained again."""


def planned_runs(part: Part) -> list[list[str]]:
    """Return the settings of each run of a sweep, or of a search with the seeds of its experiment."""
    words = [word for word in part.words if not word.startswith(("search.", "name="))]
    command = [sys.executable, "-m", "cpdrun.cli", "sweep", *words, "--dry-run", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        raise NotComparedError(f"the sweep cannot be planned: {answer.stderr.strip()}")
    return [run["overrides"] for run in json.loads(answer.stdout)["runs"]]


def train(settings: list[str], name: str) -> dict[str, Any]:
    """Train one run and return its row of values."""
    words = [*settings, f"results_dir={RUNS}", f"name={name}"]
    print(f"$ cpdrun sweep {' '.join(words)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "cpdrun.cli", "sweep", *words], stdout=subprocess.DEVNULL)
    values = read_runs(SweepDir(RUNS / name))
    if code.returncode or values is None:
        raise NotComparedError(f"the sweep ended with {code.returncode}")
    return values.rows.to_dict("records")[-1]


def compare(row: dict[str, Any], stored: Values) -> str:
    """Say whether a run is one of the stored ones, or how its metrics differ from the run with the same settings."""
    rows = stored.rows.to_dict("records")
    if any(row["weights_sha256"] == other["weights_sha256"] for other in rows):
        return "equal to the last bit"
    same = [key for key in (*stored.axes, "seed") if key in row]
    for other in rows:
        if all(str(row[key]) == str(other[key]) for key in same):
            metrics = [key for key in row if key.startswith(MEASURED[0]) and key in other]
            pairs = [f"{key.split(':')[1]} {row[key]:.6g}, stored {other[key]:.6g}" for key in metrics]
            return f"different weights: {'; '.join(pairs)}"
    return "no stored run has these settings"


def check(name: str, parts: list[Part], pick: int) -> tuple[str, str]:
    """Return the settings of a run of a reference, and the result of the comparison."""
    stored = read_values(REFERENCES / name)
    if stored is None:
        raise NotComparedError(f"no {REFERENCES / name / VALUES}")
    generator = random.Random(f"{name} {pick}")
    settings = generator.choice(planned_runs(generator.choice(parts)))
    return " ".join(settings), compare(train(settings, f"{name}-{pick}"), stored)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="references (default: all with a values.csv)"
    )
    parser.add_argument("--pick", type=int, default=0, help="the number of a random choice; default: 0")
    arguments = parser.parse_args()
    all_parts = {
        name: trained
        for name, parts in read_parts(DATA).items()
        if (trained := [p for p in parts if not p.of])
    }
    names = arguments.names or [name for name in all_parts if (REFERENCES / name / VALUES).is_file()]
    if unknown := [name for name in names if name not in all_parts]:
        parser.error(f"no reference {unknown[0]!r} with runs; there are: {', '.join(all_parts)}")
    table = ["| reference | run | weights |", "| --- | --- | --- |"]
    equal = True
    for name in names:
        try:
            run, found = check(name, all_parts[name], arguments.pick)
        except (NotComparedError, ReportError) as error:
            run, found = "", f"not compared: {error}"
        equal = equal and found.startswith("equal")
        table.append(f"| {name} | {run} | {found} |")
    print("\n".join(table))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
