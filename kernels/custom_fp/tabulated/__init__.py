"""Rounding to formats that are tables (formats/tabulated_format.py), in PyTorch and compiled for the CPU and CUDA."""
