"""What was measured, from results/reference as it lies there: a section a folder, with its pages and pictures."""

from pathlib import Path

from sphinx.application import Sphinx

PAGE = "docs/experiments"


def sections(reference: Path, link: str) -> str:
    """link: from the page to the folder `reference`."""
    text = []
    for folder in sorted(path for path in reference.iterdir() if path.is_dir()):
        pages = sorted(folder.glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
        names = {"README.md": "what it showed"}
        links = [f"[{names.get(page.name, page.stem)}]({link}/{folder.name}/{page.name})" for page in pages]
        text += [f"## {folder.name}", "", " · ".join(links), ""]
        pictures = sorted(folder.glob("*.png"))
        text += [f"![{folder.name}: {shown.stem}]({link}/{folder.name}/{shown.name})\n" for shown in pictures]
    return "\n".join(text)


def _append(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == PAGE:
        source[0] += "\n" + sections(Path(app.srcdir) / "results" / "reference", "../results/reference")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _append)
    return {"parallel_read_safe": True}
