"""Proofs with an SMT solver that the arithmetic of custom_fp follows its definition. `make proofs` runs them."""
