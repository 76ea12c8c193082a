"""The log of a script: bounded, and cut into lines."""

from cpdrun.attach.script_process import BoundedLog
from cpdrun.script_metrics.lines import LINE_BYTES, Lines


def test_a_long_log_keeps_its_beginning_and_end(tmp_path):
    log = BoundedLog(tmp_path / "rank0.log", most_bytes=4000, end_bytes=500)
    for number in range(3000):
        log.write(b"line %d\n" % number)
    text = log.path.read_text()
    assert len(text) < 4500
    assert text.startswith("line 0\nline 1\n") and text.endswith("line 2998\nline 2999\n")
    assert text.count("bytes are left out here") == 1


def test_a_short_log_is_complete_and_is_continued(tmp_path):
    for words in (b"one\n", b"two\n"):
        BoundedLog(tmp_path / "rank0.log", most_bytes=4000).write(words)
    assert (tmp_path / "rank0.log").read_text() == "one\ntwo\n"


def test_lines_are_split_at_progress_bars_and_stripped_of_colors():
    lines = Lines()
    found = [line for piece in (b"a\rb 1", b"0\n\n\x1b[32mgreen\x1b[0m\nrest") for line in lines.feed(piece)]
    assert found == ["a", "b 10", "green"]
    assert list(lines.last()) == ["rest"]


def test_a_line_without_end_is_split():
    lines = Lines()
    found = [line for _ in range(300) for line in lines.feed(b"x" * 1000)]
    assert found and all(len(line) <= LINE_BYTES for line in found)
