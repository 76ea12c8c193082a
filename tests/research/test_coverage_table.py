"""Test the script that measures the coverage of known architectures."""

import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "research" / "formats"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Mixtral", "Llama, eager", "GPT-2", "Mamba-2"])
def test_all_products_of_an_architecture_are_rounded(name, monkeypatch):
    """The four models contain different kinds of products.

    Mixtral has experts. The eager Llama computes attention with matmul. GPT-2 has Conv1D layers. Mamba-2 calls einsum
    and convolutions.
    """
    pytest.importorskip("transformers", reason="the script needs the models of transformers")
    monkeypatch.syspath_prepend(SCRIPTS)
    import coverage_table

    alone, everything = (
        coverage_table.coverage_of(coverage_table.ARCHITECTURES[name], "mxfp8", {}, operations)
        for operations in (False, True)
    )
    sys.modules.pop("coverage_table")
    assert everything.rounded > 0.99 > 0.9 > alone.rounded
