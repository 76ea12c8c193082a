"""Read run directories and form the groups of runs that are compared."""
