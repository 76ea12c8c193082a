"""One run: its agent, what starts its ranks, what watches them, and how they ended."""
