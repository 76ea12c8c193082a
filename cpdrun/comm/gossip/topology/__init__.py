"""Graphs of workers: who gossips with whom."""
