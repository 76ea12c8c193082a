"""Orders of summation: which groups, and the longest chain of rounded additions."""

import inspect
import itertools
from collections.abc import Callable
from dataclasses import fields

import pytest

from cpdrun.comm import Sum, all_reduce, all_reduce_, all_reduce_coalesced, ddp_hook, emulate_all_reduce
from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.orders import auto_group_size, order_named
from cpdrun.comm.workers import Workers


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
        ({"fmt": "dynamic_tree", "requantise": "hop"}, 8, 7),
        ({"fmt": "dynamic_tree", "requantise": "once"}, 8, 1),
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
        ({"order": "exact"}, 64, 1),
        ({"order": "exact"}, 1, 0),
        ({"order": "aligned_7"}, 64, 1),
    ],
)
def test_longest_chain(knobs: dict, n_workers: int, chain: int | None) -> None:
    assert summation_of(Sum(**{"fmt": "fp32", **knobs}), Workers(n_workers)).longest_chain == chain


def test_every_worker_is_added_once_at_every_level() -> None:
    for name, n_workers in itertools.product(["rank", "hierarchical", "ring", "tree", "exact"], range(1, 40)):
        order, below = order_named(name), n_workers
        for level in order.levels(n_workers):
            assert [i for group in level.groups for i in group] == list(range(below))
            below = len(level.groups)
        assert below == 1
        first, summation = order.levels(n_workers)[0], summation_of(Sum("fp32", name), Workers(n_workers))
        assert all(w in first.groups[summation.group_of(w)] for w in range(n_workers))


def test_formats_with_scales_are_added_in_one_chain() -> None:
    few = summation_of(Sum("mxfp4", order="hierarchical"), Workers(8))
    assert few.longest_chain == summation_of(Sum("mxfp4"), Workers(8)).longest_chain == 7
    for order, n_workers in (("hierarchical", 16), ("tree", 3), ("ring", 2), ("exact", 2)):
        with pytest.raises(
            ValueError, match=rf"order={order}: format mxfp4 .*order=rank, or sync=requantised"
        ):
            summation_of(Sum("mxfp4", order=order), Workers(n_workers))


def test_the_width_of_aligned_is_part_of_its_name() -> None:
    assert order_named("aligned") == order_named("aligned_23") != order_named("aligned_24")
    for name, says in {
        "aligned_0": "must be aligned, or a number of bits from aligned_1 to aligned_40",
        "aligned_41": "must be aligned, or a number of bits from aligned_1 to aligned_40",
        "rank_3": "order=rank_3: this order has no suffix",
        "best": "choose one of aligned, exact, hierarchical, native, rank, ring, tree",
    }.items():
        with pytest.raises(ValueError, match=says):
            order_named(name)
    with pytest.raises(ValueError, match="supports at most 4096 workers, but there are 4097"):
        order_named("aligned_40").levels(4097)


def test_a_single_gradient_is_plain_unless_it_is_truncated() -> None:
    assert Sum("fp32", "aligned").is_plain and Sum("fp32", "exact").is_plain
    assert not Sum("fp32", "aligned_22").is_plain


def test_kahan_is_refused_if_the_order_rounds_once() -> None:
    for order in ("exact", "aligned"):
        with pytest.raises(ValueError, match=f"kahan=true with order={order}: this order rounds only once"):
            Sum("e4m3", order, kahan=True)


def test_options_replace_those_of_a_given_sum() -> None:
    given = Sum("e4m3", order="tree", kahan=True)
    assert Sum.of(given, kahan=False, overflow="saturate") == Sum("e4m3", order="tree", overflow="saturate")
    assert Sum.of("e4m3", order="tree", kahan=True) == given
    assert Sum("fp32", "tree", group_size=None) == Sum(
        "fp32", "tree"
    )  # an unused group size has one spelling
    with pytest.raises(TypeError, match="unexpected keyword argument 'khan'"):
        Sum.of("e4m3", khan=True)


@pytest.mark.parametrize(
    "function", [all_reduce, all_reduce_, all_reduce_coalesced, ddp_hook, emulate_all_reduce]
)
def test_signatures_show_the_options_of_a_sum(function: Callable) -> None:
    found = inspect.signature(function).parameters
    for knob in fields(Sum)[1:]:
        assert found[knob.name].default == knob.default and found[knob.name].kind.name == "KEYWORD_ONLY"
