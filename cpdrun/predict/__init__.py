"""Rank formats before they are trained, from one observed run of the baseline, and estimate how likely each one fails.

`effects` asks a process that has torch what a configuration does to the tensors that a run observed. `features` reduces
these effects to two numbers, the damage in the layers and the damage in the forward pass. `model` turns their sum into
a chance of failing. `forecast` does so for all candidates of an experiment, `variants` for variants of one run, and
`presentation` renders the answer. Nothing here imports torch. A prediction certifies nothing; `cpdrun search` does.
"""

from cpdrun.shell.called import is_function_too

is_function_too(__name__)
