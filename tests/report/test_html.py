"""report.html in a real browser: it sorts, it tells what a point is, it runs nothing of a hostile name's."""

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
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def chromium():
    with browser.start(PROGRAM) as running:
        yield running


@pytest.fixture
def opened(chromium, report):
    """Write the page on a sweep and open it."""

    def run(sweep, **options):
        made = report(sweep, formats=["html"], **options)
        chromium.events.clear()
        chromium.open(made.folder / "report.html")
        return chromium

    return run


def column(page, table: str, index: int) -> list[str]:
    return page.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(r => r.cells[{index}].textContent)"
    )


@needs_browser
def test_a_click_on_a_heading_sorts_by_number(digits, opened):
    page = opened(digits)
    headings = page.run("[...document.querySelectorAll('#means th')].map(h => h.textContent)")
    accuracy = headings.index("test accuracy, %")
    before = column(page, "means", accuracy)
    page.click(f"#means th:nth-child({accuracy + 1}) button")
    values = [float(text.split()[0]) for text in column(page, "means", accuracy)]
    assert len(values) == len(before) == 13
    assert values == sorted(values) and values[0] < 12 < 98 < values[-1]
    page.click(f"#means th:nth-child({accuracy + 1}) button")
    assert [float(text.split()[0]) for text in column(page, "means", accuracy)] == values[::-1]
    assert page.run(f"document.querySelectorAll('#means th')[{accuracy}].ariaSort") == "descending"
    assert page.complaints() == []


@needs_browser
def test_a_heading_of_words_sorts_by_word(digits, opened):
    page = opened(digits)
    page.click("#means th:nth-child(1) button")
    names = column(page, "means", 0)
    assert names == sorted(names) and names[0] == "e3m0" and names[-1] == "fp32"


@needs_browser
def test_pointing_at_a_point_tells_what_it_is(digits, opened):
    page = opened(digits)
    assert page.run("getComputedStyle(document.getElementById('tip')).display") == "none"
    page.point_at(".point[data-tip^='e3m0 without APS'] use")
    assert page.run("getComputedStyle(document.getElementById('tip')).display") == "block"
    text = page.run("document.getElementById('tip').textContent")
    assert text.startswith("e3m0 without APS, workers 8: 9.") and "3 seeds" in text and "against fp32" in text
    page.point_at("h1")
    assert page.run("getComputedStyle(document.getElementById('tip')).display") == "none"
    page.run("document.querySelector('.point').focus()")  # the keyboard gets it too
    assert page.run("document.getElementById('tip').textContent") != ""
    assert page.complaints() == []


@needs_browser
def test_light_and_dark_differ_and_print_is_light(digits, opened):
    page = opened(digits)
    seen = {}
    for name, features in (("light", "light"), ("dark", "dark")):
        page.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": features}]
        )
        shot = base64.b64decode(page.call("Page.captureScreenshot")["data"])
        assert len(shot) > 20_000
        seen[name] = page.run("getComputedStyle(document.body).backgroundColor")
    page.call(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    seen["print"] = page.run("getComputedStyle(document.body).backgroundColor")
    page.call("Emulation.setEmulatedMedia", media="", features=[])
    assert seen["light"] == seen["print"] == "rgb(255, 255, 255)" != seen["dark"]
    assert len(base64.b64decode(page.call("Page.printToPDF")["data"])) > 10_000


@needs_browser
def test_hostile_names_are_text(new_sweep, opened):
    sweep = new_sweep(HOSTILE.replace("/", "\N{DIVISION SLASH}"))
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.99, tag=HOSTILE)
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.98, tag=HOSTILE)
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.97, tag='"><img src=x onerror=alert(1)>')
    sweep.add(HOSTILE, seed=0, accuracy=0.5, tag=HOSTILE, env={"python": HOSTILE})
    page = opened(sweep)
    assert page.run("document.querySelectorAll('script').length") == 1
    assert page.run("document.querySelectorAll('img').length") == 0
    assert HOSTILE in column(page, "means", 0)
    assert page.complaints() == []


