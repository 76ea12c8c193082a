"""The attempts at one run: the agent, its connection to the engine, the watchdog, and how an attempt ended."""
