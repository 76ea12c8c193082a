"""What cpdrun takes hold of in a training script: the exchange of its gradients, and the products of its layers.

hold = Hold(config)     of a run's config.yaml
hold.install()          before the script's first line
...                     the script
hold.check()            an attachment that took hold of nothing is an error
hold.facts()            for the record, at any time
"""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from cpdrun.record import RunDir


class Hold:
    """One for a process. Raises UserError where the config asks for what a script cannot be held to."""

    current: "Hold | None" = None

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    @classmethod
    def around(cls) -> "Hold":
        """The one installed in this process; without one, one of the run that CPDRUN_RUN_DIR names, installed now."""
        if cls.current is None:
            run = RunDir(Path(os.environ["CPDRUN_RUN_DIR"]))
            cls(yaml.safe_load(run.config.read_text(encoding="utf-8"))).install()
        return cls.current

    def install(self) -> None:
        """From here on what the script constructs is taken hold of."""
        Hold.current = self

    def uninstall(self) -> None:
        """torch as it was; what has been constructed meanwhile stays held."""

    def take(self, model_or_optimizer: Any) -> None:
        """Of a model or an optimizer that was made before `install`. Raises UserError for anything else."""

    @property
    def workers(self) -> range:
        """Those of the run's workers that this process plays."""
        return range(1)

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        """Around forward and backward of one of `workers`; see `cpdrun.attach.run.Run.worker`."""
        return nullcontext()

    def facts(self) -> dict[str, Any]:
        """What was attached and what was left alone, for the record: JSON."""
        return {}

    def check(self) -> None:
        """At the end of the script. Raises UserError where a format or a precision took hold of nothing."""
