"""What a reader of the page may filter by: the columns of the table of means that say what a row is, and typed words.

Without the page's script there is no form, and everything is shown. Rows, points and lines carry the number of their
group (`data-group`), its row in that table.
"""

import pandas as pd

from cpdrun.report.page.markup import escape_html as escape
from cpdrun.report.tables import Shown
from cpdrun.study.collect import identity
from cpdrun.study.study import Study

MOST_VALUES = 60  # of a column; one with more is searched by typing


def groups(study: Study) -> dict[str, int]:
    """By the words of its points the number of each group."""
    return {study.describe(group): i for i, group in reversed(list(enumerate(study.groups)))}


def groups_of(study: Study, runs: pd.DataFrame) -> list[int | None]:
    """Of each run the number of its group; None where it has none."""
    names = list(study.groups[0].keys) if study.groups else []
    known = {tuple(identity(g.keys[name]) for name in names): i for i, g in enumerate(study.groups)}
    rows = runs.reindex(columns=names).itertuples(index=False, name=None)
    return [known.get(tuple(map(identity, row))) for row in rows]


def form(means: Shown, n_rows: int) -> str:
    """Hidden until the page's script shows it: a list of ticks for each label of the table that varies."""
    axes = [
        _axis(i, name, list(dict.fromkeys(row[i] for row in means.rows)))
        for i, name in enumerate(means.header[: means.n_labels])
    ]
    parts = [
        '<form id="filters" role="search" aria-label="Filters" hidden>',
        '<label class="typed">Filter <input type="search" name="words" autocomplete="off"'
        ' placeholder="words of a row"></label>',
        *axes,
        '<button type="reset">Show all</button>',
        f'<output role="status">{n_rows} of {n_rows} rows</output></form>',
    ]
    return "\n".join(part for part in parts if part)


def _axis(column: int, name: str, values: list[str]) -> str:
    if not 1 < len(values) <= MOST_VALUES:
        return ""
    ticks = "".join(
        f'<label><input type="checkbox" value="{escape(value)}"> {escape(value)}</label>' for value in values
    )
    title = escape(name)
    return (
        f'<details class="axis" data-column="{column}" data-axis="{title}"><summary>{title}: '
        f'<span class="chosen">all</span></summary><fieldset><legend>{title}</legend>{ticks}</fieldset></details>'
    )
