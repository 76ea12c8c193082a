"""Run scripts/research/prediction/replay_search.py on a made-up grid and on the recorded grids."""

import io
from pathlib import Path

import pytest
from made_up_world import BASELINE, RULES, World, ladder

from cpdrun.search.ladders import Rules


@pytest.fixture
def replay(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts" / "research" / "prediction")
    import replay_search

    return replay_search


def test_searches_of_a_made_up_grid_need_a_quarter_of_its_runs(replay, tmp_path):
    world = World({"e2m0": -88, "plain e3m2": -70, "plain e3m0": -88})
    ladders = [
        ladder("without APS", ["plain e5m2"], ["plain e3m2"], ["plain e3m0"]),
        ladder("with APS", ["e4m3"], ["e3m2"], ["e3m0"], ["e2m0"]),
    ]
    names = [BASELINE, *(c.name for each in ladders for width in each.widths for c in width)]
    grid = replay.Grid(ladders, {name: [world.value((name, seed)) for seed in range(30)] for name in names})
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
def test_searches_of_a_recorded_grid_find_its_answer_with_few_runs(replay, name, tolerance):
    grid = replay.read(RECORDED / f"{name}.csv")
    rules = Rules(tolerance=tolerance, alpha=0.05, most_seeds=grid.seeds, resolution=1 / 360)
    assert len(grid.values) == 14 and grid.seeds == 30
    assert replay.whole(grid, rules) == [4]
    predicted = replay.with_predictions(grid, name.replace("digits", "grid"))
    runs = {}
    for start in ("widest", "predicted", "3"):
        found = [replay.replay(replay.with_start(predicted, start), rules, seed) for seed in range(15)]
        assert all(bits == [4] for bits, _ in found)
        runs[start] = sorted(count for _, count in found)[7]
    assert runs["widest"] <= grid.runs / 4
    assert runs["predicted"] < 0.75 * runs["widest"] and runs["predicted"] < runs["3"] < runs["widest"]


def test_a_search_that_starts_at_a_broken_width_finds_the_wide_format(replay):
    grid = replay.with_broken(replay.read(RECORDED / "digits_mlp.csv"), 8)
    rules = Rules(tolerance=0.02, alpha=0.05, most_seeds=grid.seeds, resolution=1 / 360)
    assert replay.whole(grid, rules) == [8]
    assert [replay.replay(replay.with_start(grid, "4"), rules, seed)[0] for seed in range(3)] == [[8]] * 3


def test_most_predicted_starts_are_the_answer(replay, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    _, _, *rows = replay.starts()
    counts = {int(off): int(n) for _, off, n, *_ in (row.split("|") for row in rows)}
    assert sum(counts.values()) >= 40 and max(counts, key=counts.get) == 0
