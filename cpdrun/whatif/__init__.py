"""Predict and explain the effects of number formats from one run whose tensors were observed.

    collect/        Records statistics of gradients, weights, and activations during training. Needs torch.
    simulate/       Computes the effects of a configuration on the recorded tensors. Needs torch.
    effects         Starts a process with torch that computes the effects of configurations, and caches the results.
    damage          Reduces the effects to two numbers: the damage in the layers and in the forward pass.
    forecast        Predicts the chance that each candidate fails, from observed runs and configurations (`what_if`).
    baseline_runs   Finds or plans the runs to observe, and forecasts the candidates of an experiment.
    variants        Forecasts variants of one observed run.
    changes         Lists changes of a configuration that may reduce the loss of accuracy.
    counterfactual  Computes the effects of a run's configuration, and of changes of it, on observed tensors.
    diagnosis       Explains why a run is worse than its baseline, and finds changes that would make it better.

A prediction does not certify a format. To certify a format, use `cpdrun search`.
"""
