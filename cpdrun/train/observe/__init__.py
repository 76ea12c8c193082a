"""A run's tensors, looked at in a few steps, and what any format would have made of them.

seen/    tables.py       what rounding would do to a tensor, binade by binade, for every spacing: exact, of bounded size
         cells.py        the counting under it, in exact integers
         observation.py  the tables and samples of a run, and the file that holds them
         look.py         one step's tensors of one rank
         observer.py     looks, in the training loop, and changes nothing
judged/  tally.py        from tables to one format and one shift
         sums.py         from samples to the sum of the workers' gradients in a run's order
         effects.py      what the config of another run would do
"""
