"""Control of the exchange of a script's gradients and of the products in its layers.

    interceptor = Interceptor(config)    # the content of a run's config.yaml
    interceptor.install()                # called before the script's first line
    ...                                  # the script runs
    interceptor.check()                  # raises an error if nothing was intercepted
    interceptor.facts()                  # returns facts for the record, at any time

There are four ways to exchange gradients: with DistributedDataParallel (ddp.py), with fully_shard (fsdp.py), before the
optimizer's step if a process is the only worker (single_worker.py), and between workers that a process emulates
(emulated_workers.py). The last two depend on the events that training_events.py watches. model_rounding.py rounds
products, and script_observer.py records tensors.

With format=fp32, no scaling and a plain sum, cpdrun does not change the script's own exchange. The weights then equal
those of the script without cpdrun, bit for bit. (Built-in runs add float32 values in the order of workers instead.)
There is one exception: if a process emulates several workers with `run.worker`, and losses are not divided, cpdrun
computes the sum.
"""

import atexit
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from cpdrun.attach.environment import RUN_DIR
from cpdrun.attach.intercept.ddp import DdpExchange
from cpdrun.attach.intercept.emulated_workers import EmulatedWorkers
from cpdrun.attach.intercept.exchange import ExchangeSettings
from cpdrun.attach.intercept.model_rounding import LoadedModels, ModelRounding
from cpdrun.attach.intercept.patches import Patches
from cpdrun.attach.intercept.script import Script, unwrapped
from cpdrun.attach.intercept.script_observer import ScriptObserver
from cpdrun.attach.intercept.training_events import TrainingEvents
from cpdrun.comm import AllReduceSync
from cpdrun.errors import UserError
from cpdrun.record import RunDir, SweepDir, read_config, read_manifest

LEFT_ALONE = "left alone"


