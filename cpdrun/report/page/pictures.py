"""Draw every plot once, and write it as the requested kinds of files."""

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
    """Return the figures of all plots for which the runs have the data, by the name of the plot."""
    figures = {}
    parts = {of_cases: _part(study, of_cases) for of_cases in (None, True, False)}
    for plot in plots.available():
        if not parts[plot.of_cases].groups:
            continue
        with contextlib.suppress(plots.NotDrawnError):
            figures[plot.name] = _drawn(parts[plot.of_cases], plot)
    return figures


def draw_one(study: Study, name: str) -> Figure:
    """Return the figure of the plot with the given name.

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
    """Return a figure as the content of a PNG file."""
    with _style():
        return _content(figure, "png")


def _part(study: Study, of_cases: bool | None) -> Study:
    """Return the study restricted to the runs that plots with this value of `of_cases` show."""
    if of_cases is None or all(facet.has_cases == of_cases for facet in study.facets):
        return study
    return study.of_facets(has_cases=of_cases)


def _drawn(study: Study, plot: plots.Plot) -> Figure:
    """Return the figure with its final layout, which is then the same in all kinds of files."""
    with _style():
        figure = plot.draw(study)
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
        figure.set_layout_engine("none")
    return figure


def render(figures: dict[str, Figure]) -> dict[str, str]:
    """Return each figure as SVG, for its file and for the page."""
    with _style():
        return {name: _content(figure, "svg").decode() for name, figure in figures.items()}


def write(
    folder: Path, figures: dict[str, Figure], rendered: dict[str, str], kinds: Sequence[str]
) -> list[Path]:
    """Write figures as each of `kinds` and return the paths.

    Each file is written completely or not at all. If this report lacks a picture that an earlier report has, the
    earlier picture is removed if it is of one of `kinds`. Pictures of other kinds are not touched.

    Args:
        folder: The folder of the report.
        figures: The figures by the name of the plot.
        rendered: The SVGs of `render` by the name of the plot.
        kinds: The kinds of files, which are members of `KINDS`.
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
    """Return the content of a file without a date, so that the same runs always give the same file.

    Unlike `Figure.savefig`, which first draws the figure once more to find its layout, this draws it once.
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
    """Draw in the style of the report, and without garbage collection, which takes a tenth of the time of drawing."""
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
