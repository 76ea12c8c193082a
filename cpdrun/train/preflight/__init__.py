"""What is looked at before a run is started."""
