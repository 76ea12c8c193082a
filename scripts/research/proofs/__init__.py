"""Proofs that the arithmetic of custom_fp follows its definition, by an SMT solver. `make proofs` runs them."""
