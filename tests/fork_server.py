"""Prepare the fork server of the tests, which imports this module last. conftest.py lists the others."""

import gc

from cpdrun.train.state import provenance

provenance.prepare()  # takes half a second, and each process that trains would do it again
gc.freeze()  # collections in forked processes do not visit what is imported here
