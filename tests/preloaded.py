"""The last module that the fork server of the tests imports. See PRELOADED in conftest.py."""

import gc

from cpdrun.train.state.provenance import distributions_by_module

distributions_by_module()  # takes 0.2 s, and each process that trains would do it again
gc.freeze()  # collections in forked processes do not visit what is imported here
