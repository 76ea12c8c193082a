"""`cpdrun report --serve`: the page of a running sweep, in a real browser and over HTTP."""

import http.client
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial

import browser
import pytest

from cpdrun.cli import main
from cpdrun.record import write_text
from cpdrun.report import ReportOptions
from cpdrun.report.page.server import live_server, read_progress

PROGRAM = browser.find()
needs_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no headless Chromium (Debian: apt-get install chromium-headless-shell)"
)
FORMATS = ("fp32", "e5m2", "e4m3", "e3m4", "e3m2")


@pytest.fixture(scope="module")
def page():
    with browser.start(PROGRAM) as page:
        yield page


@pytest.fixture(autouse=True)
def one_plot(monkeypatch, pictures):
    """Draw one plot, because drawing takes most of the time."""
    from cpdrun.report import plots

    drawn = [plot for plot in plots.available() if plot.name == "accuracy_vs_bits"]
    monkeypatch.setattr("cpdrun.report.plots.available", lambda: iter(drawn))


@pytest.fixture
def running(new_sweep):
    """A sweep of 12 runs, of which 10 have finished, one is pending and one has no directory yet."""
    sweep = new_sweep()
    for seed in range(2):
        for i, format in enumerate(FORMATS):
            sweep.add(format, seed=seed, accuracy=0.98 - 0.01 * i, name=f"{format}-{seed}")
    sweep.add("e3m0", seed=0, status=None, name="e3m0-0")
    names = [*(run.name for run in sweep.dir.runs()), "e3m0-1"]
    write_text(sweep.dir.manifest, "runs: [" + ", ".join(names) + "]\n")
    return sweep


@pytest.fixture
def serve():
    """Start a server of the report of a sweep and return its port. `serve.stop()` ends the servers."""
    servers = []

    def start(sweep, **options) -> int:
        server = live_server([sweep.dir], ReportOptions(**options))
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server.server_port

    def stop():
        while servers:
            server = servers.pop()
            server.shutdown()
            server.server_close()

    start.stop = stop
    yield start
    stop()


