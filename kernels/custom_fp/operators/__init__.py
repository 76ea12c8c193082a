"""The operators as torch knows them: their table, what they accept, their registration and vmap."""
