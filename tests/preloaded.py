"""The last module that the fork server of the tests imports. See PRELOADED in conftest.py."""

import gc

from cpdrun.train.state import provenance

provenance.prepare()  # takes half a second, and each process that trains would do it again
gc.freeze()  # collections in forked processes do not visit what is imported here
