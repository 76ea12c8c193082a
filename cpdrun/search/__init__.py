"""Search for the fewest bits: choose runs until every answer is certified or refuted, or cannot be known.

    settings        The `search:` and `screen:` blocks of a config.
    question        The axes of an experiment as ladders of candidates, with the planned runs of every cell.
    ladders          The verdicts on the candidates, and the choice of their tuned values. Pure functions.
    schedule        The choice of the next runs. Pure functions.
    initial_width   The width at which a ladder starts, and which of several formats of one width comes first.
    results         The results of the runs, the verdicts that follow from them, and the same as plain data.
    plan            The next runs, what they would settle, and what the search is likely to cost.
    loop            The loop that starts runs, waits for results and decides again.
    allocate/       The screen that finds the layers that need more bits, and the allocation of bits to layers.

Apart from the sweep's own files, the run folders are the only memory of a search. The next search of the same question
continues from them. Runs are read by `cpdrun.study.search_results`, and texts are in `cpdrun.report`.
"""

from cpdrun.shell.callable_package import is_function_too

is_function_too(__name__)
