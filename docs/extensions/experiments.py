"""Append the tables and pictures of results/reference that have no README.md to the page of experiments.

docs/studies.md shows the other folders.
"""

from pathlib import Path

from sphinx.application import Sphinx

PAGE = "docs/experiments"


def sections(reference: Path, link: str) -> str:
    """Return a section for each folder of `reference` without README.md.

    Args:
        reference: The folder results/reference.
        link: The relative path from the page to this folder.
    """
    text = []
    for folder in sorted(path for path in reference.iterdir() if path.is_dir()):
        if (folder / "README.md").exists():
            continue
        at = f"{link}/{folder.name}"
        pages = " · ".join(f"[{page.stem}]({at}/{page.name})" for page in sorted(folder.glob("*.md")))
        pictures = [
            f"![{folder.name}: {shown.stem}]({at}/{shown.name})\n" for shown in sorted(folder.glob("*.png"))
        ]
        text += [f"### {folder.name}", "", pages, "", *pictures]
    return "\n".join(text)


def _append(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == PAGE:
        reference, link = Path(app.srcdir) / "results" / "reference", "../results/reference"
        source[0] += "\n" + sections(reference, link)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _append)
    return {"parallel_read_safe": True}
