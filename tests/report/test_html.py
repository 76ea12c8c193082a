"""report.html in a real browser: it sorts, filters, describes its points, and executes no hostile name."""

import base64
import html
import io
import re
from importlib.resources import files

import browser
import pytest
from made_up import Sweep, fill_digits
from rich.console import Console

from cpdrun.report import write_report
from cpdrun.report.plots import QUESTIONS
from cpdrun.report.style import contrast

PROGRAM = browser.find()
needs_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no headless Chromium (Debian: apt-get install chromium-headless-shell)"
)
pytestmark = pytest.mark.usefixtures("pictures")
HOSTILE = "<script>alert(1)</script>"
SHOWN = "[...document.querySelectorAll('#means tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"
TIP = "document.getElementById('tip')"


@pytest.fixture(scope="module")
def chromium():
    with browser.start(PROGRAM) as running:
        yield running


@pytest.fixture
def show(chromium):
    """Open a page with no events of earlier pages, and check at the end that it caused no complaints."""

    def show(file):
        chromium.events.clear()
        chromium.open(file)
        return chromium

    yield show
    assert chromium.complaints() == []


def write_page(sweep):
    write_report([sweep.dir], formats=["html"], console=Console(file=io.StringIO()))
    return sweep.dir.report / "report.html"


@pytest.fixture(scope="module")
def digits_file(tmp_path_factory):
    """The page on 39 runs of digits."""
    return write_page(fill_digits(Sweep(tmp_path_factory.mktemp("results") / "digits_bits")))


@pytest.fixture(scope="module")
def rich_file(tmp_path_factory):
    """The page on formats with curves and bytes: pictures have one or two panels, and the table is wide."""
    sweep = Sweep(tmp_path_factory.mktemp("results") / "rich")
    rows = [{"epoch": i, "test_accuracy": 0.3 * i} for i in (1, 2, 3)]
    about = {"test_samples": 360, "num_classes": 10, "longest_chain": 63, "memory": {"model_bytes": 10**6}}
    shared = {"rows": rows, "wire_bytes": 4000, "done": about}
    for i, format in enumerate(("fp32", "e5m2", "e4m3", "e3m4", "e4m1", "e3m2", "e3m0")):
        for aps in (False, True)[: 1 if format == "fp32" else 2]:
            for order, tag in (("hierarchical", "a-rather-long-name"), ("tree", "another-long-name")):
                config = {"sync": {"order": order}, "tag": tag}
                sweep.add(format, aps=aps, accuracy=0.9 - 0.01 * i, **config, **shared)
    return write_page(sweep)


@pytest.fixture
def digits_page(show, digits_file):
    return show(digits_file)


@pytest.fixture
def rich_page(show, rich_file):
    return show(rich_file)


def column(page, table: str, index: int) -> list[str]:
    rows = f"[...document.querySelectorAll('#{table} tbody tr')]"
    return page.run(f"{rows}.map(r => r.cells[{index}].textContent)")


def emulate(page, *, media="", scheme=None, width=None, height=844, scale=1, mobile=False):
    features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
    page.call("Emulation.setEmulatedMedia", media=media, features=features)
    if width is None:
        page.call("Emulation.clearDeviceMetricsOverride")
    else:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
        page.call("Emulation.setDeviceMetricsOverride", **size)


def tick(page, axis: str, value: str) -> None:
    page.run(f"""document.querySelector('.axis[data-axis="{axis}"] input[value="{value}"]').click()""")


@needs_browser
def test_headings_sort_and_points_have_descriptions(digits_page):
    page = digits_page
    headings = page.run("[...document.querySelectorAll('#means th')].map(h => h.textContent)")
    accuracy = headings.index("test accuracy, %")
    page.click(f"#means th:nth-child({accuracy + 1}) button")
    values = [float(text.split()[0]) for text in column(page, "means", accuracy)]
    assert len(values) == 13 and values == sorted(values) and values[0] < 12 < 98 < values[-1]
    page.click(f"#means th:nth-child({accuracy + 1}) button")
    assert [float(text.split()[0]) for text in column(page, "means", accuracy)] == values[::-1]
    assert page.run(f"document.querySelectorAll('#means th')[{accuracy}].ariaSort") == "descending"
    page.click("#means th:nth-child(1) button")
    names = column(page, "means", 0)
    assert names == sorted(names) and names[0] == "e3m0" and names[-1] == "fp32"

    visible = f"getComputedStyle({TIP}).display"
    assert page.run(visible) == "none"
    page.point_at(".point[data-tip^='e3m0 without APS'] use")
    text = page.run(f"{TIP}.textContent")
    assert page.run(visible) == "block" and text.startswith("e3m0 without APS, workers 8: 9.")
    assert "3 seeds" in text and "against fp32" in text
    page.point_at("h1")
    assert page.run(visible) == "none"
    page.run("document.querySelector('.point').focus()")  # with the keyboard, too
    assert page.run(f"{TIP}.textContent") != ""


