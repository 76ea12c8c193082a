"""The documentation site: built as `make docs` builds it; every link inside it leads to a page, an anchor or a file."""

import importlib.util
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

REPOSITORY = Path(__file__).parents[1]
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]


class Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.anchors.add(str(given["id"]))
        self.fetched |= {str(given["src"])} if given.get("src") else set()
        if tag == "link" and given.get("rel") == "stylesheet":
            self.fetched.add(str(given["href"]))
        self.links += [str(given[name]) for name in ("href", "src") if given.get(name)]


@pytest.mark.skipif(bool(MISSING), reason=f"pip install 'cpdrun[docs]': {', '.join(MISSING)} missing")
def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path):
    site = tmp_path / "site"
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", "-b", "html"]
    built = subprocess.run(
        [*words, "-d", str(tmp_path / "doctrees"), ".", str(site)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for page in (REPOSITORY / "docs").rglob("*.md"):
        assert (site / page.relative_to(REPOSITORY)).with_suffix(".html") in pages, (
            f"{page.name} is on no page"
        )
    wrong, inside = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.fetched:
                    wrong.append(f"{path.relative_to(site)} asks the network for {link}")
                continue
            inside += 1
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not to.exists():
                wrong.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].anchors:
                wrong.append(f"{path.relative_to(site)}: no {parts.fragment} in {parts.path}")
    assert inside > 1000
    assert not wrong, "\n".join(wrong[:30])
