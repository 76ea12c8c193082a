"""The search: which run next, until the answer is certified, refuted or cannot be had.

question.py turns an experiment's axes into chains of candidates; results.py reads what their runs left; schedule.py,
pure, says how every candidate stands and which runs would settle most; words.py says it; drive.py asks the launcher
for those runs. Nothing is remembered beside the run folders: a search that is typed again goes on from them.
"""
