"""What a format would do, said before it is trained: from one observed run of the baseline.

effects.py asks, in a process that has torch, what a configuration would do to the tensors that a run observed;
features.py makes a few numbers of it; model.py, fitted on recorded sweeps (scripts/fit_predict.py), the probability
that training with it misses the tolerance; forecast.py puts them together for the candidates of an experiment, and
words.py says it. Nothing here imports torch, and nothing is certified by it: a search is for that.
"""

from cpdrun.shell.called import is_function_too

is_function_too(__name__)
