"""Make the form with which a reader of the page filters rows, by the label columns of the table of means or by words.

Without the page's script, the form stays hidden and everything is shown. Rows, points and lines have an attribute
`data-group` with the number of their group, which is the row of the group in the table of means.
"""

import pandas as pd

from cpdrun.report.page.markup import escape_html as escape
from cpdrun.report.result_text import describe_group
from cpdrun.report.tables import Shown
from cpdrun.study.collect import identity
from cpdrun.study.study import Study

# A column with more values has no list of values. The reader can still filter it by typing words.
MOST_VALUES = 60


def groups(study: Study) -> dict[str, int]:
    """Return the number of each group by its description (`Study.describe`), which identifies its points."""
    return {describe_group(study, group): i for i, group in reversed(list(enumerate(study.groups)))}


def groups_of(study: Study, runs: pd.DataFrame) -> list[int | None]:
    """Return the number of each run's group, or None for a run without a group."""
    names = list(study.groups[0].keys) if study.groups else []
    known = {tuple(identity(g.keys[name]) for name in names): i for i, g in enumerate(study.groups)}
    rows = runs.reindex(columns=names).itertuples(index=False, name=None)
    return [known.get(tuple(map(identity, row))) for row in rows]


def form(means: Shown, n_rows: int) -> str:
    """Return the HTML of the form, with a list of checkboxes for each label column that varies.

    The form is hidden until the page's script shows it.

    Args:
        means: The table of means.
        n_rows: The number of rows of the table.
    """
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
