"""Links of pages to files and folders of the repository lead to pages that show them.

No host is named: what a page links to (`conf/exp`, `examples/ddp_digits.py`) is shown by the site itself. A folder
that has a README.md is that page.
"""

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

SHOWN_BYTES = 200_000  # longer ones are named, not shown
PICTURES = {".png", ".svg"}
NOT_SHOWN = {"__pycache__", ".git"}


def page_of(path: Path, repository: Path) -> str:
    return f"files/{path.relative_to(repository).as_posix()}"


class FileLinks(SphinxTransform):
    """What MyST would offer as a download, shown on a page."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        for link in list(self.document.findall(addnodes.download_reference)):
            path = Path(self.env.relfn2path(link["reftarget"], self.env.docname)[1])
            self._shown(link, path)
        for link in list(self.document.findall(addnodes.pending_xref)):
            if link.get("reftype") != "myst" or link.get("refdomain") == "doc" or "#" in link["reftarget"]:
                continue
            path = Path(self.env.relfn2path(link["reftarget"], self.env.docname)[1])
            if not path.is_dir():
                continue
            if (path / "README.md").is_file():
                link["refdomain"], link["reftargetid"] = "doc", None
                link["reftarget"] = self.env.path2doc(path / "README.md")
            else:
                self._shown(link, path)

    def _shown(self, link: nodes.Element, path: Path) -> None:
        repository = Path(self.env.srcdir)
        path = Path(os.path.normpath(path))
        if not path.is_relative_to(repository):
            return
        to = page_of(path, repository)
        self.env.__dict__.setdefault("repository_files", {}).setdefault(self.env.docname, set()).add(path)
        uri = os.path.relpath(f"{to}.html", Path(self.env.docname).parent)
        link.replace_self(nodes.reference("", "", *link.children, refuri=uri, internal=True))


def _text(path: Path) -> str | None:
    if path.suffix in PICTURES or path.stat().st_size > SHOWN_BYTES:
        return None
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return None


def _listing(folder: Path, repository: Path) -> tuple[list[Path], str]:
    inside = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not NOT_SHOWN & set(path.relative_to(folder).parts) and path.suffix != ".pyc"
    )
    rows = []
    for path in inside:
        name = html.escape(path.relative_to(folder).as_posix())
        to = html.escape(
            os.path.relpath(f"{page_of(path, repository)}.html", Path(page_of(folder, repository)).parent)
        )
        rows.append(f'<li><a href="{to}">{name}</a></li>')
    return inside, f"<ul>{''.join(rows)}</ul>"


def _content(path: Path, repository: Path) -> str:
    text = _text(path)
    if text is None:
        return f"<p>{path.stat().st_size:,} bytes; in the repository.</p>"
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return f'<div class="highlight">{highlight(text, lexer, HtmlFormatter(nowrap=False))}</div>'


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    repository = Path(app.srcdir)
    linked = getattr(app.env, "repository_files", {})
    waiting = sorted({path for paths in linked.values() for path in paths})
    made: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in made:
            continue
        made.add(path)
        if path.is_dir():
            inside, body = _listing(path, repository)
            waiting += inside
        else:
            body = _content(path, repository)
        title = path.relative_to(repository).as_posix()
        context = {"title": title, "body": f"<h1>{html.escape(title)}</h1>{body}", "parents": []}
        yield page_of(path, repository), context, "page.html"


def navigation(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Render the navigation tree only once for all file pages of the same depth, as its links are the same there."""
    if pagename.startswith("files/"):
        render, trees = context["toctree"], app.builder.__dict__.setdefault("navigation_trees", {})
        depth = pagename.count("/")

        def tree(**options: Any) -> str:
            key = depth, *sorted(options.items())
            if key not in trees:
                trees[key] = render(**options)
            return str(trees[key])

        context["toctree"] = tree


def first_page(app: Sphinx, failed: Exception | None) -> None:
    """index.html, which a server and a person look for, leads to the root document."""
    if failed is None and app.builder.format == "html":
        to = f"{app.config.root_doc}.html"
        refresh = f'<meta http-equiv="refresh" content="0; url={to}">'
        page = f'<!doctype html><title>cpdrun</title>{refresh}<a href="{to}">cpdrun</a>'
        (Path(app.outdir) / "index.html").write_text(page + "\n")


def forget(app: Sphinx, env: Any, docname: str) -> None:
    getattr(env, "repository_files", {}).pop(docname, None)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(FileLinks)
    app.connect("html-collect-pages", pages)
    app.connect("html-page-context", navigation, priority=400)  # before the theme renders the tree
    app.connect("env-purge-doc", forget)
    app.connect("build-finished", first_page)
    return {"parallel_read_safe": False}
