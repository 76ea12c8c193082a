"""What `cpdrun sweep`, `status` and `logs` show of runs under way."""