@needs_browser
def test_hostile_names_are_text_and_every_run_is_listed(new_sweep, show):
    sweep = new_sweep(HOSTILE.replace("/", "\N{DIVISION SLASH}"))
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.99, tag=HOSTILE)
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.98, tag=HOSTILE)
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.97, tag='"><img src=x onerror=alert(1)>')
    env = {"python": HOSTILE, "packages": {"torch": "2.99"}}
    sweep.add(HOSTILE, seed=0, accuracy=0.5, tag=HOSTILE, env=env)
    sweep.add("e2m1", seed=1, status=None, outcome="failed")
    page = show(write_page(sweep))
    assert page.run("document.querySelectorAll('script').length") == 1
    assert page.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE in column(page, "means", 0)
    assert page.run("document.querySelectorAll('#runs tbody tr').length") == 8
    assert "failed" in column(page, "runs", 1)
    text = page.run("document.body.textContent")
    assert "optim.lr: 0.1" in text and "torch: 2.99" in text


def test_nothing_is_loaded_from_elsewhere(digits_file):
    text = html.unescape(digits_file.read_text(encoding="utf-8"))
    assert "default-src 'none'" in text
    for outside in ("src=", "@import", "<link"):
        assert outside not in text


def hexadecimal(rgb: str) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", rgb)[:3])


@needs_browser
def test_letters_are_readable_in_light_and_dark_and_paper_is_white(rich_page):
    page, grounds = rich_page, []
    letters = """[...document.querySelectorAll('figure svg [style*="fill: var(--t-"]')]
        .map(letters => getComputedStyle(letters).fill)"""
    for scheme in ("light", "dark"):
        emulate(page, scheme=scheme)
        assert len(base64.b64decode(page.call("Page.captureScreenshot")["data"])) > 20_000
        grounds.append(hexadecimal(page.run(BACKGROUND)))
        found = {hexadecimal(color) for color in page.run(letters)}
        assert len(found) > 7
        assert min(contrast(color, grounds[-1]) for color in found) >= 4.5, scheme
    raw = page.run("""[...document.querySelectorAll('figure svg [style^="fill: #"]')]
        .filter(e => !e.style.fillOpacity && !e.style.opacity).length""")
    assert raw == 0  # no fixed colors, not even in letters with a halo, which are paths
    emulate(page, media="print", scheme="dark")
    assert hexadecimal(page.run(BACKGROUND)) == grounds[0] == "#ffffff" != grounds[1]
    emulate(page)
    assert len(base64.b64decode(page.call("Page.printToPDF")["data"])) > 10_000


@needs_browser
def test_a_keyboard_reaches_everything_in_few_named_stops(rich_page):
    page = rich_page
    assert page.run("document.querySelectorAll('main').length") == 1
    assert page.run("document.querySelector('main h1') !== null")
    stops = page.run(
        """[...document.querySelectorAll('a[href], button, summary, [tabindex="0"]')]
        .filter(e => e.checkVisibility()).map(e => e.ariaLabel || e.textContent.trim())"""
    )
    assert all(stops)
    pictures, headings, filters = (
        page.run(f"document.querySelectorAll('{found}').length")
        for found in ("figure svg", "#means th", "#filters summary, #filters button")
    )
    # the link to the table, the pictures, the table, its headings, and the folded parts
    assert pictures >= 2 and len(stops) <= 1 + filters + pictures + 1 + headings + 3
    assert page.run("document.querySelector('a').textContent") == "To the table"
    page.run("document.querySelector('a').click()")
    assert page.run("location.hash") == "#table"
    page.run("document.querySelector('figure .point').focus()")
    first = page.run(f"{TIP}.textContent")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    second = page.run(f"{TIP}.textContent")
    assert first and second and first != second
    assert page.run("document.activeElement.ariaLabel") == second
    assert page.run("[...document.querySelectorAll('pre')].every(e => e.tabIndex === 0 && e.ariaLabel)")

    asked = page.run("[...document.querySelectorAll('section h2')].map(h => h.textContent)")
    assert asked == [question for question in QUESTIONS.values() if question in asked]
    assert asked[0] == "How many bits are enough?" and "How did they train?" in asked
    captions = page.run(
        "[...document.querySelectorAll('figure')].map(f => f.querySelector('figcaption').textContent)"
    )
    assert all(captions)


@needs_browser
def test_the_page_fits_on_a4_and_on_a_phone(rich_page):
    page = rich_page
    emulate(page, media="print", width=703)  # 186 mm between the margins, at 96 dots an inch
    boxes = "[...document.querySelectorAll('#means, figure svg')].map(e => e.getBoundingClientRect().right)"
    widths = page.run(boxes)
    emulate(page, width=375, scale=2, mobile=True)
    scales = page.run(
        "[...document.querySelectorAll('figure svg')]"
        ".map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
    )
    overflow = page.run("document.documentElement.scrollWidth")
    emulate(page)
    assert len(widths) >= 3 and max(widths) <= 703
    assert min(scales) >= 1.2  # letters of 7 points have 8.4 pixels or more
    assert overflow <= 375  # the picture scrolls within its frame, and the page does not


