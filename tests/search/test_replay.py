"""scripts/replay_search.py on a made-up grid, and on the recorded ones."""

import io
from pathlib import Path

import pytest
from made_up_world import BASELINE, RULES, World, chain

from cpdrun.search.schedule import Rules


@pytest.fixture
def replay(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    import replay_search

    return replay_search


def test_searches_of_a_grid_say_what_the_whole_grid_says_for_a_quarter_of_its_runs(replay, tmp_path):
    world = World({"e2m0": -88, "plain e3m2": -70, "plain e3m0": -88})
    chains = [
        chain("without APS", ["plain e5m2"], ["plain e3m2"], ["plain e3m0"]),
        chain("with APS", ["e4m3"], ["e3m2"], ["e3m0"], ["e2m0"]),
    ]
    names = [BASELINE, *(c.name for each in chains for width in each.widths for c in width)]
    grid = replay.Grid(chains, {name: [world.value((name, seed)) for seed in range(30)] for name in names})
    assert replay.whole(grid, RULES) == [8, 6]
    found = [replay.replay(grid, RULES, seed) for seed in range(10)]
    assert sum(bits == [8, 6] for bits, _ in found) >= 9
    assert sorted(runs for _, runs in found)[5] <= grid.runs / 4

    path, file = tmp_path / "grid.csv", io.StringIO()
    replay.write(grid, file)
    path.write_text(file.getvalue())
    assert replay.read(path) == grid
    assert "| with APS | 6 |" in "\n".join(replay.table(grid, RULES, 2))


RECORDED = Path(__file__).parents[2] / "results" / "reference" / "search"


@pytest.mark.parametrize(("name", "tolerance"), [("digits_convnet", 0.01), ("digits_mlp", 0.02)])
def test_searches_of_a_recorded_grid_say_what_the_whole_grid_says(replay, name, tolerance):
    grid = replay.read(RECORDED / f"{name}.csv")
    rules = Rules(tolerance=tolerance, alpha=0.05, most_seeds=grid.seeds, resolution=1 / 360)
    assert len(grid.values) == 14 and grid.seeds == 30
    found = [replay.replay(grid, rules, seed) for seed in range(10)]
    assert all(bits == replay.whole(grid, rules) == [4] for bits, _ in found)
    assert sorted(runs for _, runs in found)[5] <= grid.runs / 4