@needs_browser
def test_every_run_with_its_config_and_versions_is_there(new_sweep, opened):
    sweep = fill_digits(new_sweep(), seeds=2)
    sweep.add("e2m1", seed=0, env={"python": "3.99", "packages": {"torch": "2.99"}})
    sweep.add("e2m1", seed=1, status=None, outcome="failed")
    page = opened(sweep)
    assert page.run("document.querySelectorAll('#runs tbody tr').length") == 28
    assert "failed" in column(page, "runs", 1)
    text = page.run("document.body.textContent")
    assert "optim.lr: 0.1" in text and "torch: 2.99" in text


def test_nothing_is_loaded_from_elsewhere(digits, report):
    file = report(digits, formats=["html"]).folder / "report.html"
    text = html.unescape(file.read_text(encoding="utf-8"))
    assert "default-src 'none'" in text
    for outside in ("src=", "@import", "<link"):
        assert outside not in text


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """The page on formats with curves and bytes, whose pictures have one panel and two, and a table as wide as they
    come; made once."""
    sweep = Sweep(tmp_path_factory.mktemp("results") / "rich")
    rows = [{"epoch": i, "test_accuracy": 0.3 * i} for i in (1, 2, 3)]
    about = {"test_samples": 360, "num_classes": 10, "longest_chain": 63, "memory": {"model_bytes": 10**6}}
    shared = {"rows": rows, "wire_bytes": 4000, "done": about}
    for i, format in enumerate(("fp32", "e5m2", "e4m3", "e3m4", "e4m1", "e3m2", "e3m0")):
        for aps in (False, True)[: 1 if format == "fp32" else 2]:
            for order, tag in (("hierarchical", "a-rather-long-name"), ("tree", "another-long-name")):
                config = {"sync": {"order": order}, "tag": tag}
                sweep.add(format, aps=aps, accuracy=0.9 - 0.01 * i, **config, **shared)
    write_report([sweep.dir], formats=["html"], console=Console(file=io.StringIO()))
    return sweep.dir.report / "report.html"


@pytest.fixture
def rich_page(chromium, rich):
    chromium.events.clear()
    chromium.open(rich)
    return chromium


LETTERS = """[...document.querySelectorAll('figure svg [style*="fill: var(--t-"]')]
    .map(letters => getComputedStyle(letters).fill)"""


def hexadecimal(rgb: str) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", rgb)[:3])


@needs_browser
def test_letters_of_pictures_can_be_read_on_light_and_dark(rich_page):
    page = rich_page
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        ground = hexadecimal(page.run("getComputedStyle(document.body).backgroundColor"))
        found = {hexadecimal(color) for color in page.run(LETTERS)}
        assert len(found) > 7
        raw = page.run("""[...document.querySelectorAll('figure svg [style^="fill: #"]')]
            .filter(e => !e.style.fillOpacity && !e.style.opacity).length""")
        assert raw == 0  # letters with a halo are paths
        assert min(contrast(color, ground) for color in found) >= 4.5, scheme
    page.call("Emulation.setEmulatedMedia", media="", features=[])


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
    pictures = page.run("document.querySelectorAll('figure svg').length")
    headings = page.run("document.querySelectorAll('#means th').length")
    filters = page.run("document.querySelectorAll('#filters summary, #filters button').length")
    # skip, pictures, table, its head, folded
    assert pictures >= 2 and len(stops) <= 1 + filters + pictures + 1 + headings + 3
    assert page.run("document.querySelector('a').textContent") == "To the table"
    page.run("document.querySelector('a').click()")
    assert page.run("location.hash") == "#table"
    page.run("document.querySelector('figure .point').focus()")
    first = page.run("document.getElementById('tip').textContent")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    second = page.run("document.getElementById('tip').textContent")
    assert first and second and first != second
    assert page.run("document.activeElement.ariaLabel") == second
    assert page.run("[...document.querySelectorAll('pre')].every(e => e.tabIndex === 0 && e.ariaLabel)")
    assert page.complaints() == []


