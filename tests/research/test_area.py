"""Tests of the Verilog and the netlists of arithmetic units. With Yosys, one tiny unit is synthesized."""

import json
import shutil

import numpy as np
import pytest
from custom_fp.formats.scalar import Format


def test_a_netlist_evaluates_many_inputs_at_once(tmp_path):
    from research.area.netlist import Netlist

    def cell(kind, **pins):
        return {"type": kind, "connections": {pin: [bit] for pin, bit in pins.items()}}

    # r = {a[1] if c else a[0], not (a[0] and a[1])}, written in an order in which it cannot be computed
    cells = {
        "y": cell("$_NOT_", A=6, Y=5),
        "x": cell("$_AND_", A=2, B=3, Y=6),
        "z": cell("$_MUX_", A=2, B=3, S=4, Y=7),
    }
    ports = {
        "a": {"direction": "input", "bits": [2, 3]},
        "c": {"direction": "input", "bits": [4]},
        "r": {"direction": "output", "bits": [5, 7]},
    }
    file = tmp_path / "unit.json"
    file.write_text(json.dumps({"modules": {"unit": {"ports": ports, "cells": cells}}}))
    codes = np.arange(200, dtype=np.uint64)
    a, c = codes % 4, (codes >> 2) % 2
    want = (1 - (a & a >> 1 & 1)) | np.where(c, a >> 1, a & 1) << 1
    assert (Netlist(file)(a=a, c=c) == want).all()


@pytest.mark.parametrize(
    "name", ["posit8", "lns4_3", "hif8", "p3109_k8p4se", "e4m3fnuz", "ue5m3", "int8_row"]
)
def test_formats_without_sign_or_negative_zero_are_rejected(name):
    from custom_fp.formats.names import parse
    from research.area.mac_verilog import add, mac, multiply

    fmt, fp32 = parse(name), Format.parse("fp32")
    for unit, operands in (
        (mac, (fmt, fmt, fp32)),
        (mac, (fp32, fp32, fmt)),
        (multiply, (fmt, fmt, fp32)),
        (add, (fmt,)),
    ):
        with pytest.raises(ValueError, match="only formats with a sign and a -0 have units"):
            unit(*operands)


def test_exact_products_are_recognized():
    from research.area.mac_verilog import is_exact

    def exact(a, b, accumulator):
        return is_exact(*map(Format.parse, (a, b, accumulator)))

    assert (
        exact("e4m3", "e4m3", "fp16")
        and exact("fp16", "fp16", "fp32")
        and exact("bf16", "bf16", "fp32") is False
    )
    assert not exact("e5m2", "e5m2", "fp16"), "its smallest product is below fp16's smallest"
    assert not exact("e4m3fn", "e4m3fn", "fp16"), "448^2 is above fp16's largest"
    assert not exact("e2m3", "e2m3", "e8m6"), "eight bits of significand"


def test_published_ratios_are_compared():
    from research.area.published_areas import compared

    from cpdrun.costmodel import costs

    said = compared(costs.area_rows())
    assert "| fp16 over fp32 multiplier | 0." in said and "| 0.21 | Horowitz 2014 |" in said


@pytest.mark.skipif(shutil.which("yosys") is None, reason="yosys is not installed (apt-get install yosys)")
def test_the_gates_of_a_tiny_unit_equal_custom_fp_and_the_table():
    from research.area import __main__ as synthesis

    assert synthesis.transistors(synthesis.mac_verilog.significands(2, 2)) == 58
    formats = [Format.parse(name) for name in ("e2m1", "e3m0", "e3m2")]
    count, cases = synthesis.checked_mac(*formats)  # leaves where one differs
    assert cases == 2 ** (4 + 4 + 6) and count > 1000
    codes = synthesis.inputs(*formats)
    want = synthesis.expected(*formats, codes)
    assert np.isnan(want).any() and np.isinf(want).any() and np.signbit(want[want == 0]).any(), (
        "corners are met"
    )
