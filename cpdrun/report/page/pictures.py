"""Draw every plot once, and write it in each of the requested file formats."""

import contextlib
import gc
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from cpdrun.record import write_bytes, write_text
from cpdrun.report import plots, style, svg
from cpdrun.study.study import Study

KINDS = ("png", "svg", "pdf")


def draw(study: Study) -> dict[str, Figure]:
    """Draw all plots for which the runs have the data, and return their figures, keyed by the plot's name."""
    figures = {}
    parts = {of_cases: _part(study, of_cases) for of_cases in (None, True, False)}
    for plot in plots.available():
        if not parts[plot.of_cases].groups:
            continue
        with contextlib.suppress(plots.NotDrawnError):
            figures[plot.name] = _drawn(parts[plot.of_cases], plot)
    return figures


def draw_one(study: Study, name: str) -> Figure:
    """Draw the plot with the given name and return its figure.

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
    """Return the content of a figure's PNG file."""
    with _style():
        return _content(figure, "png")


def _part(study: Study, of_cases: bool | None) -> Study:
    """Return the part of the study that a plot shows, given the plot's attribute `of_cases`."""
    if of_cases is None or all(facet.has_cases == of_cases for facet in study.facets):
        return study
    chosen = [facet for facet in study.facets if facet.has_cases == of_cases]
    groups = dict.fromkeys(group for facet in chosen for group in facet.all_groups)
    return replace(study, groups=list(groups))


def _drawn(study: Study, plot: plots.Plot) -> Figure:
    """Draw a plot and compute its layout. The layout is then final, so it is the same in all file formats."""
    with _style():
        figure = plot.draw(study)
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
        figure.set_layout_engine("none")
    return figure


def render(figures: dict[str, Figure]) -> dict[str, str]:
    """Return the SVG of each figure, as matplotlib writes it, keyed by the plot's name.

    `svg.standalone` turns it into the content of a file, and `svg.inline` into an element of the page.
    """
    with _style():
        return {name: _content(figure, "svg").decode() for name, figure in figures.items()}


def write(
    folder: Path, figures: dict[str, Figure], rendered: dict[str, str], kinds: Sequence[str]
) -> list[Path]:
    """Write the figures in each file format of `kinds` and return the paths.

    Each file is written completely or not at all. If a plot was not drawn, its pictures from an earlier report are
    removed. Pictures in formats other than `kinds` are not touched.

    Args:
        folder: The folder of the report.
        figures: The figures, keyed by the plot's name.
        rendered: The SVGs that `render` returned, keyed by the plot's name.
        kinds: The file formats, which are members of `KINDS`.
    """
    for name in set(plots.names()) - figures.keys():
        for kind in kinds:
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    files = []
    with _style():
        for name, figure in figures.items():
            for kind in kinds:
                files.append(folder / f"{name}.{kind}")
                if kind == "svg":
                    write_text(files[-1], svg.standalone(rendered[name]))
                else:
                    write_bytes(files[-1], _content(figure, kind))
    return files


def _content(figure: Figure, kind: str) -> bytes:
    """Draw a figure and return the content of its file.

    The file contains no date, so that the same runs always give the same file. `Figure.savefig` would draw the figure
    twice, because its first drawing finds the layout. This function draws it once.
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
    """Apply the style of the report within a `with` block, and pause garbage collection.

    Garbage collection would take a tenth of the drawing time.
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
