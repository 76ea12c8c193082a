"""Append a section for each folder of results/reference to the page of experiments."""

import re
from pathlib import Path

from sphinx.application import Sphinx

PAGE = "docs/experiments"


def _moved(text: str, folder: str) -> str:
    """`text` of a page in `folder`, its links as they are from elsewhere."""
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({folder}/", text)


def _is_prose(block: str) -> bool:
    return len(block) > 80 and not block.startswith(("#", "!", "|", "-", "    "))


def sections(reference: Path, link: str) -> str:
    """link: from the page to the folder `reference`."""
    text = []
    for folder in sorted(path for path in reference.iterdir() if path.is_dir()):
        at = f"{link}/{folder.name}"
        text += [f"## {folder.name}", ""]
        readme = folder / "README.md"
        if readme.exists():
            blocks = readme.read_text(encoding="utf-8").split("\n\n")
            text += [_moved(next(block for block in blocks if _is_prose(block)), at), ""]
        names = {"README.md": "all of it"}
        pages = sorted(folder.glob("*.md"), key=lambda page: (page != readme, page.name))
        text += [" · ".join(f"[{names.get(page.name, page.stem)}]({at}/{page.name})" for page in pages), ""]
        pictures = sorted(folder.glob("*.png"))
        text += [f"![{folder.name}: {shown.stem}]({at}/{shown.name})\n" for shown in pictures]
    return "\n".join(text)


def _append(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == PAGE:
        reference, link = Path(app.srcdir) / "results" / "reference", "../results/reference"
        source[0] += "\n" + sections(reference, link)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _append)
    return {"parallel_read_safe": True}
