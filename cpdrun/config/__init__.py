"""What a run is: composed from conf/ (compose), checked (schema), named by its content (identity)."""
