"""What cpdrun takes hold of in a training script: the exchange of its gradients, and the products of its layers.

    hold = Hold(config)     of a run's config.yaml
    hold.install()          before the script's first line
    ...                     the script
    hold.check()            an attachment that took hold of nothing is an error
    hold.facts()            for the record, at any time

How, in `held/`: under DistributedDataParallel (ddp.py), under fully_shard (sharded.py), before the step of a process
that is the only worker (on_step.py), and of several workers that a process plays (played.py), the latter two at the
moments that steps.py watches for. Products: products.py. What is only looked at: observed.py.

With format=fp32, no scaling and a plain sum the script's own exchange is left wholly alone, its order too: the weights
are those that the script has without cpdrun, bit for bit, whereas built-in runs add float32 in the order of workers.
The exception is `run.worker` where a process plays several and the losses are not divided: cpdrun forms that sum.
"""

import atexit
import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from cpdrun.attach.environment import NOT_FINITE, RUN_DIR
from cpdrun.attach.held.ddp import HoldsDdp
from cpdrun.attach.held.exchange import Asked
from cpdrun.attach.held.facts import LEFT_ALONE, facts_of
from cpdrun.attach.held.models import unwrapped
from cpdrun.attach.held.observed import Observed
from cpdrun.attach.held.on_step import OnStep
from cpdrun.attach.held.patches import Patches
from cpdrun.attach.held.played import Played
from cpdrun.attach.held.products import Products
from cpdrun.attach.held.script import Script
from cpdrun.attach.held.steps import Steps
from cpdrun.comm.sync.statistics import count_nonfinite
from cpdrun.errors import UserError
from cpdrun.record import RunDir, SweepDir, read_config, read_manifest


