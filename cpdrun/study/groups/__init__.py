"""Runs that differ in their seed alone, what they are compared with, and how sure that is."""
