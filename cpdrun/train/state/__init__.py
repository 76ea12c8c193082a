"""The state of a run: checkpoints, the record, the provenance of the run, and initial weights from a file."""
