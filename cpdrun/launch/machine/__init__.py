"""Information about this machine: its cores and GPUs, missing software, and its speed."""
