"""`cpdrun explain RUN`: why a run is worse than its baseline, when, and what would mend it.

run.py puts it together; mends.py lists what one may turn, as configs; estimate.py says what that changes where nothing
was observed; words.py says it all. What the records of a sweep hold is read by cpdrun.report.why, which the html page
uses too. Nothing here imports torch.
"""

from cpdrun.shell.called import is_function_too

is_function_too(__name__)
