"""Draw every plot once, and write it in each requested file format."""

import contextlib
import gc
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from cpdrun.parent import die_with
from cpdrun.record import write_bytes, write_text
from cpdrun.report import plots, style, svg
from cpdrun.study.study import Study

KINDS = ("png", "svg", "pdf")

_jobs: Sequence["_Job"]  # All jobs of `render`, in the processes that it starts.


def render(study: Study, kinds: Sequence[str]) -> dict[str, dict[str, bytes]]:
    """Draw the plots that the data allows, and return the content of their files.

    The plots are drawn in several processes if this process has no other threads, so that forking it is safe.

    Args:
        study: The study to draw.
        kinds: Members of `KINDS`. SVGs are returned as matplotlib writes them. `svg.standalone` converts one to a file,
            and `svg.inline` to an element of the page.

    Returns:
        The contents as {plot name: {kind: content}}.
    """
    parts = {of_cases: _part(study, of_cases) for of_cases in (None, True, False)}
    jobs = [
        _Job(parts[plot.of_cases], plot, kinds) for plot in plots.available() if parts[plot.of_cases].groups
    ]
    contents = _run_all(jobs)
    return {job.plot.name: content for job, content in zip(jobs, contents, strict=True) if content}


@dataclass(frozen=True)
class _Job:
    """A plot to draw, the study that it shows, and the formats of its files."""

    study: Study
    plot: plots.Plot
    kinds: Sequence[str]

    def run(self) -> dict[str, bytes]:
        """Return {kind: content} of the plot, or {} if the runs lack its data."""
        try:
            figure = _drawn(self.study, self.plot)
        except plots.NotDrawnError:
            return {}
        with _style():
            return {kind: _content(figure, kind) for kind in self.kinds}


def _run_all(jobs: Sequence[_Job]) -> list[dict[str, bytes]]:
    """Run the jobs in forks of this process, or in this process if forking it is not safe.

    A fork of a process with other threads could wait forever for a lock that such a thread held.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if cores > 1 and threading.active_count() == 1 and "torch" not in sys.modules:
        from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
        from multiprocessing import get_context

        pool = ProcessPoolExecutor(min(cores, 4), get_context("fork"), _start_process, (os.getpid(), jobs))
        # If a process of the pool is killed, for example because it needs too much memory, this process runs all jobs.
        with contextlib.suppress(BrokenProcessPool), pool:
            return list(pool.map(_run_in_process, range(len(jobs))))
    return [job.run() for job in jobs]


def _start_process(parent: int, jobs: Sequence[_Job]) -> None:
    """Store the jobs. Leave Ctrl-C to the main process, and end with it."""
    global _jobs
    _jobs = jobs
    die_with(parent)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # The pool sends SIGTERM to the other processes if one was killed. The inherited handler would ignore it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run_in_process(number: int) -> dict[str, bytes]:
    return _jobs[number].run()


def draw_one(study: Study, name: str) -> Figure:
    """Draw one plot and return its figure.

    Raises:
        NotDrawnError: The runs lack the data that the plot needs.
    """
    plot = next(plot for plot in plots.available() if plot.name == name)
    part = _part(study, plot.of_cases)
    if not part.groups:
        raise plots.NotDrawnError(
            "it shows named cases, and there are none"
            if plot.of_cases
            else "it does not show named cases, and there are no other runs"
        )
    return _drawn(part, plot)


def png(figure: Figure) -> bytes:
    with _style():
        return _content(figure, "png")


def _part(study: Study, of_cases: bool | None) -> Study:
    """Return the part of a study that a plot with this `of_cases` shows."""
    if of_cases is None or all(facet.has_cases == of_cases for facet in study.facets):
        return study
    chosen = [facet for facet in study.facets if facet.has_cases == of_cases]
    groups = dict.fromkeys(group for facet in chosen for group in facet.all_groups)
    return replace(study, groups=list(groups))


def _drawn(study: Study, plot: plots.Plot) -> Figure:
    """Draw a plot and fix its layout, so that all file formats look the same."""
    with _style():
        figure = plot.draw(study)
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
        figure.set_layout_engine("none")
    return figure


def svgs(rendered: dict[str, dict[str, bytes]]) -> dict[str, str]:
    """Return the SVG of each plot from the result of `render`."""
    return {name: contents["svg"].decode() for name, contents in rendered.items()}


def write(folder: Path, rendered: dict[str, dict[str, bytes]], kinds: Sequence[str]) -> list[Path]:
    """Write the pictures in each format of `kinds` and return the paths.

    Each file is written completely or not at all. In these formats, pictures of plots that were not drawn are removed.

    Args:
        folder: The folder of the report.
        rendered: The result of `render`.
        kinds: Members of `KINDS`.
    """
    for name in set(plots.names()) - rendered.keys():
        for kind in kinds:
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    files = []
    for name, contents in rendered.items():
        for kind in kinds:
            files.append(folder / f"{name}.{kind}")
            if kind == "svg":
                write_text(files[-1], svg.standalone(contents[kind].decode()))
            else:
                write_bytes(files[-1], contents[kind])
    return files


def _content(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a PNG, PDF or SVG file.

    The bytes contain no date, so the same runs give the same file. `Figure.savefig` is slower, because it draws the
    figure twice to find the layout.
    """
    content, canvas, dpi = io.BytesIO(), figure.canvas, figure.dpi
    try:
        if kind == "png":
            figure.dpi = style.PNG_DPI
            FigureCanvasAgg(figure).print_png(content, pil_kwargs={"compress_level": 1})
        elif kind == "pdf":
            from matplotlib.backends.backend_pdf import FigureCanvasPdf  # This import takes half a second.

            FigureCanvasPdf(figure).print_pdf(content, metadata={"CreationDate": None})
        else:
            FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None})
    finally:
        figure.dpi = dpi
        figure.set_canvas(canvas)
    return content.getvalue()


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Apply the style of the report, and pause garbage collection.

    Collecting garbage would take a tenth of the drawing time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with matplotlib.rc_context(style.RC), warnings.catch_warnings():
            # A missing glyph is drawn as a box, so the warning is not needed.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            yield
    finally:
        if was_enabled:
            gc.enable()