@needs_browser
def test_tables_fit_on_a4(rich_page):
    page = rich_page
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=703, height=1000, deviceScaleFactor=1, mobile=False)
    widths = page.run(
        "[...document.querySelectorAll('#means, figure svg')].map(e => e.getBoundingClientRect().right)"
    )
    page.call("Emulation.clearDeviceMetricsOverride")
    page.call("Emulation.setEmulatedMedia", media="")
    assert len(widths) >= 3 and max(widths) <= 703  # 186 mm between the margins, at 96 dots an inch


@needs_browser
def test_two_panels_stay_legible_on_a_phone(rich_page):
    page = rich_page
    page.call("Emulation.setDeviceMetricsOverride", width=375, height=800, deviceScaleFactor=2, mobile=True)
    scales = page.run(
        "[...document.querySelectorAll('figure svg')]"
        ".map(s => s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
    )
    overflow = page.run("document.documentElement.scrollWidth")
    page.call("Emulation.clearDeviceMetricsOverride")
    assert min(scales) >= 1.2  # letters of 7 points are 8.4 pixels or more
    assert overflow <= 375  # the picture is scrolled within its frame, the page is not


@pytest.fixture(scope="module")
def digits_file(tmp_path_factory):
    """The page on the sweep of the prototype, made once."""
    sweep = fill_digits(Sweep(tmp_path_factory.mktemp("results") / "digits_bits"))
    write_report([sweep.dir], formats=["html"], console=Console(file=io.StringIO()))
    return sweep.dir.report / "report.html"


@pytest.fixture
def digits_page(chromium, digits_file):
    chromium.events.clear()
    chromium.open(digits_file)
    return chromium


SHOWN = "[...document.querySelectorAll('#means tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
POINTS = """[...document.querySelectorAll('.point[data-group]')].filter(p => !p.classList.contains('out'))
    .map(p => p.dataset.tip)"""


def tick(page, axis: str, value: str) -> None:
    page.run(f"""document.querySelector('.axis[data-axis="{axis}"] input[value="{value}"]').click()""")


@needs_browser
def test_filters_hold_for_table_runs_and_pictures_and_stand_in_the_address(digits_page):
    page = digits_page
    assert page.run("document.querySelector('#filters output').textContent") == "13 of 13 rows"
    tick(page, "format", "e4m3")
    tick(page, "format", "e3m0")
    assert sorted(page.run(SHOWN)) == ["e3m0", "e3m0", "e4m3", "e4m3"]
    tick(page, "APS", "yes")
    assert sorted(page.run(SHOWN)) == ["e3m0", "e4m3"]
    assert page.run("document.querySelector('#filters output').textContent") == "2 of 13 rows"
    runs = page.run("[...document.querySelectorAll('#runs tbody tr')].filter(r => !r.hidden).length")
    assert runs == 2 * 3
    left = page.run(POINTS)
    assert left and all(text.startswith(("e3m0 with APS", "e4m3 with APS")) for text in left)
    assert page.run("document.querySelectorAll('g[data-group]:not(.point).out').length") > 5
    names = "['[data-names]', '[data-names].out'].map(found => document.querySelectorAll(found).length)"
    assert page.run(names) == [2, 1]  # with and without APS
    page.click("#means th:nth-child(1) button")
    address = page.run("location.href")
    assert "by.format=e4m3" in address and "by.APS=yes" in address
    assert "sort.means=ascending+format" in address
    page.navigate("about:blank")
    page.navigate(address)
    assert page.run(SHOWN) == ["e3m0", "e4m3"]
    assert page.run("document.querySelector('#means th').ariaSort") == "ascending"
    page.run("document.querySelector('#filters button').click()")
    page.run("new Promise(done => setTimeout(done, 50))")
    assert len(page.run(SHOWN)) == 13
    assert page.run("location.hash") == "#sort.means=ascending+format"
    assert page.complaints() == []


