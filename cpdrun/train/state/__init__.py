"""What a run stores: checkpoints, its record, where it comes from; and initial weights from a file."""
