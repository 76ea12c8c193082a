"""cpdrun around a user's own script: what its run records, how it is started, and where the numerics take hold."""
