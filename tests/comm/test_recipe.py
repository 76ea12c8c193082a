"""Orders of summation: which groups, and the longest chain of rounded additions."""

import itertools

import pytest

from cpdrun.comm.sums.recipe import FP32, Recipe, auto_group_size
from cpdrun.comm.sums.requantised import Requantised, recipe_for


@pytest.mark.parametrize(
    ("n_workers", "size"),
    [
        (1, 1),
        (2, 2),
        (7, 7),
        (8, 8),
        (9, 3),
        (10, 2),
        (11, 4),
        (12, 3),
        (13, 4),
        (16, 4),
        (32, 4),
        (64, 8),
        (256, 16),
    ],
)
def test_automatic_groups(n_workers: int, size: int) -> None:
    assert auto_group_size(n_workers) == size


@pytest.mark.parametrize(
    ("knobs", "n_workers", "chain"),
    [
        ({"order": "rank"}, 64, 63),
        ({"order": "ring"}, 64, 63),
        ({"order": "tree"}, 64, 6),
        ({"order": "tree"}, 5, 3),
        ({"order": "tree"}, 1, 0),
        ({"order": "hierarchical"}, 8, 7),
        ({"order": "hierarchical"}, 64, 14),
        ({"order": "hierarchical", "group_size": 32}, 256, 38),
        ({"order": "hierarchical"}, 13, 6),
        ({"order": "native"}, 8, None),
    ],
)
def test_longest_chain(knobs: dict, n_workers: int, chain: int | None) -> None:
    assert Recipe(FP32, **knobs).longest_chain(n_workers) == chain


@pytest.mark.parametrize(("requantise", "chain"), [("hop", 7), ("once", 1)])
def test_longest_chain_of_what_is_decoded_and_added_in_float32(requantise: str, chain: int) -> None:
    assert Requantised("dynamic_tree", requantise).longest_chain(8) == chain


def test_every_worker_is_added_once_at_every_level() -> None:
    for order, n_workers in itertools.product(["rank", "hierarchical", "tree"], range(1, 40)):
        recipe, below = Recipe(FP32, order), n_workers
        for level in recipe.levels(n_workers):
            assert [i for group in level.groups for i in group] == list(range(below))
            below = len(level.groups)
        assert below == 1
        first = recipe.levels(n_workers)[0]
        places = [recipe.place(w, n_workers) for w in range(n_workers)]
        assert [first.groups[j][place] for j, place in places] == list(range(n_workers))


def test_formats_with_scales_take_one_chain_alone() -> None:
    knobs = {"group_size": "auto", "kahan": False, "rounding": "nearest_even", "overflow": "infinity"}
    few = recipe_for("mxfp4", order="hierarchical", n_workers=8, **knobs)
    assert few == recipe_for("mxfp4", order="rank", n_workers=16, **knobs)
    with pytest.raises(
        ValueError, match=r"order=hierarchical: format mxfp4 .*order=rank, or sync=requantised"
    ):
        recipe_for("mxfp4", order="hierarchical", n_workers=16, **knobs)


def test_a_group_size_that_plays_no_part_has_one_spelling() -> None:
    assert Recipe(FP32, "tree", group_size=None) == Recipe(FP32, "tree")
