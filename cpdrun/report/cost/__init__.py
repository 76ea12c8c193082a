"""What a choice of formats costs: bytes moved and kept, bit operations, area; what no other choice beats; the knee."""
