"""Predict and explain the effects of number formats from one run whose tensors were observed.

    collect/        Records statistics of gradients, weights and activations during training. Needs torch.
    simulate/       Computes the effects of a configuration on the recorded tensors. Needs torch.
    effects         Requests the effects of configurations from a process that has torch, and caches them.
    damage          Reduces the effects to two numbers: the damage in the layers and in the forward pass.
    forecast        `what_if`: from observed runs and configurations to the chance that each format fails.
    baseline_runs   Finds or plans the runs to observe, and forecasts the candidates of an experiment.
    variants        Forecasts variants of one observed run.
    changes         Changes of a configuration that may lose less.
    counterfactual  The effects of a run's configuration, and of each change of it, on observed tensors.
    diagnosis       Why a run is worse than its baseline, and which changes would lose less.

A prediction does not certify a format. Use `cpdrun search` for that.
"""
