"""`cpdrun vectors`: what a number format makes of chosen inputs, for those who build it in hardware or software."""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import complete_by, count, several
from cpdrun.errors import FAILED, OK, UserError, writing

if TYPE_CHECKING:
    from custom_fp.formats.protocol import NumberFormat

MODULE = "custom_fp.vectors"  # imports torch
LINES, CSV = ".jsonl", ".csv"
VALUES, BLOCKS = 1024, 64  # at random, where --count does not say


class NoVectorsError(UserError):
    """The process that computes them failed; the line is its last."""

    exit_code = FAILED


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    vectors = commands.add_parser(
        "vectors",
        help="known answers of a number format: inputs, codes, values",
        description="Write inputs and what the format makes of them, by its definition: every value and boundary "
        "between neighbours with the float32 numbers beside it, zeros, subnormals, infinities, NaN, what is past the "
        "largest value, and some at random. Of formats with scales whole blocks.",
        epilog="Example: cpdrun vectors e4m3fn --rounding nearest_even,toward_zero --out e4m3fn.csv",
    )
    listed = "a number format; cpdrun formats lists them"
    complete_by("formats", vectors.add_argument("name", metavar="NAME", help=listed))
    vectors.add_argument(
        "--rounding",
        type=several,
        default=["nearest_even"],
        metavar="R,R",
        help="nearest_even (default), toward_zero, stochastic, stochastic_8 ...",
    )
    vectors.add_argument(
        "--overflow",
        type=several,
        default=["infinity"],
        metavar="O,O",
        help="infinity (default), saturate, propagate",
    )
    many = f"inputs at random; {VALUES}, and {BLOCKS} blocks of a format with scales"
    vectors.add_argument("--count", type=count, metavar="N", help=many)
    vectors.add_argument(
        "--seed", type=count, default=0, metavar="S", help="of random inputs and of rounding"
    )
    file = f"a {CSV} file, or {LINES} with a JSON object a line; default: those lines on the screen"
    vectors.add_argument("--out", type=Path, metavar="FILE", help=file)
    return vectors


def run(arguments: argparse.Namespace) -> int:
    from cpdrun.commands.formats import named

    fmt, out = named(arguments.name), arguments.out
    _check(fmt, arguments)
    with tempfile.TemporaryDirectory(prefix="cpdrun-") as folder, writing(out or "the vectors"):
        asked, made = Path(folder) / "request.json", Path(folder) / "vectors"
        asked.write_text(json.dumps(_request(fmt, arguments)), encoding="utf-8")
        _compute(fmt, asked, made)
        if out is None:
            with made.open(encoding="utf-8") as file, contextlib.suppress(BrokenPipeError):
                shutil.copyfileobj(file, sys.stdout)
            return OK
        with made.open("rb") as file, out.open("wb") as copy:
            shutil.copyfileobj(file, copy)
    print(f"{out}: known answers of {fmt.name}")
    return OK


def _check(fmt: "NumberFormat", arguments: argparse.Namespace) -> None:
    """Raises UserError for words that do not fit."""
    from custom_fp.rule import Rounding, Rule

    if not arguments.rounding or not arguments.overflow:
        raise UserError(f"--{'overflow' if arguments.rounding else 'rounding'} names nothing")
    for words in ("rounding", "overflow"):
        for word in getattr(arguments, words):
            try:
                rule = Rule(**{words: word})
            except ValueError as error:
                raise UserError(f"--{words}: {error}") from None
            if rule.rounding is not Rounding.NEAREST_EVEN and not fmt.takes_rounding:
                raise UserError(f"--rounding {word}: {fmt.name} rounds to nearest only")
    if fmt.has_scales and arguments.overflow != ["infinity"]:
        raise UserError(
            f"--overflow: elements of {fmt.name} stop at their largest value, and its blocks do not overflow"
        )
    if arguments.seed >= 2**64:
        raise UserError(f"--seed {arguments.seed}: must be below 2**64")
    if arguments.out is not None and arguments.out.suffix not in (LINES, CSV):
        raise UserError(f"--out {arguments.out}: must end in {LINES} or {CSV}")
    if arguments.out is not None and not arguments.out.parent.is_dir():
        raise UserError(f"--out {arguments.out}: there is no folder {arguments.out.parent}")


def _request(fmt: "NumberFormat", arguments: argparse.Namespace) -> dict[str, Any]:
    """What the process that has torch reads."""
    import cpdrun

    random = arguments.count
    command = ["cpdrun", "vectors", arguments.name, "--rounding", ",".join(arguments.rounding)]
    command += [] if fmt.has_scales else ["--overflow", ",".join(arguments.overflow)]
    random = random if random is not None else BLOCKS if fmt.has_scales else VALUES
    return {
        "format": arguments.name,
        "roundings": arguments.rounding,
        "overflows": arguments.overflow,
        "count": random,
        "seed": arguments.seed,
        "as_csv": arguments.out is not None and arguments.out.suffix == CSV,
        "made_by": f"cpdrun {cpdrun.__version__}",
        "command": shlex.join([*command, "--count", str(random), "--seed", str(arguments.seed)]),
    }


def _compute(fmt: "NumberFormat", asked: Path, made: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", MODULE, str(asked), str(made)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        said = done.stdout.strip().splitlines() or ["no output"]
        raise NoVectorsError(f"the known answers of {fmt.name} cannot be had: {said[-1]}")
