"""Append each recipe of custom_fp, without its rules, to the reference of recipes."""

from pathlib import Path

from sphinx.application import Sphinx

PAGE = "docs/reference/recipes"
FOLDER = Path("kernels/custom_fp/conf/recipe")


def section(recipe: Path) -> str:
    """Return the yaml of a recipe without its rules."""
    head = recipe.read_text(encoding="utf-8").partition("\nrules:")[0].strip()
    return f"### {recipe.stem}\n\n```yaml\n{head}\n```\n"


def _append(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == PAGE:
        recipes = sorted((Path(app.srcdir) / FOLDER).glob("*.yaml"))
        source[0] += "\n" + "\n".join(map(section, recipes))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _append)
    return {"parallel_read_safe": True}
