"""Predict and explain the effects of number formats from one observed run.

    collect/        Records statistics of gradients, weights, and activations during training. Needs torch.
    simulate/       Applies a configuration to the recorded tensors and measures the rounding errors. Needs torch.
    effects         Runs `simulate` in a separate process, and caches its results.
    damage          Reduces the rounding errors to two numbers that a regression uses.
    forecast        Predicts the chance that a candidate fails.
    baseline_runs   Selects the runs to observe, and forecasts the candidates of an experiment.
    variants        Forecasts variants of a single observed run.
    changes         Lists changes of a configuration that may reduce rounding errors.
    counterfactual  Measures a run's rounding errors, and those with each change.
    diagnosis       Explains why a run is worse than its baseline, and ranks the changes that would fix it.

A prediction does not certify a format. To certify a format, use `cpdrun search`.
"""
