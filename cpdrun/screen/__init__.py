"""Which layers and roles need high bits, found in few runs, and the fewest bits that follow from it.

settings (the block `screen:`) and layers (what the model has) make groups and factors; question plans the runs of a
design over them; results reads what they left; allocation chooses; words says it, and experiment writes it down for a
search.
"""

from cpdrun.shell.called import is_function_too

is_function_too(__name__)
