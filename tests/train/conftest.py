import forked_ranks
import pytest


@pytest.fixture
def in_ranks():
    """in_ranks(run, nproc) trains a run in that many processes."""
    return forked_ranks.train
