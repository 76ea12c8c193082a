"""Formats with scales in the report: their bits, their order, and keys that only repeat the format."""

import pandas as pd

from cpdrun.report.tables import _whole_if_possible
from cpdrun.study import formats
from cpdrun.study.collect import other_axes


def test_bits_count_the_scales():
    names = ["fp32", "e4m3", "dynamic_tree", "dynamic_tree_b64", "mxfp4", "made.up.NAME", "e4m33"]
    assert [formats.bits(name) for name in names] == [32, 8, 8, 8.5, 4.25, None, None]
    assert sorted(names[:5], key=formats.order) == [
        "mxfp4",
        "e4m3",
        "dynamic_tree",
        "dynamic_tree_b64",
        "fp32",
    ]
    assert formats.is_baseline("fp32") and not formats.is_baseline("linear")
    assert not formats.is_floating("linear") and formats.is_floating("e4m3")


def test_whole_bits_stay_whole():
    assert _whole_if_possible(pd.Series([8, 32, None])).dtype == "Int64"
    assert _whole_if_possible(pd.Series([8.25, 32, None])).tolist()[:2] == [8.25, 32.0]


def test_a_key_that_repeats_the_format_is_no_axis():
    runs = pd.DataFrame(
        {
            "format": ["fp32", "e4m3", "fp32"],
            "model.errors": ["fp32", "e4m3", "fp32"],
            "precision.errors": ["fp32", "e4m3", "e4m3"],
        }
    )
    assert other_axes(runs) == ["precision.errors"]
