"""The processes of a run: how they start, meet and show that they live."""
