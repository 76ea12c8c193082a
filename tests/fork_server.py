"""Prepare the fork server of the tests. It imports this module after all modules that conftest.py lists."""

import gc

from cpdrun.train.state import provenance

provenance.prepare()  # takes half a second, which each forked process that trains now saves
gc.freeze()  # garbage collection in forked processes skips the objects that exist now
