"""Compute the costs of formats (bytes moved, bytes kept, bit operations, area), Pareto fronts and their knees."""
