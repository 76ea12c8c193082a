"""What computes with an `Accumulator`: the definition, the kernels of CPU and GPU; and the machines that are known."""
