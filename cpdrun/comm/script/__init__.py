"""Functions and classes that a training script calls itself."""
