"""Workers that keep weights of their own and mix them with their neighbours'."""
