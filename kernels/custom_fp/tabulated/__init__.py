"""Rounding to formats that are tables (formats/tabulated.py), in PyTorch and in compiled code for the CPU and CUDA."""
