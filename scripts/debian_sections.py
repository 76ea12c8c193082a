"""Write a text-classification data set: descriptions of Debian packages, labeled with the section of the package.

    apt-get update -o Acquire::Languages=en
    python scripts/debian_sections.py --to ~/.cache/cpdrun/debian_sections
    python scripts/debian_sections.py --packages Packages Translation-en --to FOLDER

On Debian and its derivatives, the descriptions come from apt's package index. Container images often have an index with
synopses only; the first command above adds the long descriptions. With --synopsis, the texts are the synopses, of about
seven words. With --packages, the script reads saved files of an index and needs no apt.

train.csv and test.csv have the columns text and label. All classes have the same number of texts. The packages of one
source (library, headers, translations) have similar descriptions, so each class contains one text per source, and a
source is either in train.csv or in test.csv. Hashes of the texts and of the names of the sources decide which texts are
used, so the same index gives the same files. index.json names the index and contains the digests of the files.
"""

import argparse
import csv
import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from cpdrun.record import write_text

LANGUAGE = ("-o", "Acquire::Languages=en")
RELEASE_FIELDS = ("Origin", "Label", "Suite", "Codename", "Version", "Date")
LEAST_LONG = 0.9  # If fewer packages than this share have a long description, the index has synopses only.


class PackagesError(Exception):
    """Raised if the package index cannot be read, or has too few packages."""


