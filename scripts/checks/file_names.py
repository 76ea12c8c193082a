"""Check the names of source files: each is a noun or a verb, and few folders share one.

    python scripts/checks/file_names.py [ROOT]

A name that is one word must not be a participle, an adverb, a preposition or a pronoun, because such a word does not
say what the file contains. A name may appear in two folders at most, because an editor and a traceback often show the
name without its folder. The exit status is 1 if a name breaks a rule.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

FOLDERS = ("cpdrun", "kernels/custom_fp", "scripts")
SUFFIXES = (".py", ".cpp", ".h", ".cuh", ".sh")
MOST_FOLDERS = 2
IN_ANY_FOLDERS = {
    "__init__.py": "Python prescribes the name.",
    "__main__.py": "Python prescribes the name.",
    "base.py": "The folder says of what it is the base class.",
    "bindings.cpp": "Each extension module has one. The folder is named after the module.",
    "kernels.cpp": "Each extension module has one.",
    "kernels.h": "Each extension module has one.",
    "cuda.py": "Each group of operators has a file per backend.",
    "native.py": "Each group of operators has a file per backend.",
}

ENDINGS = ("ed", "ing")  # the endings of participles
# Nouns with the same endings, which are allowed.
NOUNS = (
    "batching embedding ending grouping launching lightning parsing rounding scaling screening speed string"
)
WORDS = """
about above across after again ahead alone along also among another apart around aside away back before behind below
beneath beside besides between beyond both built by chosen done down drawn each either elsewhere except felt few for
found from given gone held here his how idle in inside into it its itself kept known later left lent look lost made many
mine most much near never next of off often on once online only onto other others ours out outside over own past quite
rather said seen self sent shown since so some sometimes soon sought spent such taken than that their them then there
these they thing things this those through thus till to together told too toward under until up upon what whatever when
where whether which while who whoever whole whom whose why with within without words written yet
"""
FORBIDDEN = set(WORDS.split())


def find_problems(root: Path) -> Iterable[str]:
    """Yield a line for each name that breaks a rule."""
    folders: dict[str, list[Path]] = defaultdict(list)
    for top in FOLDERS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES:
                folders[path.name].append(path.relative_to(root).parent)
    for name, places in sorted(folders.items()):
        word = Path(name).stem
        if word in FORBIDDEN or (word.endswith(ENDINGS) and "_" not in word and word not in NOUNS.split()):
            yield f"{places[0] / name}: '{word}' does not say what the file contains; name it by a noun"
        if len(places) > MOST_FOLDERS and name not in IN_ANY_FOLDERS:
            listed = ", ".join(map(str, places))
            yield f"{name} is in {len(places)} folders ({listed}); add to the name what distinguishes the files"


if __name__ == "__main__":
    problems = list(find_problems(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
    print("\n".join(problems) or "The names of all source files are nouns or verbs.")
    sys.exit(bool(problems))
