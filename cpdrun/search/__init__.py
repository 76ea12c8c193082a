"""The search: which run next, until the answer is certified, refuted or cannot be had.

question.py turns an experiment's axes into chains of candidates; results.py reads what their runs left; observed.py
says which of several formats of one width to try first; schedule.py, pure, says
how every candidate stands and which runs would settle most; tune.py, pure, with which of the tuned values each is
certified, and arms.py plans the runs of those; words.py says it; drive.py asks the launcher for those runs. Nothing is
remembered beside the run folders: a search that is typed again goes on from them.
"""

from cpdrun.shell.called import is_function_too

is_function_too(__name__)