@needs_browser
def test_typed_words_filter_rows_and_a_hostile_address_does_nothing(digits_page):
    page = digits_page
    page.run("document.querySelector('#filters input[type=search]').focus()")
    page.call("Input.insertText", text="E3M Yes")
    assert sorted(page.run(SHOWN)) == ["e3m0", "e3m2", "e3m4"]
    assert "words=E3M+Yes" in page.run("location.hash")
    for fragment in (
        "by.format=<img src=x>",
        "sort.means=item",
        "sort.means=up nothing",
        "by.nothing=1",
        "where.means.APS=<img src=x>",
        "words=%00",
    ):
        page.run(f"location.hash = {fragment!r}")
        page.run("dispatchEvent(new HashChangeEvent('hashchange'))")
    assert page.run("document.querySelectorAll('img').length") == 0
    assert page.complaints() == []


@needs_browser
def test_without_scripts_all_is_there_and_no_form(digits_page):
    page = digits_page
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.reload()
    page.call("Emulation.setScriptExecutionDisabled", value=False)  # what is loaded stays as it is
    text = page.run("document.body.innerText")
    assert "Show all" not in text and "How many bits are enough?" in text
    assert len(page.run(SHOWN)) == 13


@needs_browser
def test_print_has_all_rows_and_no_filters(digits_page):
    page = digits_page
    tick(page, "format", "e4m3")
    page.call("Emulation.setEmulatedMedia", media="print")
    heights = page.run("[...document.querySelectorAll('#means tbody tr')].map(r => r.offsetHeight)")
    form = page.run("document.getElementById('filters').offsetHeight")
    faded = page.run(
        "[...document.querySelectorAll('.out')].filter(p => getComputedStyle(p).opacity < 1).length"
    )
    folded = page.run(
        "[...document.querySelectorAll('details:not([open]) > :not(summary)')].filter(e => !e.closest('form'))"
        ".map(e => [e.checkVisibility(), e.id || e.querySelector('[id]')?.id || ''])"
    )
    page.call("Emulation.setEmulatedMedia", media="")
    assert len(heights) == 13 and min(heights) > 0 and form == 0 and faded == 0
    assert len(folded) == 3 and [id for visible, id in folded if not visible] == ["runs-area"]


@needs_browser
def test_questions_come_in_the_order_a_reader_asks(rich_page):
    asked = rich_page.run("[...document.querySelectorAll('section h2')].map(h => h.textContent)")
    known = [question for question in QUESTIONS.values() if question in asked]
    assert asked == known and asked[0] == "How many bits are enough?" and "How did they train?" in asked
    bare = rich_page.run(
        "[...document.querySelectorAll('figure')].filter(f => !f.querySelector('figcaption').textContent).length"
    )
    assert bare == 0


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_axe_finds_nothing(rich_page, scheme, width):
    pytest.importorskip(
        "axe_playwright_python", reason="axe-core comes with the dev dependency axe-playwright-python"
    )
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    page = rich_page
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False
    )
    page.run("document.querySelectorAll('details').forEach(d => d.open = d.closest('form') === null)")
    page.run(axe + "; 0")
    checked, found = page.run(
        "axe.run().then(r => [r.passes.length, r.violations"
        ".map(v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + n.failureSummary)])])"
    )
    page.run("document.querySelectorAll('.axis').forEach(d => d.open = true)")
    open_ones = page.run("axe.run('#filters').then(r => r.violations.map(v => [v.id, v.help]))")
    page.run("document.querySelectorAll('.axis').forEach(d => d.open = false)")
    overflow = page.run("document.documentElement.scrollWidth")
    page.call("Emulation.clearDeviceMetricsOverride")
    page.call("Emulation.setEmulatedMedia", media="", features=[])
    assert checked > 20 and found == [] and open_ones == []
    assert overflow <= width
