"""Functions for all benchmarks in this folder, to time alternatives in turns, and to print and store Markdown tables.

The calls of a table are timed in turns (A B C A B C ...) after an untimed warm-up, so that a slow moment of the machine
affects all of them. Unless a benchmark says otherwise, the fastest turn of each call counts, because other programs can
only slow a call down. Ratios are relative to the first row of the table.
"""

import argparse
import importlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

Calls = Mapping[str, Callable[[], object]]
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def time_turns(
    calls: Calls, repeats: int, *, device: str = "cpu", warm_ups: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of all timed turns of each call."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm_ups + repeats):
        for name, call in calls.items():
            spent = time_call(call, device)
            if turn >= warm_ups:
                seconds[name].append(spent)
    return seconds


def time_fastest(calls: Calls, repeats: int, *, device: str = "cpu") -> dict[str, float]:
    """Return the seconds of the fastest turn of each call."""
    return {name: min(times) for name, times in time_turns(calls, repeats, device=device).items()}


def time_processor(calls: Calls, repeats: int) -> dict[str, float]:
    """Return the smallest processor time of each call, in seconds. The calls are interleaved."""
    fastest = dict.fromkeys(calls, float("inf"))
    for turn in range(repeats + 1):
        for name, call in calls.items():
            started = time.process_time()
            call()
            if turn:
                fastest[name] = min(fastest[name], time.process_time() - started)
    return fastest


def time_call(call: Callable[[], object], device: str = "cpu") -> float:
    """Return the seconds of one call, including the work that it queued on a GPU."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def time_ranks(
    steps: Calls, repeats: int, *, warm_ups: int = 0, count: Callable[[], int] = lambda: 0
) -> dict[str, list[tuple[float, int]]]:
    """Time steps in turns. All ranks of the process group start each step at the same time.

    Args:
        steps: The steps by name.
        repeats: The number of timed turns.
        warm_ups: The number of untimed turns.
        count: A function that returns a counter, such as the number of sent bytes. Its increase in each step is
            recorded.

    Returns:
        For each timed turn of a step, the seconds of the slowest rank and the increase of the counter on this rank.
    """
    import torch
    import torch.distributed as dist

    found: dict[str, list[tuple[float, int]]] = {name: [] for name in steps}
    for turn in range(warm_ups + repeats):
        for name, step in steps.items():
            dist.barrier()
            before, started = count(), time.perf_counter()
            step()
            spent, counted = (
                torch.tensor(time.perf_counter() - started, dtype=torch.float64),
                count() - before,
            )
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            if turn >= warm_ups:
                found[name].append((spent.item(), counted))
    return found


def table_lines(
    heads: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1
) -> Iterator[str]:
    """Yield the lines of a Markdown table whose first columns are text; the others are right-aligned numbers."""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * text_columns + "|---:" * (len(heads) - text_columns) + "|"
    yield from (f"| {' | '.join(map(str, cells))} |" for cells in rows)


def make_table(heads: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1) -> str:
    """Return a Markdown table, as `table_lines` does."""
    return "\n".join(table_lines(heads, rows, text_columns))


def ratio_table(title: str, seconds: Mapping[str, float], unit: str = "ms") -> str:
    """Return a table of times and of their ratios to the first row."""
    first = next(iter(seconds.values()))
    rows = [(name, f"{s / UNITS[unit]:.2f}", f"{s / first:.2f}") for name, s in seconds.items()]
    return make_table((title, unit, "ratio"), rows)


def describe_machine(device: str = "cpu", threads: int | None = None) -> str:
    """Return the processor or GPU, the version of torch, and the backend of custom_fp, in one line."""
    import custom_fp
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    used = f", {threads} thread{'s'[: threads > 1]}" if threads else ""
    return f"{name}, torch {torch.__version__}{used}, backend {custom_fp.backend(device)}"


def optional(module: str) -> ModuleType | None:
    """Return the module, or None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of the script, with the option --output."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, metavar="FILE.md", help="write the tables to this file as well"
    )
    return parser


class Report:
    """Print the parts of a page as soon as they are known, and write all of them to a file at the end.

    Args:
        output: The file, or None to print only.
        only: The beginning of the titles of the tables to make. All other tables are skipped.
    """

    def __init__(self, output: Path | None, only: str = ""):
        self.output, self.only = output, only
        self.parts: list[str] = []

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self.output and error is None:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self.output.write_text("\n\n".join(self.parts) + "\n", encoding="utf-8")

    def add(self, part: str) -> None:
        """Print a paragraph or table, preceded by an empty line."""
        self._add_lines([part])

    def add_table(
        self, heads: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1
    ) -> None:
        """Print each row of a table as soon as it is known."""
        self._add_lines(table_lines(heads, rows, text_columns))

    def _add_lines(self, lines: Iterable[str]) -> None:
        if self.parts:
            print()
        printed = []
        for line in lines:
            print(line, flush=True)
            printed.append(line)
        self.parts.append("\n".join(printed))

    def time(
        self,
        title: str,
        make_calls: Callable[[], Calls],
        repeats: int,
        *,
        device: str = "cpu",
        unit: str = "ms",
        table: Callable[..., str] = ratio_table,
    ) -> None:
        """Time calls in turns and add the table of their fastest turns."""
        if title.startswith(self.only):
            self.add(table(title, time_fastest(make_calls(), repeats, device=device), unit))
