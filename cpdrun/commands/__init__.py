"""The commands, one per file.

In each file, `add` defines the arguments of the command, and `run` executes it. `run` also contains the imports that
take long.
"""
