"""Every plot drawn once, and written as the kinds of file that are asked for."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from cpdrun.record import write_bytes, write_text
from cpdrun.report import plots
from cpdrun.report.look import style, svg
from cpdrun.study.study import Study

KINDS = ("png", "svg", "pdf")


def draw(study: Study) -> tuple[dict[str, Figure], list[str]]:
    """Every plot that the runs allow, by name, and one line for each that they do not."""
    figures, reasons = {}, []
    for plot in plots.available():
        try:
            figure = _drawn(study, plot)
        except plots.NotDrawnError as reason:
            reasons.append(f"no {plot.name}: {reason}")
            continue
        if figure is not None:
            figures[plot.name] = figure
    return figures, reasons


def draw_one(study: Study, name: str) -> Figure:
    """The plot of that name. Raises NotDrawnError where the runs do not allow it."""
    plot = next(plot for plot in plots.available() if plot.name == name)
    figure = _drawn(study, plot)
    if figure is None:
        kind = "named cases" if plot.of_cases else "runs that are no named cases"
        raise plots.NotDrawnError(f"it is of {kind}, and here are none")
    return figure


def png(figure: Figure) -> bytes:
    content = io.BytesIO()
    with _style():
        figure.savefig(content, format="png", dpi=style.PNG_DPI)
    return content.getvalue()


def _drawn(study: Study, plot: plots.Plot) -> Figure | None:
    """None where the plot is of runs of another kind."""
    part = study if plot.of_cases is None else study.of_facets(has_cases=plot.of_cases)
    if not part.groups:
        return None
    with _style():
        figure = plot.draw(part)
        figure.draw_without_rendering()  # lays it out, once for all kinds of file
        figure.set_layout_engine("none")
    return figure


def render(figures: dict[str, Figure]) -> dict[str, str]:
    """Each figure as SVG, for its file and for the page."""
    with _style():
        return {name: svg.render(figure) for name, figure in figures.items()}


def write(
    folder: Path, figures: dict[str, Figure], rendered: dict[str, str], kinds: Sequence[str]
) -> list[Path]:
    """Write `figures` as each of `kinds`, whole or not at all; pictures that an earlier report left and this
    one lacks are removed."""
    for name in plots.names():
        for kind in KINDS:
            if name not in figures or kind not in kinds:
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
    files = []
    with _style():
        for name, figure in figures.items():
            for kind in kinds:
                files.append(folder / f"{name}.{kind}")
                if kind == "svg":
                    write_text(files[-1], svg.standalone(rendered[name]))
                else:  # without a date: the same runs give the same file
                    undated, content = {"CreationDate": None} if kind == "pdf" else None, io.BytesIO()
                    figure.savefig(content, format=kind, dpi=style.PNG_DPI, metadata=undated)
                    write_bytes(files[-1], content.getvalue())
    return files


@contextlib.contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(style.RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands in its place
        yield
