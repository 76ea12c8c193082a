"""A figure as SVG, with what each point stands for (see hover) shown when it is pointed at."""

import html
import io
import re
from collections.abc import Callable

from matplotlib.figure import Figure

from cpdrun.report.hover import MARK, text_of

_PX_PER_PT = 2.4  # on a page, where a picture made for a paper's column would be small


def render(figure: Figure) -> str:
    """What matplotlib makes of it; for `standalone` and `inline`."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})  # the same runs give the same file
    return text.getvalue()


def standalone(rendered: str) -> str:
    """A file of its own; browsers show a point's <title> after a moment."""
    return _resolve(rendered, lambda text: f"<g><title>{html.escape(text)}</title>")


def inline(rendered: str, prefix: str, description: str) -> str:
    """For a page: no XML head, ids that no other picture has, points as class `point` with `data-tip`."""
    text = _resolve(rendered, lambda tip: f'<g class="point" tabindex="0" data-tip="{html.escape(tip)}">')
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    width_px = _PX_PER_PT * float(re.search(r'width="([0-9.]+)pt"', text)[1])
    opening = f'<svg role="img" aria-label="{html.escape(description)}" style="max-width: {width_px:.0f}px"'
    return text.replace("<svg", opening, 1)


def _resolve(text: str, group: Callable[[str], str]) -> str:
    return re.sub(rf'<g id="({MARK}[0-9a-f]+)">', lambda match: group(text_of(match[1])), text)
