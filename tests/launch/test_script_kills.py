"""A sweep of a user's script that is killed twice ends like an undisturbed one.

`scripts/checks/soak.py --script --kills` does the same with 200 kills.
"""

import random
from pathlib import Path

import pytest
from driving import DEADLINE_S, training

KILLS = 2
MOST_SWEEPS = 5


@pytest.mark.timeout(600)
def test_two_kills_change_neither_the_weights_nor_the_metrics(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts" / "checks")
    import soak

    two_runs = [word for word in soak.SCRIPT_RUNS if not word.startswith(("format=", "aps="))]
    monkeypatch.setattr(soak, "SCRIPT_RUNS", [*two_runs, "format=e3m0", "aps=true"])
    run = soak.Soak(tmp_path, random.Random(0), DEADLINE_S, of_script=True, only_kills=True)
    with training():
        run.calm()
        for sweep in range(MOST_SWEEPS):  # a fast sweep may end before the second kill
            if run.struck < KILLS:
                run.storm(f"storm{sweep}", nproc=2, most=KILLS)
    assert run.struck == KILLS and len(run.expected) == 2
