"""A script seen from the process that watches it: how it is started and ends, what it prints and writes, its log."""
