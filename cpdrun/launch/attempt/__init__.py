"""Attempts to train a run: the agent, its connection to the engine, the watchdog, and the outcome of an attempt."""
