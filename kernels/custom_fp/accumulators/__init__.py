"""The implementation of accumulators: the reference, the CPU and CUDA backends, and the table of machines."""
