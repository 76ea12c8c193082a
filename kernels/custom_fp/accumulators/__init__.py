"""What computes with an `Accumulator`: the reference, the CPU and CUDA backends, and a table of machines."""
