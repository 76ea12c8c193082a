"""Formats that are a table (formats/tabulated.py): how they are rounded, in torch, compiled and on CUDA."""
