"""A project of one's own to begin with: `project/` beside this file, which `cpdrun init DIR` copies."""

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree, ignore_patterns

from cpdrun.errors import UserError

SCHEMA = "conf/exp.schema.json"  # for editors; the experiment's last line names it


def write(folder: Path, schema: str) -> list[Path]:
    """The project's files in `folder`, which is made, with the JSON Schema of experiments among them; sorted.

    Raises UserError for a folder that is not empty, or cannot be written.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; name a folder that does not exist yet")
        with as_file(files(__package__) / "project") as project:
            copytree(project, folder, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__"))
        (folder / SCHEMA).write_text(schema, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    return sorted(path for path in folder.rglob("*") if path.is_file())