class Hold:
    """One for a process. Raises UserError where the config asks for what a script cannot be held to."""

    current: ClassVar["Hold | None"] = None

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.asked = Asked(config)
        self.script = Script(config["world_size"])
        self.products = Products(config, self.script)
        self.ddp = HoldsDdp(self.asked, self.script, self.products)
        self.on_step = OnStep(self.asked, self.script)
        self.played = Played(self.asked, self.script, self.ddp.models)
        self.patches = Patches()
        self.steps = Steps(self.asked, self.script, self.products, self.on_step, self.played, self.patches)
        self.sharded: Any = None
        folder = os.environ.get(RUN_DIR)
        self.run = RunDir(Path(folder)) if folder else None
        self.observed = Observed(config.get("observe", 0), self.script, self.run)

    @classmethod
    def around(cls) -> "Hold":
        """The one installed in this process; without one, as where the script was not started by cpdrun's runner but by
        a process of its own, one of the run that CPDRUN_RUN_DIR names, installed now and checked when Python ends."""
        if cls.current is None:
            run = RunDir(Path(os.environ[RUN_DIR]))
            hold = cls(read_config(run))
            hold.install()
            atexit.register(hold.check_at_exit)
        return cls.current

    def install(self) -> None:
        """From here on what the script constructs is taken hold of."""
        Hold.current = self
        self.ddp.install(self.patches)
        self.steps.install()
        self.observed.install(self.patches)
        self.products.install(self.patches)
        if not self.asked.plain or self.products.asked:
            self._install_sharded()
            self.steps.watch()
        elif self.run is not None and _compares_formats(self.run.sweep):
            self.steps.is_baseline = True
            self.steps.watch()
        if self.asked.plain and self.script.share > 1:
            # left alone, but not called a run of so many workers unless it is one
            self.steps.count_passes(True)
        if not self.asked.plain:
            self.steps.watch_uses()
        if self.asked.remembers:
            self.script.note(
                f"{self.asked.remembers} goes from step to step: a script that saves checkpoints of its own needs "
                "run.state_dict() in them, else it gives other bits when it is stopped and goes on"
            )

    def uninstall(self) -> None:
        """torch as it was; what has been constructed meanwhile stays held."""
        self.patches.undo()
        Hold.current = None

    def take(self, given: Any) -> None:
        """A model or an optimizer, made before `install` or after. Raises UserError for anything else."""
        if isinstance(given, Optimizer):
            self.steps.take(given)
            self.observed.take(given)
        elif isinstance(given, nn.Module):
            self.script.know(unwrapped(given))
            self.products.place(given)
            if isinstance(given, DistributedDataParallel):
                self.ddp.take(given)
        else:
            raise UserError(f"cpdrun.attach takes models and optimizers, not {type(given).__name__}")

    def take_recipe(self, model: nn.Module, recipe: Any) -> None:
        """The script's own recipe for a model. Raises UserError where it cannot be applied."""
        self.script.know(unwrapped(model))
        self.products.take_recipe(model, recipe)
        self.steps.watch()  # rules may name steps

    # ---- what the script calls

    @property
    def workers(self) -> range:
        """Those of the run's workers that this process plays."""
        return self.script.mine

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        """Around forward and backward of one of `workers`; see `cpdrun.attach.run.Run.worker`."""
        if w not in self.workers:
            raise UserError(
                f"run.worker({w}): this process plays the workers {list(self.workers)}: run.workers"
            )
        self.observed.divided = divided
        # where a process is one worker, DDP, FSDP or the step exchange its gradient; divided losses of several add up
        # in the script's own way where nothing is rounded
        alone = self.script.ranks == 1 or self.script.wrappers
        if alone if self.script.share == 1 else self.asked.plain and divided:
            self.steps.count_passes(False)
            return nullcontext()
        self.steps.watch()
        return self.played.worker(w, divided)

    def state_dict(self) -> dict[str, Any]:
        """What is held and goes on from step to step: {} where nothing does. Collective; rank 0 gets the whole."""
        if self.asked.plain and not self.products.in_use:
            return {}
        return {"steps": self.steps.all, "sums": self.script.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError for what `state_dict` of a script as this one did not give."""
        if not state or (self.asked.plain and not self.products.in_use):
            return
        try:
            self.steps.go_on_from(state["steps"])
            self.script.load_state_dict(state["sums"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            said = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"run.load_state_dict: this is not what run.state_dict() gave in this run: {said}"
            ) from None

    def say_not_finite(self) -> None:
        """Print, for a script that has failed, whether its weights were finite, and what to do if the format may be
        the reason. Weights that are not finite are noticed by many scripts only through an error further on."""
        weights = [p.detach() for p in self.script.parameters()]
        with suppress(RuntimeError):  # a GPU may be unusable by now
            if count := count_nonfinite(weights):
                total = sum(p.numel() for p in weights)
                print(
                    f"{NOT_FINITE} ({count} of {total}){self.asked.overflow_advice}",
                    file=sys.stderr,
                    flush=True,
                )

    # ---- for the record

    def facts(self) -> dict[str, Any]:
        """What was attached and what was left alone, for the record: JSON."""
        syncs = [sync for sync in self._syncs() if sync is not None]
        return facts_of(self.asked, self.script, self.products, syncs) | {"optimizer_steps": self.steps.most}

    def was_attached(self, facts: Any) -> bool:
        """Return whether the recorded facts of an earlier attempt show that its gradients were exchanged as asked."""
        gradients = facts.get("gradients") if isinstance(facts, dict) else None
        if not isinstance(gradients, dict) or not facts.get("optimizer_steps"):
            return False
        return self.asked.plain or gradients.get("exchange") not in (None, [], [LEFT_ALONE])

    def check(self) -> None:
        """At the end of the script. Raises UserError where a format or a precision took hold of nothing."""
        self.observed.write()
        if not self.asked.plain and not self.script.exchanged:
            taken = sum(self.steps.taken.values())
            raise UserError(
                f"format={self.asked} took hold of no gradient: the script took {taken} steps of torch.optim's "
                "optimizers; train in this process, with one of them"
            )
        if self.products.asked and not self.products.took_hold:
            raise UserError(
                "precision took hold of no layer: the script made no optimizer of torch.optim's and wrapped no model"
            )
        self.products.check_called()
        self.asked.check_patterns()

    def check_at_exit(self) -> None:
        """`check`, where nobody is left who would catch what it raises."""
        try:
            self.check()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_code)

    def _syncs(self) -> list[Any]:
        means = [*self.on_step.means.values(), *filter(None, [self.played.mean])]
        sharded = self.sharded.sums if self.sharded else []
        return [
            *(state.sync for state in self.ddp.states),
            *(s.sync for s in sharded),
            *(m.sync for m in means),
        ]

    def _install_sharded(self) -> None:
        from cpdrun.attach.held.sharded import HoldsFsdp

        self.sharded = HoldsFsdp(self.asked, self.script, self.products)
        self.sharded.install(self.patches)


def _compares_formats(sweep: SweepDir) -> bool:
    """Return whether other runs of the sweep round gradients or products."""
    try:
        return any(
            key == "format" or str(key).startswith(("recipe", "precision"))
            for key in read_manifest(sweep)["axes"]
        )
    except (OSError, ValueError, LookupError, TypeError):
        return False
