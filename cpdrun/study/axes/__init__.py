"""What runs differ in: axes, choices, formats and methods, and their words."""
