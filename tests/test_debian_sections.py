"""Test scripts/debian_sections.py on small package indexes."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "debian_sections.py"
SOURCES_PER_SECTION = 40
SMALL = ("--train", "4", "--test", "5")


def package(name: str, section: str, synopsis: str, **fields: str) -> str:
    stanza = {"Package": name, "Filename": f"pool/{name}.deb", "Section": section, "Description": synopsis}
    return "".join(f"{key.replace('_', '-')}: {value}\n" for key, value in (stanza | fields).items())


def translation(name: str, md5: str, text: str) -> str:
    return f"Package: {name}\nDescription-md5: {md5}\nDescription-en: {text}\n"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Write an index: two sections with 40 sources of two packages each, and one section that is too small."""
    stanzas = []
    for section in ("games", "contrib/math"):
        for i in range(SOURCES_PER_SECTION):
            source, topic = f"{section[-4:]}{i}", f"topic {section[-4:]} {i}"
            stanzas.append(package(f"lib{source}", section, f"library of {topic}", Source=f"{source} (1.0)"))
            stanzas.append(package(f"{source}-l10n-de", section, f"German {topic}", Source=source))
    stanzas += [package(f"mail{i}", "mail", f"reads mail {i}") for i in range(3)]
    stanzas += [package("both1", "games", "in two sections"), package("both2", "math", "in two sections")]
    stanzas.append(package("here", "games", "installed by hand").replace("Filename", "Status"))
    path = tmp_path / "Packages"
    path.write_text("\n".join(stanzas))
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_balanced_files_in_which_no_source_is_on_both_sides(index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    done = run("--packages", index, "--synopsis", "--to", folder, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "2 sections; an accuracy of 50.00% is chance" in done.stdout
    train, test = rows(folder / "train.csv"), rows(folder / "test.csv")
    assert [row["label"] for row in train].count("math") == 4 and len(train) == 8
    assert [row["label"] for row in test].count("games") == 5 and len(test) == 10
    topics = [row["text"].partition("topic")[2] for row in train + test]
    assert len(set(topics)) == len(topics), "a source occurs twice"
    assert not any("two sections" in row["text"] or "by hand" in row["text"] for row in train + test)
    facts = json.loads((folder / "index.json").read_text())
    assert facts["labels"] == ["games", "math"] and facts["index"][0]["File"] == "Packages"
    assert facts["sha256"]["train.csv"] in done.stdout


def test_the_same_packages_in_another_order_give_the_same_files(index: Path, tmp_path: Path) -> None:
    reordered = tmp_path / "Reordered"
    reordered.write_text("\n\n".join(reversed(index.read_text().strip().split("\n\n"))) + "\n")
    for path in (index, reordered):
        assert (
            run("--packages", path, "--synopsis", "--to", tmp_path / f"from-{path.name}", *SMALL).returncode
            == 0
        )
    for name in ("train.csv", "test.csv"):
        assert (tmp_path / "from-Packages" / name).read_bytes() == (
            tmp_path / "from-Reordered" / name
        ).read_bytes()


def test_long_descriptions_are_one_line(tmp_path: Path) -> None:
    packages, translations = [], []
    for i in range(2 * SOURCES_PER_SECTION):
        packages.append(package(f"p{i}", ("games", "math")[i % 2], f"short {i}", Description_md5=f"d{i}"))
        translations.append(
            translation(f"p{i}", f"d{i}", f"short {i}\n It is  long.\n .\n Second  paragraph.")
        )
    (tmp_path / "Packages").write_text("\n".join(packages))
    (tmp_path / "Translation-en").write_text("\n".join(translations))
    files = ("--packages", tmp_path / "Packages", tmp_path / "Translation-en")
    done = run(*files, "--to", tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    assert all(row["text"].endswith(" It is long. Second paragraph.") for row in rows(tmp_path / "test.csv"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "only 0 of 165 packages of the index have a long description. Run 'apt-get update"),
        (("--synopsis", "--test", "99"), "0 of 3 sections have 150 training and 99 test texts"),
        (("--synopsis", "--packages", "missing"), "missing"),
    ],
)
def test_errors_are_one_line(index: Path, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = run("--packages", index, "--to", tmp_path / "out", *options)
    assert done.returncode == 1 and message in done.stderr
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
