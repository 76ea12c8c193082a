import forked_ranks
import pytest


@pytest.fixture
def in_ranks():
    """in_ranks(run, nproc): train a run by so many processes."""
    return forked_ranks.train
