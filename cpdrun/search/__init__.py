"""Search for the fewest bits: decide which runs to ask for until every answer is certified, refuted or impossible.

question.py turns the axes of an experiment into chains of candidates, and axes.py finds the axis of bits. results.py
reads the results of the runs. observed.py predicts which of several formats of one width to try first, and start.py
where a chain starts. schedule.py is pure. It judges every candidate and chooses the runs that would settle most.
tune.py is pure, too, and chooses the tuned values of each candidate; arms.py plans the runs for this choice. words.py
writes the messages. drive.py asks the launcher for the runs.

Apart from the sweep's own files, the run folders are the only memory of a search. The next search of the same question
continues from them.
"""

from cpdrun.shell.callable_package import is_function_too

is_function_too(__name__)