def read_stanzas(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the stanzas of a Packages or Translation file as mappings from field to value."""
    stanza: dict[str, str] = {}
    field = ""
    for line in lines:
        if not line.strip():
            if stanza:
                yield stanza
            stanza = {}
        elif line[0] in " \t":
            stanza[field] += f"\n{line.strip()}"
        else:
            field, _, value = line.partition(":")
            stanza[field] = value.strip()
    if stanza:
        yield stanza


def join_lines(description: str) -> str:
    """Return a description as one line.

    A line with only a dot stands for an empty line (Debian Policy, 5.6.13) and is left out.
    """
    return " ".join(" ".join(line for line in description.split("\n") if line != ".").split())


def read_texts(stanzas: Iterable[dict[str, str]], synopsis: bool) -> dict[str, dict[str, str]]:
    """Return the texts of each section.

    Args:
        stanzas: The stanzas of Packages files and, for long descriptions, of Translation files.
        synopsis: Use the first line of each description only.

    Returns:
        For each section, the texts with the name of their source. A text that occurs in several sections is omitted. If
        a source has several texts in a section, the one with the smallest hash is used.

    Raises:
        PackagesError: The descriptions have no long part, although `synopsis` is False.
    """
    packages, long = [], {}
    for stanza in stanzas:
        if "Description-en" in stanza:
            long[stanza["Description-md5"]] = stanza["Description-en"]
        if {"Filename", "Section", "Description"} <= stanza.keys():  # Installed packages have no Filename.
            packages.append(stanza)
    sections: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, str] = {}
    with_long = 0
    for package in packages:
        description = long.get(package.get("Description-md5", ""), package["Description"])
        with_long += "\n" in description
        text = join_lines(description.split("\n")[0] if synopsis else description)
        source = package.get("Source", package["Package"]).split()[0]
        sections[text].add(package["Section"].rpartition("/")[2])
        sources[text] = min(sources.get(text, source), source)
    if not synopsis and with_long < LEAST_LONG * len(packages):
        raise PackagesError(
            f"only {with_long} of {len(packages)} packages of the index have a long description. Run 'apt-get update "
            f"{' '.join(LANGUAGE)}' first, add a Translation-en file to --packages, or use --synopsis"
        )
    chosen: dict[str, dict[str, str]] = defaultdict(dict)  # section -> source -> text
    for text in sorted(sections, key=digest):
        if len(sections[text]) == 1:
            (section,) = sections[text]
            chosen[section].setdefault(sources[text], text)
    return {section: {text: source for source, text in texts.items()} for section, texts in chosen.items()}


def split(
    texts: dict[str, dict[str, str]], train: int, test: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the pairs (text, label) for training and for testing, in the order of the hashes of the texts.

    A source belongs to the training set with probability train / (train + test), decided by the hash of its name. A
    section that has fewer than `train` or `test` texts is omitted.
    """
    train_pairs, test_pairs = [], []
    for section in sorted(texts):
        sides: tuple[list[str], list[str]] = ([], [])
        for text in sorted(texts[section], key=digest):
            is_test = int(digest(texts[section][text])[:16], 16) * (train + test) >= train * 2**64
            sides[is_test].append(text)
        if len(sides[0]) >= train and len(sides[1]) >= test:
            train_pairs += [(text, section) for text in sides[0][:train]]
            test_pairs += [(text, section) for text in sides[1][:test]]
    return tuple(sorted(pairs, key=lambda pair: digest(pair[0])) for pairs in (train_pairs, test_pairs))


def digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, as hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def as_csv(pairs: Iterable[tuple[str, str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([("text", "label"), *pairs])
    return file.getvalue()


def run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout


def read_apt() -> tuple[str, list[dict[str, str]]]:
    """Return the text of apt's package index with its English descriptions, and fields of its Release files."""
    if shutil.which("apt-cache") is None:
        raise PackagesError("apt-cache was not found. Use --packages FILE with a saved Packages file")
    text = run("apt-cache", "dumpavail")
    files = run("apt-get", "indextargets", *LANGUAGE, "--format", "$(CREATED_BY) $(FILENAME)").split("\n")
    paths = [
        Path(path) for kind, _, path in (line.partition(" ") for line in files) if kind == "Translations"
    ]
    for path in paths:
        text += "\n" + run("/usr/lib/apt/apt-helper", "cat-file", path)
    folders = {Path(line.partition(" ")[2]).parent for line in files if line}
    releases = []
    for path in sorted(path for folder in folders for path in folder.glob("*Release")):
        release = next(
            stanza for stanza in read_stanzas(path.read_text("utf-8").split("\n")) if "Codename" in stanza
        )
        releases.append({field: release[field] for field in RELEASE_FIELDS if field in release})
    return text, releases


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, required=True, help="folder for the files, created if necessary")
    parser.add_argument("--packages", type=Path, nargs="+", help="saved Packages and Translation-en files")
    parser.add_argument(
        "--synopsis", action="store_true", help="use the first lines of the descriptions only"
    )
    parser.add_argument("--train", type=int, default=150, help="training texts per section (default: 150)")
    parser.add_argument("--test", type=int, default=80, help="test texts per section (default: 80)")
    arguments = parser.parse_args()
    if min(arguments.train, arguments.test) < 1:
        parser.error("--train and --test must be at least 1")
    try:
        if arguments.packages:
            files = {path.name: path.read_text("utf-8") for path in arguments.packages}
            text = "\n\n".join(files.values())
            index = [{"File": name, "SHA256": digest(content)} for name, content in files.items()]
        else:
            text, index = read_apt()
        texts = read_texts(read_stanzas(text.split("\n")), arguments.synopsis)
        pairs = dict(
            zip(("train.csv", "test.csv"), split(texts, arguments.train, arguments.test), strict=True)
        )
        labels = sorted({label for _, label in pairs["test.csv"]})
        if len(labels) < 2:
            raise PackagesError(
                f"{len(labels)} of {len(texts)} sections have {arguments.train} training and {arguments.test} test "
                "texts, but at least two are needed. Reduce --train and --test"
            )
        folder = arguments.to.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        contents = {name: as_csv(rows) for name, rows in pairs.items()}
        facts = {
            "index": index,
            "text": "synopsis" if arguments.synopsis else "description",
            "labels": labels,
            "rows": {name: len(rows) for name, rows in pairs.items()},
            "sha256": {name: digest(content) for name, content in contents.items()},
        }
        for name, content in {**contents, "index.json": json.dumps(facts, indent=2) + "\n"}.items():
            write_text(folder / name, content)
    except (PackagesError, OSError, UnicodeError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: {len(labels)} sections; an accuracy of {1 / len(labels):.2%} is chance")
    for name, rows in pairs.items():
        print(f"{name}  {len(rows)} texts  sha256 {facts['sha256'][name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
