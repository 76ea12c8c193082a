"""The trainer: :mod:`worker` is torchrun's entry, :mod:`loop` the training loop."""