class Interceptor:
    """Applies a run's config to the script that this process executes.

    Args:
        config: The run's config.

    Raises:
        UserError: The config requests a feature that is not available in scripts.
    """

    current: ClassVar["Interceptor | None"] = None

    def __init__(self, config: dict[str, Any]) -> None:
        self.settings, self.script = ExchangeSettings(config), Script(config["world_size"])
        self.rounding = ModelRounding(config, self.script)
        self.loaded_models = LoadedModels(self.rounding)
        self.ddp = DdpExchange(self.settings, self.script, self.rounding)
        self.fsdp: Any = None
        self.emulated = EmulatedWorkers(self.settings, self.script, self.ddp.models)
        self.patches = Patches()
        self.events = TrainingEvents(self.settings, self.script, self.rounding, self.emulated, self.patches)
        folder = os.environ.get(RUN_DIR)
        self.run = RunDir(Path(folder)) if folder else None
        self.observer = ScriptObserver(config.get("observe", 0), self.script, self.run)

    def install(self) -> None:
        """Intercept all optimizers and models that the script creates from now on."""
        Interceptor.current = self
        plain, rounds = self.settings.plain, self.rounding.requested
        self.ddp.install(self.patches)
        self.events.install()
        self.observer.install(self.patches)
        self.loaded_models.install(self.patches)
        self.rounding.first_step.install(self.patches)
        if not plain or rounds:
            from cpdrun.attach.intercept.fsdp import FsdpExchange

            self.fsdp = FsdpExchange(self.settings, self.script, self.rounding)
            self.fsdp.install(self.patches)
            self.events.watch()
        elif self.run is not None and _compares_formats(self.run.sweep):
            self.events.is_baseline = True
            self.events.watch()
        if plain and self.script.workers_per_rank > 1:
            self.events.count_passes()
        if self.settings.remembers:
            self.script.note(
                f"the run keeps {self.settings.remembers} between steps. Save run.state_dict() in the script's "
                "checkpoints, because otherwise a script that is stopped and resumed has different results"
            )

    def uninstall(self) -> None:
        """Restore torch's functions. Optimizers and models that were created earlier remain intercepted."""
        self.patches.undo()
        Interceptor.current = None

    def add(self, model_or_optimizer: Any) -> None:
        """Intercept a model or an optimizer that may have been created before `install`.

        Raises:
            UserError: The argument is neither a model nor an optimizer.
        """
        if isinstance(model_or_optimizer, Optimizer):
            self.events.add(model_or_optimizer)
            self.observer.add(model_or_optimizer)
        elif isinstance(model_or_optimizer, nn.Module):
            self.script.add_model(unwrapped(model_or_optimizer))
            self.rounding.place(model_or_optimizer)
            if isinstance(model_or_optimizer, DistributedDataParallel):
                self.ddp.add(model_or_optimizer)
        else:
            kind = type(model_or_optimizer).__name__
            raise UserError(f"the arguments of cpdrun.attach must be models and optimizers, not {kind}")

    def apply_recipe(self, model: nn.Module, recipe: Any) -> None:
        """Apply the script's own recipe to a model. Raises UserError if it cannot be applied."""
        self.script.add_model(unwrapped(model))
        self.rounding.apply_recipe(model, recipe)
        self.events.watch()  # Rules may depend on the number of the step.

    @property
    def workers(self) -> range:
        """The numbers of the workers that this process emulates."""
        return self.script.local_workers

    def worker(self, w: int, *, divided: bool = False) -> AbstractContextManager[None]:
        """Return the context of the forward and backward pass of worker w (see `cpdrun.attach.run.Run.worker`)."""
        workers = self.workers
        if w not in workers:
            raise UserError(
                f"run.worker({w}): this process emulates only the workers {list(workers)}. Use the numbers in "
                "run.workers"
            )
        self.observer.divided = divided
        # No context is needed in two cases. If the process is a single worker, DDP, FSDP or the optimizer's step
        # exchanges its gradient. If it emulates several workers, but nothing is rounded and losses are divided, the
        # gradients accumulate in `.grad` as usual.
        is_alone = self.script.ranks == 1 or self.script.wrappers
        if is_alone if len(workers) == 1 else self.settings.plain and divided:
            self.events.untouched.passes = None
            return nullcontext()
        self.events.watch()
        return self.emulated.worker(w, divided)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is kept between steps. It is complete on rank 0. Collective."""
        if self.settings.plain and not self.rounding.in_use:
            return {}
        return {"steps": self.events.total_steps, "sums": self.script.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state that `state_dict` returned. Raises UserError if the state does not fit this script."""
        if not state or (self.settings.plain and not self.rounding.in_use):
            return
        try:
            self.events.resume(state["steps"])
            self.script.load_state_dict(state["sums"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                "run.load_state_dict: the argument must be a state that run.state_dict() returned in this run "
                f"({reason})"
            ) from None

    def facts(self) -> dict[str, Any]:
        """Return a description of what was intercepted, as JSON for the record.

        Returns:
            A dictionary with four keys.

            gradients: How gradients were exchanged; the number of workers, parameters and values; the
                parameters that stayed in float32; the parameters whose gradients were not exchanged; and the bytes
                sent in the latest step.
            products: A dictionary. `rounded` contains the rounded layers, and `in_fp32` the layers that multiply in
                float32. After the first step, `step` contains the multiply-accumulates of a step, grouped by the
                formats that they read. It becomes the entry `products` of done.json.
            notes: The printed notes.
            optimizer_steps: The largest number of steps that any optimizer has taken, or None if steps are not watched.
        """
        sums = [*self.ddp.states, *(self.fsdp.sums if self.fsdp else []), *self.events.single.means.values()]
        if self.emulated.gradients.mean is not None:
            sums.append(self.emulated.gradients.mean)
        syncs = [one.sync for one in sums if one.sync is not None]
        return {
            "gradients": _gradient_facts(self.settings, self.script, syncs),
            "products": {
                "rounded": self.rounding.rounded,
                "in_fp32": self.rounding.in_fp32,
                **(
                    {}
                    if (operations := self.rounding.first_step.operations()) is None
                    else {"step": operations}
                ),
            },
            "notes": list(self.script.notes),
            "optimizer_steps": self.events.most_steps,
        }

    def check(self) -> None:
        """Raise UserError if the run's format or precision had no effect. Called at the end of the script."""
        self.observer.write()
        if not self.settings.plain and not self.script.exchanged:
            steps = sum(self.events.steps.values())
            raise UserError(
                f"format={self.settings} had no effect on any gradient. The script took {steps} steps with optimizers "
                "of torch.optim. Train with an optimizer of torch.optim, in the process that cpdrun starts"
            )
        self.rounding.check()
        self.settings.check_patterns()


def interceptor_of_process() -> Interceptor:
    """Return the interceptor of this process.

    If cpdrun's runner did not start this process (for example, because the script started it), an interceptor is
    installed for the run that CPDRUN_RUN_DIR names. It is checked when Python ends.
    """
    if Interceptor.current is not None:
        return Interceptor.current
    interceptor = Interceptor(read_config(RunDir(Path(os.environ[RUN_DIR]))))
    interceptor.install()
    atexit.register(_check_at_exit, interceptor)
    return interceptor


def _gradient_facts(settings: ExchangeSettings, script: Script, syncs: list[AllReduceSync]) -> dict[str, Any]:
    wire = [sync.wire_bytes() for sync in syncs]
    return {
        "exchange": list(script.exchanged) or [LEFT_ALONE],
        "workers": script.world_size,
        "parameters": len(script.reached),
        "values": sum(script.reached.values()),
        "in_fp32": sorted({name for sync in syncs for name in sync.hybrid.always}),
        "left_alone": list(script.unreached),
        "longest_chain": settings.longest_chain if script.exchanged else None,
        "wire": {key: sum(of[key] for of in wire) for key in wire[0]} if wire else {},
    }


def _check_at_exit(interceptor: Interceptor) -> None:
    """Call `check` at the end of the process. If it raises an error, print the error and exit with an error code."""
    try:
        interceptor.check()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)


def _compares_formats(sweep: SweepDir) -> bool:
    """Return whether some run of the sweep rounds gradients or products."""
    try:
        return any(
            key == "format" or str(key).startswith(("recipe", "precision"))
            for key in read_manifest(sweep)["axes"]
        )
    except (OSError, ValueError, LookupError, TypeError):
        return False
