"""Formats that are a table (formats/tabulated_format.py): how they are rounded, in torch, compiled and on CUDA."""
