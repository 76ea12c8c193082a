"""The command `cpdrun formats --vectors`, which writes test vectors.

With them, hardware and software teams check their own implementations of a number format or an accumulator.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpdrun.arguments import add_json, complete_by, count, several
from cpdrun.errors import FAILED, OK, UserError, writing
from cpdrun.parent import module_command

if TYPE_CHECKING:
    from custom_fp.accumulator import Accumulator
    from custom_fp.formats.protocol import NumberFormat

# The module that computes the vectors. It runs in a process of its own because it imports torch.
MODULE = "custom_fp.vectors"
LINES, CSV = ".jsonl", ".csv"
# The default number of random inputs, and the default number of random blocks for a format with scales.
VALUES, BLOCKS = 1024, 64


class NoVectorsError(UserError):
    """The process that computes the vectors failed."""

    exit_code = FAILED


@dataclass
class VectorsDocument:
    """Test vectors for a number format or an accumulator.

    Attributes:
        file: The file to which the vectors were written, or null if the document contains them.
        about: The header that describes the vectors, or null if they were written to a file.
        vectors: The vectors, or null if they were written to a file.
    """

    file: Path | None
    about: dict[str, Any] | None
    vectors: list[Any] | None


DOCUMENTS = {"vectors": VectorsDocument}


def add(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    vectors = commands.add_parser(
        "formats --vectors",
        description="Write inputs with the outputs that a format defines: every value, every boundary between two "
        "values with the float32 numbers next to it, zeros, subnormals, infinities, NaN, values above the largest, "
        "and random values. For formats with scales, write whole blocks. For an accumulator, write dot products: "
        "ends of blocks, products of very different size, cancellation, subnormals, infinities, NaN.",
        epilog="Example: cpdrun formats --vectors e4m3fn --rounding nearest_even,toward_zero --out e4m3fn.csv",
    )
    listed = "a number format (cpdrun formats lists them), or an accumulator (docs/accumulators.md)"
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
    vectors.add_argument(
        "--operands",
        type=several,
        metavar="F[,F]",
        help="formats of the two vectors of a dot product (default: those of the accumulator's machine, or the "
        "format of its sums). With --operands, a NAME that is a format means an accumulator that sums in it",
    )
    many = f"number of random inputs (default: {VALUES}, or {BLOCKS} blocks of a format with scales)"
    vectors.add_argument("--count", type=count, metavar="N", help=many)
    vectors.add_argument(
        "--seed", type=count, default=0, metavar="S", help="seed of random inputs and of stochastic rounding"
    )
    file = f"a {CSV} file, or a {LINES} file with one JSON object per line (default: print these lines)"
    vectors.add_argument("--out", type=Path, metavar="FILE", help=file)
    add_json(vectors)
    return vectors


def run(arguments: argparse.Namespace) -> int:
    from custom_fp.accumulator import is_name

    output, out = arguments.output, arguments.out
    _check_numbers_and_file(arguments)
    is_accumulator = arguments.operands is not None or is_name(arguments.name)
    request = _accumulator_request(arguments) if is_accumulator else _format_request(arguments)
    with tempfile.TemporaryDirectory(prefix="cpdrun-") as folder, writing(out or "the vectors"):
        asked, made = Path(folder) / "request.json", Path(folder) / "vectors"
        asked.write_text(json.dumps(request), encoding="utf-8")
        _compute(arguments.name, asked, made)
        if out is not None:
            shutil.copyfile(made, out)
            output.set_result(VectorsDocument(out, None, None))
            output.print(f"{out}: test vectors of {arguments.name}")
        elif output.as_json:
            about, *lines = made.read_text(encoding="utf-8").splitlines()
            vectors = [json.loads(line) for line in lines]
            output.set_result(VectorsDocument(None, json.loads(about), vectors))
        else:
            with made.open(encoding="utf-8") as file, contextlib.suppress(BrokenPipeError):
                shutil.copyfileobj(file, sys.stdout)
    return OK


def _check_numbers_and_file(arguments: argparse.Namespace) -> None:
    out = arguments.out
    if arguments.seed >= 2**64:
        raise UserError(f"--seed {arguments.seed}: must be below 2**64")
    if out is not None and out.suffix not in (LINES, CSV):
        raise UserError(f"--out {out}: must end in {LINES} or {CSV}")
    if out is not None and not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")


def _request(arguments: argparse.Namespace, options: list[str], count: int) -> dict[str, Any]:
    """Return the part of a request that formats and accumulators share.

    The header of the vectors shows the command with `options`, --count and --seed.
    """
    import cpdrun

    command = ["cpdrun", "formats", "--vectors", arguments.name, *options]
    return {
        "count": count,
        "seed": arguments.seed,
        "as_csv": arguments.out is not None and arguments.out.suffix == CSV,
        "made_by": f"cpdrun {cpdrun.__version__}",
        "command": shlex.join([*command, "--count", str(count), "--seed", str(arguments.seed)]),
    }


def _format_request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the request for a format's vectors.

    Raises:
        UserError: The format is unknown, or it does not support the rounding or overflow.
    """
    from cpdrun.commands.formats import named

    fmt = named(arguments.name)
    _check_rules(fmt, arguments)
    options = ["--rounding", ",".join(arguments.rounding)]
    options += [] if fmt.has_scales else ["--overflow", ",".join(arguments.overflow)]
    default = BLOCKS if fmt.has_scales else VALUES
    rules = {"format": arguments.name, "roundings": arguments.rounding, "overflows": arguments.overflow}
    return rules | _request(arguments, options, default if arguments.count is None else arguments.count)


