"""Local training: workers step on their own, and what they moved is exchanged every so many steps."""
