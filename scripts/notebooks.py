"""Run the notebooks in docs/notebooks again and store their outputs. `make notebooks` calls this script.

    python scripts/notebooks.py [NAME ...]

The script takes about ten minutes. Each notebook runs in a kernel of this Python, in an empty folder with the same
position relative to results/reference as docs/notebooks. The notebook is only stored if all cells succeed and no cell
writes to stderr, because the page must not contain warnings. The processor and the versions on which figures depend are
stored in the notebook. tests/test_notebooks.py runs the notebooks, too, and compares the outputs.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

from cpdrun.record import processor

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "docs" / "notebooks"
CELL_SECONDS = 500
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
FIGURES_COME_FROM = ("torch", "numpy", "pandas", "matplotlib", "scikit-learn")
NUMBER = re.compile(r"[−+-]?(\d[\d.,]*|\.\d+)(e[+-]?\d+)?")


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def here() -> dict[str, str]:
    """Return the processor and versions on which the last digits of figures and the pixels of pictures depend."""
    return {
        "processor": " ".join(processor()),
        **{name: version(name) for name in FIGURES_COME_FROM},
    }


def executed(path: Path, folder: Path) -> NotebookNode:
    """Run a notebook in an empty folder, and return it with its new outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    page = nbformat.read(path, as_version=4)
    for cell in page.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    home = folder / "docs" / "notebooks"
    home.mkdir(parents=True)
    (folder / "results").mkdir()
    (folder / "results" / "reference").symlink_to(REPOSITORY / "results" / "reference")
    # Do not search Jupyter's folders, because the kernel python3 there may belong to another Python.
    kernel = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    client = NotebookClient(
        page,
        km=kernel,
        timeout=CELL_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(home)}},
    )
    client.execute()
    page.metadata = NotebookNode(KERNEL | {"made_with": here()})
    return page


def unwanted(page: NotebookNode) -> Iterator[str]:
    """Yield a line for each output that a page must not contain: warnings, and paths of this machine."""
    for cell in code_cells(page):
        for output in cell.outputs:
            text = "".join(texts(output).values())
            if output.get("name") == "stderr":
                yield f"cell {cell.execution_count} wrote to stderr: {text.strip()[:300]}"
            for place in (str(REPOSITORY), str(Path.home()), tempfile.gettempdir()):
                if place in text:
                    yield f"cell {cell.execution_count} shows a path of this machine: {place}"


def stale(stored: NotebookNode, now: NotebookNode) -> Iterator[str]:
    """Yield a line for each cell whose stored outputs differ from those of the present code.

    With the same processor and versions, every digit and pixel is compared. Otherwise, everything except numbers is
    compared.
    """
    is_same_place = stored.metadata.get("made_with") == now.metadata["made_with"]
    counts = [cell.execution_count for cell in code_cells(stored)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"executed out of order: {counts}"
    for before, after in zip(code_cells(stored), code_cells(now), strict=True):
        if shown(before, exactly=is_same_place) != shown(after, exactly=is_same_place):
            yield f"cell {after.execution_count} showed\n{_words(before)}\nand shows\n{_words(after)}"


def code_cells(page: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in page.cells if cell.cell_type == "code"]


def texts(output: NotebookNode) -> dict[str, str]:
    if output.output_type == "stream":
        return {output.name: output.text}
    return {kind: text for kind, text in output.get("data", {}).items() if kind.startswith("text/")}


def shown(cell: NotebookNode, *, exactly: bool) -> list[tuple[str, dict[str, str]]]:
    """Return the kind of each output, and its content by media type."""
    found = []
    for output in cell.outputs:
        everything = dict(output.get("data", {})) | texts(output)
        if not exactly:
            words = {kind: " ".join(NUMBER.sub("#", text).split()) for kind, text in texts(output).items()}
            everything = {kind: words.get(kind, "") for kind in everything}
        found.append((output.output_type, everything))
    return found


def _words(cell: NotebookNode) -> str:
    lines = [texts(output).get("text/plain") or "".join(texts(output).values()) for output in cell.outputs]
    return "\n".join(lines) or "nothing"


def main() -> int:
    known = {path.stem: path for path in notebooks()}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"a notebook: {', '.join(known)} (default: all)"
    )
    names = parser.parse_args().names or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no notebook {unknown[0]!r}; there are: {', '.join(known)}")
    code = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            page = executed(known[name], Path(folder))
        if problems := list(unwanted(page)):
            code = 1
            print(f"{name} was not changed: {'; '.join(problems)}", file=sys.stderr)
            continue
        nbformat.write(page, known[name])
        print(f"{name}: {known[name].stat().st_size:,} bytes")
    return code


if __name__ == "__main__":
    sys.exit(main())
