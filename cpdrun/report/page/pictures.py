"""Draw every plot once, and write it in each requested file format."""

import contextlib
import gc
import io
import warnings
from collections.abc import Iterator, Sequence
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
    """Draw the plots that the data allows, and return {name: figure}."""
    figures = {}
    parts = {of_cases: _part(study, of_cases) for of_cases in (None, True, False)}
    for plot in plots.available():
        if not parts[plot.of_cases].groups:
            continue
        with contextlib.suppress(plots.NotDrawnError):
            figures[plot.name] = _drawn(parts[plot.of_cases], plot)
    return figures


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
    """Return the facets that a plot with this `of_cases` shows."""
    if of_cases is None or all(facet.has_cases == of_cases for facet in study.facets):
        return study
    return study.of_facets(has_cases=of_cases)


def _drawn(study: Study, plot: plots.Plot) -> Figure:
    """Draw a plot and fix its layout, so that all file formats look the same."""
    with _style():
        figure = plot.draw(study)
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
        figure.set_layout_engine("none")
    return figure


def render(figures: dict[str, Figure]) -> dict[str, str]:
    """Return each figure as matplotlib's SVG.

    `svg.standalone` converts it to a file, and `svg.inline` to an element of the page.
    """
    with _style():
        return {name: _content(figure, "svg").decode() for name, figure in figures.items()}


def write(
    folder: Path, figures: dict[str, Figure], rendered: dict[str, str], kinds: Sequence[str]
) -> list[Path]:
    """Write the figures in each format of `kinds` and return the paths.

    Each file is written completely or not at all. Pictures of plots that were not drawn are removed in these formats.

    Args:
        folder: The folder of the report.
        figures: The figures, keyed by the plot's name.
        rendered: The SVGs from `render`, keyed by the plot's name.
        kinds: Members of `KINDS`.
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
