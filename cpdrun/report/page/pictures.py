"""Draw every plot once, and write it as the requested kinds of files."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from cpdrun.record import write_bytes, write_text
from cpdrun.report import plots, style, svg
from cpdrun.study.study import Study

KINDS = ("png", "svg", "pdf")


def draw(study: Study) -> tuple[dict[str, Figure], list[str]]:
    """Return the figures of all plots that can be drawn by name, and a line for each plot that cannot be drawn."""
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
    """Return the figure of the plot with the given name.

    Raises:
        NotDrawnError: The runs lack the data that the plot needs.
    """
    plot = next(plot for plot in plots.available() if plot.name == name)
    figure = _drawn(study, plot)
    if figure is None:
        kind = "named cases" if plot.of_cases else "runs that are no named cases"
        raise plots.NotDrawnError(f"it is of {kind}, and here are none")
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as the content of a PNG file."""
    content = io.BytesIO()
    with _style():
        figure.savefig(content, format="png", dpi=style.PNG_DPI)
    return content.getvalue()


def _drawn(study: Study, plot: plots.Plot) -> Figure | None:
    """Return the figure, or None if the study has no runs of the kind that the plot shows."""
    part = study if plot.of_cases is None else study.of_facets(has_cases=plot.of_cases)
    if not part.groups:
        return None
    with _style():
        figure = plot.draw(part)
        figure.draw_without_rendering()  # This computes the layout once for all kinds of files.
        figure.set_layout_engine("none")
    return figure


def render(figures: dict[str, Figure]) -> dict[str, str]:
    """Return each figure as SVG, for its file and for the page."""
    with _style():
        return {name: svg.render(figure) for name, figure in figures.items()}


def write(
    folder: Path, figures: dict[str, Figure], rendered: dict[str, str], kinds: Sequence[str]
) -> list[Path]:
    """Write figures as each of `kinds` and return the paths.

    Each file is written completely or not at all. Pictures of an earlier report that this report lacks are removed.

    Args:
        folder: The folder of the report.
        figures: The figures by the name of the plot.
        rendered: The SVGs of `render` by the name of the plot.
        kinds: The kinds of files, which are members of `KINDS`.
    """
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
                else:  # The file has no date, so the same runs always give the same file.
                    undated, content = {"CreationDate": None} if kind == "pdf" else None, io.BytesIO()
                    figure.savefig(content, format=kind, dpi=style.PNG_DPI, metadata=undated)
                    write_bytes(files[-1], content.getvalue())
    return files


@contextlib.contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(style.RC), warnings.catch_warnings():
        # A missing glyph is drawn as a box, so the warning is not needed.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
