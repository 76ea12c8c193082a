"""What is looked at in a run: its tensors' elements, counted and sampled, and the file of them."""
