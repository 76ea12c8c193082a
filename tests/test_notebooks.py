"""Test that the notebooks in docs/notebooks show what is stored when they run again, and no warnings or paths."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))
LARGEST_BYTES = 300_000


@pytest.fixture
def nbformat():
    for name in ("ipykernel", "nbclient"):
        pytest.importorskip(name)
    return pytest.importorskip("nbformat")


@pytest.fixture
def script(nbformat, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the kernels, as `make notebooks` has it
    monkeypatch.syspath_prepend(REPOSITORY / "scripts")
    import notebooks

    return notebooks


@pytest.mark.timeout(900)  # seconds where nothing else runs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_up_to_date(path, nbformat, script, tmp_path):
    stored = nbformat.read(path, as_version=4)
    now = script.executed(path, tmp_path)
    assert not list(script.unwanted(now))
    wrong = list(script.stale(stored, now))
    assert not wrong, "\n".join(["stale; `make notebooks` makes it anew:", *wrong])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_are_complete_and_small(path, nbformat, script):
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    outputs = [output for cell in script.code_cells(stored) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs) and not list(script.unwanted(stored))
    assert path.stat().st_size < LARGEST_BYTES


def test_stale_outputs_are_found(nbformat, script):
    def page(*shown, counts=(1, 2), made_with="here"):
        cells = []
        for count, text in zip(counts, shown, strict=True):
            output = nbformat.v4.new_output("execute_result", {"text/plain": text}, execution_count=count)
            cells.append(nbformat.v4.new_code_cell("1", outputs=[output], execution_count=count))
        return nbformat.v4.new_notebook(cells=cells, metadata={"made_with": made_with})

    stored = page("certified, 3.5 points", "e3m0")
    assert not list(script.stale(stored, page("certified, 3.5 points", "e3m0")))
    (said,) = script.stale(stored, page("certified, 3.4 points", "e3m0"))
    assert "certified, 3.5 points" in said and "certified, 3.4 points" in said
    assert not list(script.stale(stored, page("certified,  −3 points", "e3m0", made_with="elsewhere")))
    assert list(script.stale(stored, page("refuted, 3.5 points", "e3m0", made_with="elsewhere")))
    assert list(script.stale(page("a", "b", counts=(2, 1)), page("a", "b")))
    assert list(script.stale(page("a", "b", counts=(1, None)), page("a", "b")))
