"""Search for the format with the fewest bits that is still good enough.

A candidate is a cell of the experiment's axes, such as "e4m3, APS", that is compared with a baseline. A pair is a
candidate run and a baseline run with the same seed. A search trains pairs until each candidate in question is certified
or refuted, or until no further run can decide it. Candidates that differ only in their format form a ladder, widest
first. A width is the group of a ladder's candidates with the same number of bits.

    settings        The `search:` and `screen:` sections of a config.
    question        The candidates of an experiment, their baselines, and the planned runs.
    ladders         The verdicts on the candidates, and the choice of their tuned values. Pure functions.
    schedule        The choice of the next runs. Pure functions.
    initial_width   The width that a ladder tests first.
    results         The results of the runs, the verdicts on candidates, and both as plain data.
    plan            The next runs, and the likely cost of the search.
    loop            The loop that starts runs and waits for results.
    allocate/       The allocation of bits to layers.

A search stores only run folders and its sweep's files. Repeating the search reads them and continues.
"""

from cpdrun.shell.callable_package import is_function_too

is_function_too(__name__)
