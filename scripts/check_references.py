"""Train one run of each committed reference again, and compare its weights with the stored ones.

    python scripts/check_references.py                       # one run of each reference that has a values.csv
    python scripts/check_references.py digits_bits llama_fp4 # only these
    python scripts/check_references.py digits_bits --pick 3  # another run of it

The code that is checked out trains the run in a temporary folder. A Markdown table shows whether the run with the same
settings in values.csv has the same weights, bit for bit. If not, it shows the metrics of both. Weights can differ on
another type of processor, because its matrix products add in another order. The exit status is 0 if all runs have the
same weights.
"""

import argparse
import json
import random
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from references import DATA, Part, read_parts
from research.claims.values import MEASURED, VALUES, Values, read_runs, read_values

from cpdrun.record import SweepDir
from cpdrun.report import ReportError
from cpdrun.study.collect import SEED, collect, identity

REFERENCES = Path("results/reference")


class NotComparedError(Exception):
    """Raised if no run of a reference could be trained again."""


def planned_runs(part: Part) -> list[list[str]]:
    """Return the settings of each run of a sweep. A search is planned as a sweep of its experiment."""
    words = [word for word in part.words if not word.startswith(("search.", "name="))]
    command = [sys.executable, "-m", "cpdrun.cli", "sweep", *words, "--dry-run", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        raise NotComparedError(f"the sweep cannot be planned: {answer.stderr.strip()}")
    return [run["overrides"] for run in json.loads(answer.stdout)["runs"]]


def train(settings: list[str]) -> dict[str, Any]:
    """Train one run, and return its settings and its row of values."""
    print(f"$ cpdrun sweep {shlex.join(settings)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "cpdrun.cli",
            "sweep",
            *settings,
            f"results_dir={folder}",
            "name=check",
        ]
        answer = subprocess.run(command, stdout=subprocess.DEVNULL)
        sweep = SweepDir(Path(folder) / "check")
        values = read_runs(sweep)
        if answer.returncode or values is None:
            raise NotComparedError(f"the run failed (exit status {answer.returncode})")
        (config,), (row,) = (rows.to_dict("records") for rows in (collect([sweep]), values.rows))
    return {**config, **row}


def compare(run: dict[str, Any], stored: Values) -> str:
    """Return whether the stored run with the same settings has the same weights, or else the metrics of both.

    A sweep stores no value for a setting that does not vary in it, so such a setting is not compared.
    """
    keys = (*stored.axes, SEED)
    for row in stored.rows.to_dict("records"):
        if all(row[key] is None or identity(row[key]) == identity(run.get(key)) for key in keys):
            if row["weights_sha256"] == run["weights_sha256"]:
                return "equal to the last bit"
            metrics = [key for key in run if key.startswith(MEASURED[0]) and key in row]
            both = [f"{key.split(':')[1]} {run[key]:.6g}, stored {row[key]:.6g}" for key in metrics]
            return f"different weights: {'; '.join(both)}"
    return "no stored run has these settings"


def check(name: str, parts: list[Part], pick: int) -> tuple[str, str]:
    """Train a run of a reference, and return its settings and the result of the comparison."""
    stored = read_values(REFERENCES / name)
    if stored is None:
        raise NotComparedError(f"no {REFERENCES / name / VALUES}")
    generator = random.Random(f"{name} {pick}")
    settings = generator.choice(planned_runs(generator.choice(parts)))
    return shlex.join(settings), compare(train(settings), stored)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="references (default: all with a values.csv)"
    )
    parser.add_argument("--pick", type=int, default=0, help="the number of a random choice; default: 0")
    arguments = parser.parse_args()
    all_parts = read_parts(DATA)
    names = arguments.names or [name for name in all_parts if (REFERENCES / name / VALUES).is_file()]
    if unknown := [name for name in names if name not in all_parts]:
        parser.error(f"no reference {unknown[0]!r}; there are: {', '.join(all_parts)}")
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
