"""The starter project that `cpdrun init DIR` copies. Its files are in the folder `project/` next to this file."""

from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree, ignore_patterns

from cpdrun.errors import UserError

# The JSON Schema of experiments, for editors. The last line of the experiment's yaml names it.
SCHEMA = "conf/exp.schema.json"


def write(folder: Path, schema: str) -> list[Path]:
    """Write the starter project into a folder, which is created if it does not exist.

    Args:
        folder: The folder. It must be new or empty.
        schema: The text of the JSON Schema of experiments, which is written into the folder, too.

    Returns:
        The paths of all files in the folder, sorted.

    Raises:
        UserError: The folder is not empty or cannot be written.
    """
    try:
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty. Type a folder that does not exist yet")
        with as_file(files(__package__) / "project") as project:
            copytree(project, folder, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__"))
        (folder / SCHEMA).write_text(schema, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    return sorted(path for path in folder.rglob("*") if path.is_file())
