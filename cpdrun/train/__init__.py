"""The trainer. :mod:`rank` is the entry point of a process, :mod:`build` creates the parts, and :mod:`loop` trains."""
