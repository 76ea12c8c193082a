"""Render why runs are worse than their baseline: sentences for one run, and a table of all groups of a report."""
