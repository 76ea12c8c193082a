"""Kinds of formats that are a table (formats/tabulated.py), a file each."""