@needs_browser
def test_filters_apply_to_tables_and_pictures_and_are_in_the_address(digits_page):
    page = digits_page
    shown_rows = "document.querySelector('#filters output').textContent"
    assert page.run(shown_rows) == "13 of 13 rows"
    for axis, value in (("format", "e4m3"), ("format", "e3m0"), ("APS", "yes")):
        tick(page, axis, value)
    assert sorted(page.run(SHOWN)) == ["e3m0", "e4m3"] and page.run(shown_rows) == "2 of 13 rows"
    runs = page.run("[...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).length")
    assert runs == 2 * 3
    points = """[...document.querySelectorAll('.point[data-group]')].filter(p => !p.classList.contains('out'))
        .map(p => p.dataset.tip)"""
    left = page.run(points)
    assert left and all(text.startswith(("e3m0 with APS", "e4m3 with APS")) for text in left)
    assert page.run("document.querySelectorAll('g[data-group]:not(.point).out').length") > 5
    names = "['[data-names]', '[data-names].out'].map(found => document.querySelectorAll(found).length)"
    assert page.run(names) == [2, 1]  # with and without APS
    page.click("#means th:nth-child(1) button")
    address = page.run("location.href")
    assert all(part in address for part in ("by.format=e4m3", "by.APS=yes", "sort.means=ascending+format"))
    page.navigate("about:blank")
    page.navigate(address)
    assert page.run(SHOWN) == ["e3m0", "e4m3"]
    assert page.run("document.querySelector('#means th').ariaSort") == "ascending"
    page.run("document.querySelector('#filters button').click()")
    page.run("new Promise(done => setTimeout(done, 50))")
    assert len(page.run(SHOWN)) == 13
    assert page.run("location.hash") == "#sort.means=ascending+format"


@needs_browser
def test_typed_words_filter_rows_and_a_hostile_address_does_nothing(digits_page):
    page = digits_page
    page.run("document.querySelector('#filters input[type=search]').focus()")
    page.call("Input.insertText", text="E3M Yes")
    assert sorted(page.run(SHOWN)) == ["e3m0", "e3m2", "e3m4"]
    assert "words=E3M+Yes" in page.run("location.hash")
    hostile = [
        "by.format=<img src=x>",
        "sort.means=item",
        "sort.means=up nothing",
        "by.nothing=1",
        "words=%00",
    ]
    for fragment in [*hostile, "where.means.APS=<img src=x>"]:
        page.run(f"location.hash = {fragment!r}")
        page.run("dispatchEvent(new HashChangeEvent('hashchange'))")
    assert page.run("document.querySelectorAll('img').length") == 0


@needs_browser
def test_without_scripts_all_rows_are_shown_and_no_form(digits_page):
    page = digits_page
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.reload()
    page.call("Emulation.setScriptExecutionDisabled", value=False)  # the loaded page stays as it is
    text = page.run("document.body.innerText")
    assert "Show all" not in text and "How many bits are enough?" in text
    assert len(page.run(SHOWN)) == 13


@needs_browser
def test_print_has_all_rows_and_no_filters(digits_page):
    page = digits_page
    tick(page, "format", "e4m3")
    emulate(page, media="print")
    heights = page.run("[...document.querySelectorAll('#means tbody tr')].map(r => r.offsetHeight)")
    form = page.run("document.getElementById('filters').offsetHeight")
    faded = page.run(
        "[...document.querySelectorAll('.out')].filter(p => getComputedStyle(p).opacity < 1).length"
    )
    folded = page.run(
        "[...document.querySelectorAll('details:not([open]) > :not(summary)')].filter(e => !e.closest('form'))"
        ".map(e => [e.checkVisibility(), e.id || e.querySelector('[id]')?.id || ''])"
    )
    emulate(page)
    assert len(heights) == 13 and min(heights) > 0 and form == 0 and faded == 0
    assert len(folded) == 3 and [id for visible, id in folded if not visible] == ["runs-area"]


@needs_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_axe_finds_no_barrier(rich_page, scheme, width):
    pytest.importorskip(
        "axe_playwright_python", reason="axe-core comes with the dev dependency axe-playwright-python"
    )
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    page = rich_page
    emulate(page, scheme=scheme, width=width)
    page.run("document.querySelectorAll('details').forEach(d => d.open = d.closest('form') === null)")
    page.run(axe + "; 0")
    checked, found = page.run(
        "axe.run().then(r => [r.passes.length, r.violations"
        ".map(v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + n.failureSummary)])])"
    )
    page.run("document.querySelectorAll('.axis').forEach(d => d.open = true)")
    in_open_filters = page.run("axe.run('#filters').then(r => r.violations.map(v => [v.id, v.help]))")
    page.run("document.querySelectorAll('.axis').forEach(d => d.open = false)")
    overflow = page.run("document.documentElement.scrollWidth")
    emulate(page)
    assert checked > 20 and found == [] and in_open_filters == []
    assert overflow <= width
