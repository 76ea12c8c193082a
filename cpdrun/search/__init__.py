"""Search for the format with the fewest bits that is still good enough.

A search starts runs until each candidate in question is certified or refuted, or until no further run can decide it.
The candidates that differ only in their format form a ladder, from most bits to fewest.

    settings        The `search:` and `screen:` blocks of a config.
    question        The candidates of an experiment, grouped into ladders, and the planned runs of every cell.
    ladders         The verdicts on the candidates, and the choice of their tuned values. Pure functions.
    schedule        The choice of the next runs. Pure functions.
    initial_width   The bit width that a ladder tests first, and the order of formats that have the same width.
    results         The results of the runs, the verdicts that follow from them, and both as plain data.
    plan            The next runs, the verdicts to which they contribute, and the likely cost of the search.
    loop            The loop that starts runs, waits for results, and chooses the next runs.
    allocate/       The screen that finds the layers that need more bits, and the allocation of bits to layers.

A search stores nothing but the run folders and the files of its sweep. Repeating the search reads them and continues.
`cpdrun.study.search_results` reads the runs, and `cpdrun.report` contains the texts.
"""

from cpdrun.shell.callable_package import is_function_too

is_function_too(__name__)
