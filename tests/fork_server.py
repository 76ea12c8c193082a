"""Prepare the fork server of the tests. The server imports this module last, after all others in conftest.py's list."""

import gc

from cpdrun.train.state import provenance

provenance.prepare()  # This takes half a second. Calling it here saves that time in every forked process that trains.
gc.freeze()  # The garbage collector of a forked process then ignores the objects that exist now.
