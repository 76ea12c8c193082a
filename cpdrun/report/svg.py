"""A figure as SVG, with what each point stands for (see hover) shown when it is pointed at."""

import html
import io
import re

import matplotlib
from matplotlib.figure import Figure

from cpdrun.report import style
from cpdrun.report.hover import MARK, text_of


def standalone(figure: Figure) -> str:
    """A file of its own; browsers show a point's <title> after a moment."""
    return _resolve(_render(figure), lambda text: f"<g><title>{html.escape(text)}</title>")


def inline(figure: Figure, prefix: str, description: str) -> str:
    """For a page: no XML head, ids that no other picture has, points as class `point` with `data-tip`."""
    text = _resolve(
        _render(figure), lambda tip: f'<g class="point" tabindex="0" data-tip="{html.escape(tip)}">'
    )
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)


def _render(figure: Figure) -> str:
    text = io.StringIO()
    with matplotlib.rc_context(style.RC):
        figure.savefig(text, format="svg", metadata={"Date": None})  # the same runs give the same file
    return text.getvalue()


def _resolve(text: str, group) -> str:
    return re.sub(rf'<g id="({MARK}[0-9a-f]+)">', lambda match: group(text_of(match[1])), text)
