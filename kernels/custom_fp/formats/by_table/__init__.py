"""Kinds of formats that are tables of values (formats/tabulated.py), one in each file."""
