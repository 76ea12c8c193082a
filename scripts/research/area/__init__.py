"""The chip area of arithmetic units, counted in transistors with Yosys. `make area` writes the table."""
