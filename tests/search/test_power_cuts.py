"""A search that is killed at any time and typed again runs nothing twice and gives the same verdicts."""

import math
import random

import pytest
from instant_executor import Instant, PowerCutError

from cpdrun.report.search_text import describe_results

TYPED = ["search.tolerance=1", "name=found"]
SEARCHES = {
    "two ladders": ("format=fp32,e4m3,e3m2,e3m0,e2m0", "aps=false,true", "search.most_seeds=16"),
    "two formats of a width": ("format=fp32,e5m0,e3m2", "aps=true", "search.most_seeds=12"),
    "tuned": ("format=fp32,e4m3,e3m0", "aps=true", "search.most_seeds=12", "search.tune.optim.lr=.1,.2"),
    "from the predicted width": ("format=fp32,e4m3,e3m2,e3m0,e2m0", "aps=true"),
}


def done(results):
    return [run.name for run in results.question.directory.runs() if run.done.exists()]


@pytest.mark.parametrize("name", SEARCHES)
def test_power_cuts_change_neither_the_runs_nor_the_verdicts(go, name, request, monkeypatch):
    if name == "from the predicted width":
        request.getfixturevalue("predictions")
    if name == "tuned":
        monkeypatch.setattr("instant_executor.OFF", {("fp32", 0.1): 0.02, ("e4m3", 0.2): 0.04})
    typed = SEARCHES[name]
    undisturbed, *_ = go(*typed, folder="undisturbed", slots=1)
    rng, cuts = random.Random(4), 0
    for _ in range(10):
        Instant.cut_after = rng.randrange(0, 5)
        try:
            go(*typed, slots=1)
        except PowerCutError:
            cuts += 1
    Instant.cut_after = math.inf
    results, *_ = go(*typed, slots=1)
    assert cuts > 2 and done(results) == done(undisturbed)
    assert describe_results(results) == describe_results(undisturbed)
    again, _, codes = go(*typed, slots=1)
    assert codes == [] and describe_results(again) == describe_results(results), "nothing is left to do"
    if name == "two formats of a width":
        assert not any("e3m2" in run for run in done(results)), "the first format of the width is certified"
