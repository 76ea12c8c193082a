"""The processes of a run: torch settings, rendezvous, heartbeat and decisions that all ranks share."""
