"""The packages that contain the yaml files of configurations. This module imports no Hydra, so it loads fast."""

from importlib.metadata import entry_points

CONF_MODULE = "cpdrun.conf"
# The package whose folder `recipe` is a group, too.
RECIPES_MODULE = "custom_fp.conf"
# The entry points by which installed distributions name their packages of yaml files.
ENTRY_POINTS = ("cpdrun.experiments", "cpdrun.recipes", "cpdrun.launchers")
# The top-level file for cpdrun's own training loop, and the one for scripts.
ROOT, SCRIPT_ROOT = "config", "script"
EXPERIMENT = "exp"


def yaml_packages() -> list[str]:
    """Return the names of all packages of yaml files. If several have a file with the same name, the first one counts.

    This reads a file of each installed distribution.
    """
    every = entry_points()
    named = [entry.value for group in ENTRY_POINTS for entry in every.select(group=group)]
    return list(dict.fromkeys([CONF_MODULE, RECIPES_MODULE, *named]))
