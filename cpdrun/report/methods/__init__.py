"""Compare methods of exchanging gradients: which method sends the least, and which is predicted to be the fastest."""
