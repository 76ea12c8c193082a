"""Predict and explain the effects of number formats from one run whose tensors were observed.

    collect/        Records statistics of gradients, weights and activations during training. Needs torch.
    simulate/       Computes the effects of a configuration on the recorded tensors. Needs torch.
    effects         Requests the effects of configurations from a process that has torch, and caches the answers.
    damage          Reduces the effects to two numbers: the damage in the layers and in the forward pass.
    failure_model   Turns the damage into the chance that a format fails.
    forecast        Forecasts all candidates of an experiment.
    variants        Forecasts variants of one observed run.
    diagnose/       Explains why a run is worse than its baseline, and finds changes that lose less.

A prediction does not certify a format. Use `cpdrun search` for that.
"""
