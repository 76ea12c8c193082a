"""Functions and classes that training scripts call."""