def get(port: int, path: str = "/", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def finish(sweep, format: str, seed: int, accuracy: float) -> None:
    """Finish a run under another name and move it to its place, so that a reader never sees half of it."""
    run = sweep.add(format, seed=seed, accuracy=accuracy, name=f"new-{format}-{seed}")
    there = sweep.dir.run(f"{format}-{seed}").path
    if there.exists():
        (there / "config.yaml").unlink()
        there.rmdir()
    run.path.rename(there)


def wait_for(page, expression: str, patience_s: float = 120) -> None:
    deadline = time.monotonic() + patience_s
    while not page.run(expression):
        assert time.monotonic() < deadline, expression
        time.sleep(0.2)


@needs_browser
def test_a_finished_run_appears_and_order_filters_and_position_stay(running, serve, page):
    port = serve(running)
    size = {"width": 1000, "height": 300, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    page.navigate(f"http://localhost:{port}/")
    assert "10 of 12 runs have ended" in page.run("document.querySelector('.progress').textContent")
    page.click("#means th:nth-child(1) button")
    page.click("#means th:nth-child(1) button")
    headings = page.run("[...document.querySelectorAll('#means th')].map(h => h.textContent)")
    accuracy = headings.index("test accuracy, %")
    page.run(f"document.getElementById('means-column-{accuracy}').focus()")
    page.call("Input.insertText", text="< 97.5")
    shown = "[...document.querySelectorAll('#means tbody tr')].filter(r => !r.hidden).map(r => r.cells[0].textContent)"
    assert page.run(shown) == ["e5m2", "e4m3", "e3m4", "e3m2"]
    page.run("document.getElementById('runs-details').open = true")
    page.run("document.getElementById('runs-details').scrollIntoView()")
    place = "document.getElementById('runs-details').getBoundingClientRect().top"
    before = page.run(place)

    finish(running, "e3m0", 0, accuracy=0.9)
    wait_for(page, "document.querySelector('.progress').textContent.includes('11 of 12')")
    assert page.run(shown) == ["e5m2", "e4m3", "e3m4", "e3m2", "e3m0"]
    assert page.run("document.querySelector('#means th').ariaSort") == "descending"
    assert page.run("document.getElementById('runs-details').open")
    assert abs(page.run(place) - before) <= 2
    assert page.run("document.activeElement.id") == f"means-column-{accuracy}"
    page.call("Input.insertText", text=" ")  # at the end, where the cursor was
    assert page.run("document.activeElement.value") == "< 97.5 "

    finish(running, "e3m0", 1, accuracy=0.9)
    wait_for(page, "document.querySelector('.progress').textContent.includes('Nothing is left to run')")
    assert page.run("[...document.querySelectorAll('#runs tbody tr')].length") == 12
    assert [url for url in page.complaints() if not url.startswith(f"http://localhost:{port}/")] == []


@needs_browser
def test_a_page_whose_server_has_ended_says_so(running, serve, page):
    page.navigate(f"http://127.0.0.1:{serve(running)}/")
    serve.stop()
    wait_for(page, "document.getElementById('live').textContent.includes('has ended')")
    assert page.run("document.querySelectorAll('#means tbody tr').length") == 5


@needs_browser
def test_every_column_sorts_and_filters(running, serve, page):
    page.navigate(f"http://localhost:{serve(running)}/")
    for table in ("means", "runs"):
        headings = page.run(f"[...document.querySelectorAll('#{table} th')].map(h => h.textContent)")
        for i, heading in enumerate(headings):
            page.click(f"#{table} th:nth-child({i + 1}) button")
            assert page.run(f"document.querySelectorAll('#{table} th')[{i}].ariaSort") == "ascending", heading
            text = page.run(f"document.querySelector('#{table} tbody tr').cells[{i}].textContent")
            cells, others = page.run(
                f"""(() => {{ const input = document.getElementById('{table}-column-{i}');
                const type = (text) => {{
                    input.value = text; input.dispatchEvent(new Event('input', {{ bubbles: true }}));
                    return [...document.querySelectorAll('#{table} tbody tr')].filter(row => !row.hidden) }};
                const cells = type({text!r}).map(row => row.cells[{i}].textContent);
                const others = type('nothing has these words').length;
                type('');
                return [cells, others] }})()"""
            )
            assert cells and all(text in cell for cell in cells) and others == 0, heading
        assert page.run(f"[...document.querySelectorAll('#{table} tbody tr')].every(r => !r.hidden)")


def test_only_the_page_is_served_and_only_to_this_machine(running, serve):
    before = sorted(running.dir.path.rglob("*"))
    port = serve(running)
    answer = get(port)
    text = answer.read().decode()
    assert answer.status == 200 and "10 of 12 runs have ended" in text
    assert "connect-src &#39;self&#39;" in text
    assert get(port, Host=f"localhost:{port}").status == 200
    for host in ("example.org", f"example.org:{port}", "127.0.0.1.example.org", f"[::1]:{port}", ""):
        assert get(port, Host=host).status == 404, host
    for path in ("/sweep.yaml", "/../sweep.yaml", "/report.html", "/%2e%2e/sweep.yaml"):
        assert get(port, path).status == 404, path
    assert get(port, **{"If-None-Match": answer.headers["ETag"]}).status == 304
    assert sorted(running.dir.path.rglob("*")) == before, "nothing is written"


def test_a_report_that_cannot_be_made_is_a_page_that_says_why(new_sweep, running, serve):
    sweep = new_sweep("pending")
    sweep.add(status=None)
    text = get(serve(sweep)).read().decode()
    assert "No finished run in pending" in text and "0 of 1 runs have ended" in text
    wrong = get(serve(running, metric="speed")).read().decode()
    assert "No finished run in digits_bits has a metric &#39;speed&#39;" in wrong


def test_failed_and_unreadable_runs_have_ended(new_sweep):
    sweep = new_sweep()
    sweep.add(seed=0)
    sweep.add(seed=1, status=None, outcome="failed")
    progress = read_progress([sweep.dir])
    assert (progress.total, progress.ended, progress.failed, progress.is_over) == (2, 2, 1, True)
    sweep.add(seed=2, status=None)
    later = read_progress([sweep.dir])
    assert not later.is_over and later.version != progress.version


def test_the_command_prints_the_address_and_ends_with_ctrl_c(running):
    command = [sys.executable, "-m", "cpdrun.cli", "report", "--serve", str(running.dir.path)]
    # A shell makes background processes ignore SIGINT. If the tests run in the background, the command inherits this.
    default_signal = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=default_signal) as process:
        address = process.stdout.readline().split()[0]
        try:
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=120) as answer:
                assert b"10 of 12 runs have ended" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
    assert not running.dir.report.exists()


@pytest.mark.parametrize("words", [["--json"], ["--to", "wandb"]])
def test_serve_writes_neither_a_document_nor_an_export(words, capsys):
    assert main(["report", "--serve", *words]) == 2
    assert "--serve" in capsys.readouterr().err
