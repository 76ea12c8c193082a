"""Kinds of formats that are tables of values (formats/tabulated_format.py), one in each file."""