def _check_rules(fmt: "NumberFormat", arguments: argparse.Namespace) -> None:
    """Check --rounding and --overflow.

    Raises:
        UserError: A value is unknown, or the format does not support it.
    """
    from custom_fp.rounding import Rounding, Rule

    for option in ("rounding", "overflow"):
        values = getattr(arguments, option)
        if not values:
            raise UserError(f"--{option} names nothing")
        for value in values:
            try:
                rule = Rule(**{option: value})
            except ValueError as error:
                raise UserError(f"--{option}: {error}") from None
            if rule.rounding is not Rounding.NEAREST_EVEN and not fmt.takes_rounding:
                raise UserError(f"--rounding {value}: {fmt.name} rounds to nearest only")
    if fmt.has_scales and arguments.overflow != ["infinity"]:
        raise UserError(
            f"--overflow: elements of {fmt.name} stop at their largest value, and its blocks do not overflow"
        )


def _accumulator_request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the request for an accumulator's vectors.

    Raises:
        UserError: The name or the operands are not suitable, the accumulator rounds stochastically, or --rounding or
            --overflow was given.
    """
    from custom_fp.accumulator import Accumulator

    for option, default in (("rounding", ["nearest_even"]), ("overflow", ["infinity"])):
        if getattr(arguments, option) != default:
            raise UserError(f"--{option}: the name of an accumulator says how it rounds")
    try:
        accumulator = Accumulator.parse(arguments.name)
    except ValueError as error:
        raise UserError(str(error)) from None
    if accumulator.is_stochastic:
        raise UserError(f"{arguments.name} rounds stochastically, so it has no test vectors")
    operands = [fmt.name for fmt in _operands(accumulator, arguments.operands)]
    options = [] if accumulator.scales else ["--operands", ",".join(operands)]
    count = VALUES if arguments.count is None else arguments.count
    return {"accumulator": arguments.name, "operands": operands} | _request(arguments, options, count)


def _operands(accumulator: "Accumulator", asked: list[str] | None) -> list["NumberFormat"]:
    """Return the formats of an accumulator's two operands.

    `asked` contains one or two names from --operands. If it is None, the accumulator's own operands are used,
    or, if it has none, the format of its sums.

    Raises:
        UserError: The accumulator's name already determines its operands, or a format has no sign or has scales.
    """
    from custom_fp.formats.scalar import Format
    from custom_fp.formats.tabulated_format import Tabulated

    from cpdrun.commands.formats import named

    if accumulator.scales:
        if asked is not None:
            raise UserError(
                f"--operands {','.join(asked)}: the name {accumulator} says what its operands are"
            )
        return list(accumulator.operand_formats)
    names = asked or [str(fmt) for fmt in accumulator.operand_formats or (accumulator.sum,)]
    if len(names) > 2:
        raise UserError(f"--operands {','.join(names)}: one format is needed, or two")
    formats = [named(name) for name in (names * 2)[:2]]
    for fmt in formats:
        if not isinstance(fmt, Format | Tabulated) or not fmt.max or not fmt.is_signed:
            raise UserError(
                f"--operands {fmt.name}: a format with a sign and without scales is needed, such as e4m3fn"
            )
    return formats


def _compute(name: str, asked: Path, made: Path) -> None:
    """Compute the vectors in another process, from the request file `asked`.

    Raises:
        NoVectorsError: The process failed. The message ends with the last line of its output.
    """
    done = subprocess.run(
        [*module_command(MODULE), str(asked), str(made)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise NoVectorsError(f"cannot compute the test vectors of {name}: {last}")
