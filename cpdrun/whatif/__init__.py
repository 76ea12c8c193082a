"""What other formats would do to a run, computed from one run whose tensors were observed.

collect/    records statistics of gradients, weights and activations during training (needs torch)
simulate/   computes what a configuration would do to these tensors (needs torch)
effects     asks a process with torch for the effects of configurations, and caches the answers
damage      reduces the effects to two numbers: the damage in the layers and in the forward pass
failure_model, forecast, variants   turn the damage into a chance that a format fails
diagnose/   says why a run is worse than its baseline, and which changes would lose less

A prediction certifies nothing; `cpdrun search` does.
"""
