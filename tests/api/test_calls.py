"""Calls from Python: in a script, in a notebook, and in the examples of the documentation."""

import inspect
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import matplotlib.figure
import pytest
from shared_modules import SOCKET_VARIABLE

import cpdrun
from cpdrun.cli import main
from cpdrun.record import NotFoundError

SMALL = {"exp": "digits_bits", "seed": 0, "epochs": 1, "model": {"width": 4}, "device": "cpu"}
PAGE = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the answer of a first call."""
    folder = tmp_path_factory.mktemp("called")
    with socket.socket(socket.AF_UNIX) as client:  # as of a command that is killed at its start
        client.connect(os.environ[SOCKET_VARIABLE])
    return cpdrun.sweep(**SMALL, format=["e4m3", "fp32"], aps=False, jobs=2, results_dir=folder, quiet=True)


def test_a_sweep_returns_an_answer(found):
    assert found.is_ok and found.kind == "sweep" and found["summary"]["done"] == 2
    assert found.says == ["format(2) = 2 -> 2 runs", "2 done"]
    assert found.table["metrics.test_accuracy"].between(0, 1).all()
    assert "format(2)" in repr(found) and "<table" in found._repr_html_()
    runs = found.load()
    assert sorted(runs["format"]) == ["e4m3", "fp32"] and (runs["run:state"] == "done").all()
    assert runs.equals(cpdrun.load(str(found.path)))
    assert cpdrun.report(found, quiet=True)["table"] == cpdrun.report(str(found.path), quiet=True)["table"]


def test_a_second_call_and_the_command_train_nothing(found, capfd):
    folder = found.path.parent
    again = cpdrun.sweep(**SMALL, format=["e4m3", "fp32"], aps=False, results_dir=folder, quiet=True)
    assert again["summary"] is None and again["done"] == 2
    assert capfd.readouterr() == ("", "")
    words = [
        "exp=digits_bits",
        "seed=0",
        "epochs=1",
        "model.width=4",
        "device=cpu",
        "format=e4m3,fp32",
        "aps=false",
    ]
    assert main(["sweep", *words, f"results_dir={folder}"]) == 0
    assert "2 done, 0 to run" in capfd.readouterr().out


def test_status_plan_and_report_of_the_same_runs(found):
    assert list(cpdrun.status(str(found.path)).table["state"]) == ["done", "done"]
    following = cpdrun.search(str(found.path), plan=True, budget=2, quiet=True)
    assert following["fit"] == 2 and following.says
    made = cpdrun.report(str(found.path), format="csv")
    assert len(made["table"]) == 2 and all(Path(file).exists() for file in made["files"])


def test_a_plot_is_a_figure(found):
    figure = found.plot("accuracy_vs_bits")
    assert isinstance(figure, matplotlib.figure.Figure)
    with pytest.raises(cpdrun.UserError, match=r"no plot 'acuracy_vs_bits'.*did you mean 'accuracy_vs_bits'"):
        cpdrun.plot(found.path, "acuracy_vs_bits")
    with pytest.raises(cpdrun.UserError, match="no min_bits_vs_workers: "):
        cpdrun.plot(found.path, "min_bits_vs_workers")


def test_a_mistake_raises_the_message_of_the_command(tmp_path, capsys):
    with pytest.raises(cpdrun.UserError) as caught:
        cpdrun.sweep(exp="digits_bits", frmat="e4m3", results_dir=tmp_path)
    assert str(caught.value) == "unknown key 'frmat' (did you mean 'format'?). Nothing was started."
    assert main(["sweep", "exp=digits_bits", "frmat=e4m3"]) == 2
    assert capsys.readouterr().err.endswith(f"error: {caught.value}\n")
    with pytest.raises(NotFoundError):
        cpdrun.load("nothing", results_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout


def test_packages_are_functions_in_any_import_order():
    in_a_new_process(
        "import cpdrun.sweep, cpdrun; assert callable(cpdrun.sweep); from cpdrun.sweep import plan"
    )
    assert set(cpdrun.api.__all__) <= set(dir(cpdrun))
    assert all(callable(getattr(cpdrun, name)) for name in cpdrun.api.__all__)
    assert not any(hasattr(cpdrun, name) for name in ("swep", "Names", "_sweep"))


FRESH = """
import cpdrun, pydoc, sys
heavy = {"torch", "numpy", "pandas", "rich", "hydra", "matplotlib", "yaml", "argparse"}
assert not heavy & {name.partition(".")[0] for name in sys.modules}
assert cpdrun.api.schema("search")["document"]["title"] == "cpdrun.search/1"
for name in ("sweep", "search", "report"):
    print(pydoc.render_doc(getattr(cpdrun, name), renderer=pydoc.plaintext), end="\\0")
"""


def test_importing_cpdrun_is_fast_and_help_on_a_package_shows_the_function():
    for name, shown in zip(("sweep", "search", "report"), in_a_new_process(FRESH).split("\0"), strict=False):
        function = getattr(cpdrun.api, name)
        assert inspect.signature(getattr(cpdrun, name)) == inspect.signature(function)
        first, *_ = inspect.getdoc(function).splitlines()
        for text in (first, f"{name}(*", "quiet: bool = ", "-> cpdrun.api.answer.Answer"):
            assert text in shown


CELL = """
import asyncio
assert asyncio.get_event_loop().is_running()
import torch
torch.set_num_threads(2)
torch.randn(400, 400) @ torch.randn(400, 400)      # an OpenMP region, after which a fork would hang
import cpdrun
found = cpdrun.sweep(exp="digits_bits", format=["e4m3", "fp32"], aps=False, seed=0, epochs=1,
                     model={"width": 4}, device="cpu", jobs=2)
found
"""


def test_in_the_kernel_of_a_notebook(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "none"))
    cells = [
        CELL,
        "found.plot('accuracy_vs_bits')",
        "import cpdrun\ntry: cpdrun.sweep(exp='digits_bits', frmat=1)\nexcept cpdrun.UserError as e: print(e)",
    ]
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        page, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [cell["outputs"] for cell in page.cells]
    (answer,) = [each for each in outputs[0] if each["output_type"] == "execute_result"]
    assert "2 done" in answer["data"]["text/plain"] and "<table" in answer["data"]["text/html"]
    assert [each["output_type"] for each in outputs[0]].count("display_data") == 1, "one live table"
    assert "2 done in" in "".join(each.get("text", "") for each in outputs[0])
    assert "image/png" in outputs[1][-1]["data"]
    assert "did you mean 'format'" in outputs[2][0]["text"]


def test_examples_in_the_docs_run(tmp_path):
    """Run the examples in a folder of their own, with a smaller model."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    code = code.replace("epochs=1", "epochs=1, model={'width': 4}, device='cpu'")
    script = tmp_path / "page.py"
    script.write_text(f"{code}\nassert found.exit_code == 0 and len(runs) == 2 and figure.axes\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "start convnet-e4m3" in done.stderr and done.stdout == ""
