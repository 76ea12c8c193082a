"""Store digests of trained weights, to show that another commit, such as a refactoring, computes the same bits.

    python scripts/digests.py OUT.json [--experiments NAME ...] [--runs 4] [--epochs 1]
    python scripts/digests.py --compare BEFORE.json AFTER.json

All runs of `digits_bits` are trained. Of every other small experiment whose data is on this machine, a few evenly
spaced runs are trained for a few epochs. The script takes about an hour. Digests depend on the machine, because
different vector units compute different last bits (see README). Both files must therefore be made on the same machine,
each in its own checkout and .venv. The exit status is 1 if two digests differ or a run failed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

WHOLE = "digits_bits"
CPDRUN = Path(sys.executable).with_name("cpdrun")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--experiments", nargs="*")
    parser.add_argument(
        "--runs", type=int, default=4, help="number of runs of each experiment except digits_bits"
    )
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*(json.loads(path.read_text()) for path in arguments.files))
    (out,) = arguments.files
    digests: dict[str, str] = {}
    for name in arguments.experiments or small_experiments():
        whole = name == WHOLE
        digests |= digests_of(name, None if whole else arguments.runs, None if whole else arguments.epochs)
        out.write_text(json.dumps(digests, indent=1))
    failed = [what for what, digest in digests.items() if digest == "failed"]
    print(f"{len(digests)} runs, {len(failed)} failed", *failed, sep="\n")
    return 1 if failed else 0


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    """Print the runs that differ, and the number of runs that only one file contains.

    Such runs do not count as a difference.
    """
    both = [what for what in before if what in after]
    different = [what for what in both if before[what] != after[what]]
    for what in different:
        print(f"differs: {what}")
    print(
        f"{len(both) - len(different)} of {len(both)} equal; {len(set(before) ^ set(after))} on one side only"
    )
    return 1 if different or not both else 0


def small_experiments() -> list[str]:
    """Return digits_bits and all other experiments whose data is on this machine."""
    names = sorted(path.stem for path in Path("conf/exp").glob("*.yaml"))
    return [WHOLE, *(name for name in names if name != WHOLE and not planned(name)["missing"])]


def planned(name: str) -> dict:
    command = [CPDRUN, "sweep", f"exp={name}", "--dry-run", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def digests_of(name: str, some: int | None, epochs: int | None) -> dict[str, str]:
    """Return the weights_sha256 of an experiment's runs, keyed by their overrides.

    If `some` is not None, only this number of evenly spaced runs is trained.
    """
    runs = [" ".join(run["overrides"]) for run in planned(name)["runs"]]
    with tempfile.TemporaryDirectory() as folder:
        if some is None:
            sweep([f"exp={name}"], folder)
            return {what: digest_of(what, folder) for what in runs}
        chosen = runs[:: max(1, len(runs) // some)][:some]
        typed = {what: split(what) for what in chosen}
        for overrides in typed.values():
            sweep([*overrides, f"epochs={epochs}"], folder)
        return {what: digest_of(what, folder) for what in chosen}


def split(typed: str) -> list[str]:
    """Split `a=1 case='8 bits'` into words. Quotes are kept, because they are part of the override."""
    words, quoted = [""], False
    for character in typed:
        quoted ^= character == "'"
        if character == " " and not quoted:
            words.append("")
        else:
            words[-1] += character
    return words


def sweep(overrides: list[str], folder: str) -> None:
    print(*overrides, flush=True)
    subprocess.run([CPDRUN, "sweep", *overrides, f"results_dir={folder}"], capture_output=True, check=False)


def digest_of(typed: str, folder: str) -> str:
    for text in Path(folder).glob("*/runs/*/overrides.txt"):
        words = set(text.read_text().split("\n"))
        done = text.with_name("done.json")
        if set(split(typed)) <= words and done.exists():
            return json.loads(done.read_text())["weights_sha256"]
    return "failed"


if __name__ == "__main__":
    sys.exit(main())
