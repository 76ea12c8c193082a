"""Command lines and Python code that the pages show."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDERS = {
    "docs": "**/*.md",
    "examples": "**/*.md",
    "cpdrun/starter": "**/*.md",
    "results/reference": "*/README.md",
}
PAGES = ["README.md", "CONTRIBUTING.md", "SKILL.md", "kernels/README.md"] + [
    path.relative_to(REPOSITORY).as_posix()
    for folder, pages in FOLDERS.items()
    for path in sorted((REPOSITORY / folder).glob(pages))
]
REFERENCES = "results/reference/"
COMMAND = re.compile(r"(?:cpdrun|python3?|pip|make|cd|source|git|eval|apt-get|chrt) |[A-Z]+=\S* python")
IN_TEXT = re.compile(r"`((?:cpdrun|make|python|pip|scripts/)[^`\n]*(?:\n[^`\n]+)?)`")


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield fenced and indented blocks: the language of the fence, and the lines without their indentation."""
    fence, name, block = "", "", list[str]()
    for line in [*text.splitlines(), "end"]:
        if mark := re.match(r"\s*(```+)(.*)", line):
            if fence and block:
                yield name, block
            fence, name, block = ("", "", []) if fence else (mark[1], mark[2].strip(), [])
        elif fence or line.startswith("    "):
            block.append(line if fence else line[4:])
        elif line.strip() or not block:
            if block:
                yield name, block
            block = []
        else:
            block.append("")


def commands(page: str) -> list[list[str]]:
    """Return the command lines of each block of a page. Continued lines are joined, and comments removed."""
    found = []
    for _, lines in blocks((REPOSITORY / page).read_text(encoding="utf-8")):
        block, whole = list[str](), ""
        for line in lines:
            whole += line.strip()
            if whole.endswith("\\") and COMMAND.match(whole):
                whole = whole[:-1]
                continue
            command = re.split(r"\s+#", whole.removeprefix("$ "))[0].strip()
            block += [command] if COMMAND.match(command) else []
            whole = ""
        found += [block] if block else []
    return found


def commands_in_text(page: str) -> list[str]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return [" ".join(command.split()) for command in IN_TEXT.findall(text)]


def snippets(page: str) -> list[str]:
    """Return the blocks that call or import something or that are marked as Python, without their command lines."""
    found = []
    for name, lines in blocks((REPOSITORY / page).read_text(encoding="utf-8")):
        code = "\n".join(line for line in lines if not COMMAND.match(line.strip()))
        if name == "python" or (not name and _is_python(code)):
            found.append(code)
    return found


def _is_python(code: str) -> bool:
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Import | ast.ImportFrom) for node in nodes)
