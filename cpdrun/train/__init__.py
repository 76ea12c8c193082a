"""The trainer: :mod:`rank` is the entry point of a process, :mod:`build` makes the parts and :mod:`loop` trains."""
