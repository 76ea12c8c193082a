"""A search that is interrupted and killed twice ends like an undisturbed one.

`scripts/checks/soak.py --search 20` does the same with 20 kills.
"""

import re
from pathlib import Path

import pytest
from driving import TINY_SEARCH, processes_of, wait_for
from shared_modules import STAND_IN_VARIABLE

KILLS = 2


@pytest.fixture
def soak_search(monkeypatch):
    monkeypatch.delenv(STAND_IN_VARIABLE)  # these runs really train instead of simulating it
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts" / "checks")
    import soak_search

    return soak_search


@pytest.mark.timeout(600)
def test_ctrl_c_and_two_kills_change_neither_the_answer_nor_the_runs(soak_search, tmp_path):
    said = soak_search.soak(TINY_SEARCH, KILLS, seed=0, folder=tmp_path)
    answer = r"CERTIFIED: e4m3 \(8 bits\) without APS is at most 20 points worse .* Refuted: 4 bits \(e3m0 "
    assert re.match(rf"Ctrl-C and 2 kills changed neither the answer nor one of \d+ runs: {answer}", said)
    wait_for(lambda: not processes_of(tmp_path), "the end of every process")
