"""Build the documentation site as `make docs` does, check its links, and check some pages in a browser."""

import contextlib
import importlib.util
import multiprocessing
import os
import sys
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote, urlsplit

import browser
import custom_fp
import pytest

REPOSITORY = Path(__file__).parents[1]
MISSING = [name for name in ("sphinx", "myst_nb", "furo") if importlib.util.find_spec(name) is None]
needs_sphinx = pytest.mark.skipif(
    bool(MISSING), reason=f"pip install 'cpdrun[docs]': {', '.join(MISSING)} missing"
)
CHROMIUM = browser.find()
pytestmark = pytest.mark.timeout(1200)  # seconds; the build takes half a minute on an idle machine
# Pages with a table, wide commands, Python, pictures, and lists from docstrings.
LOOKED_AT = (
    "README",
    *(f"docs/{name}" for name in ("index", "tutorial", "screen", "other_tools", "reference/comm")),
)


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


def build(words: list[str], log: Path) -> None:
    """Run Sphinx in this process, which was forked from a process that had already imported torch."""
    from sphinx.cmd.build import build_main

    os.chdir(REPOSITORY)
    with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        sys.exit(build_main(words))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the site, built with warnings as errors."""
    site = tmp_path_factory.mktemp("docs") / "site"
    log = site.with_name("log")
    words = ["-q", "-c", "docs", "-b", "html", "-W", "--keep-going", "-d", str(site.parent / "doctrees")]
    builder = multiprocessing.get_context("forkserver").Process(
        target=build, args=([*words, ".", str(site)], log)
    )
    builder.start()
    builder.join()
    assert builder.exitcode == 0, log.read_text()
    return site


@needs_sphinx
def test_links_lead_to_pages_and_anchors_of_the_site(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for page in [*(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "docs").rglob("*.ipynb")]:
        assert (site / page.relative_to(REPOSITORY)).with_suffix(".html") in pages, (
            f"{page.name} is on no page"
        )
    documented = pages[site / "docs" / "reference" / "custom_fp.html"].anchors
    assert {f"custom_fp.{name}" for name in custom_fp.__all__} <= documented
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


@needs_sphinx
@pytest.mark.skipif(
    CHROMIUM is None, reason="no headless Chromium (Debian: apt-get install chromium-headless-shell)"
)
def test_pages_fit_a_phone_and_axe_finds_no_violation(site):
    pytest.importorskip(
        "axe_playwright_python", reason="axe-core comes with the dev dependency axe-playwright-python"
    )
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    wrong = []
    with browser.start(CHROMIUM) as page:
        page.call(
            "Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True
        )
        for name in LOOKED_AT:
            page.open(site / f"{name}.html")
            page.run(axe + "; 0")
            checked, found = page.run(
                "axe.run().then(r => [r.passes.length, r.violations.map(v => [v.id, v.nodes[0].html.slice(0, 200)])])"
            )
            assert checked > 10
            wrong += [(name, *violation) for violation in found]
            if (wide := page.run("document.documentElement.scrollWidth")) > 390:
                wrong.append((name, "scrolls sideways", wide))
    assert wrong == []
