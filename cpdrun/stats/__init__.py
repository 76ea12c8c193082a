"""Statistics of runs as pure functions of numbers. Each module cites its sources. None needs torch or pandas."""
