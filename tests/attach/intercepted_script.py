"""One script in many variants, which runs unchanged as N processes or as one that emulates N workers."""

import contextlib
import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.sweep import plan

STEPS = 3


GROUPS = ("sync", "precision", "recipe", "aps", "scaling")  # which choose whole sections


@cache
def _composed(typed: tuple[str, ...]) -> dict[str, Any]:
    (planned,) = plan(["exp=digits_bits", "format=e4m3", "seed=0", *typed, "results_dir=nowhere"]).runs
    return planned.config


def config(*typed: str) -> dict[str, Any]:
    """Return the config of a run as typed. The defaults are fp32, no APS and one worker."""
    words = dict(word.split("=", 1) for word in typed)
    chosen = {"aps": "false", **{key: words.pop(key) for key in GROUPS if key in words}}
    made = copy.deepcopy(_composed(tuple(f"{key}={value}" for key, value in chosen.items())))
    for key, value in {"format": "fp32", "world_size": "1", **words}.items():
        *path, last = key.split(".")
        section = made
        for name in path:
            section = section[name]
        assert last in section, key
        section[last] = yaml.safe_load(value)
    return made


class Net(nn.Module):
    """A convolution, a norm with running statistics, and a part that is not always used."""

    def __init__(self, checkpointed: str | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Sequential(nn.Linear(4 * 36, 16), nn.ReLU(), nn.Linear(16, 16))
        self.unused = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor, use_all: bool = True) -> Tensor:
        x = self.norm(self.conv(x)).relu().flatten(1)
        if self.checkpointed:
            x = checkpoint(self.body, x, use_reentrant=self.checkpointed == "reentrant")
        else:
            x = self.body(x)
        if use_all:
            x = x + self.unused(x)
        return self.head(x)


@dataclass(frozen=True)
class Variant:
    """How a script trains."""

    ddp: dict[str, Any] = field(default_factory=dict)
    checkpointed: str | None = None
    use_all: bool = True
    micro_batches: int = 1  # of a worker, piling up
    clip: float | None = None
    compiled: str | None = None  # before or after DDP
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    scaled: bool = False  # by a GradScaler
    optimizer: str = "sgd"
    frozen: bool = False
    zero: bool = True  # set_to_none


VARIANTS = {
    "plain": Variant(),
    "small buckets, views of them": Variant(ddp={"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}),
    "unused parameters": Variant(ddp={"find_unused_parameters": True}, use_all=False),
    "static graph": Variant(ddp={"static_graph": True}),
    "no_sync": Variant(micro_batches=3),
    "checkpointed": Variant(checkpointed="plain"),
    "checkpointed, reentrant": Variant(checkpointed="reentrant"),
    "clipped": Variant(clip=0.1),
    "compiled before": Variant(compiled="before"),
    "compiled after": Variant(compiled="after"),
    "bf16 parameters": Variant(dtype=torch.bfloat16),
    "autocast": Variant(autocast=True),
    "GradScaler, clipped": Variant(scaled=True, clip=0.1),
    "groups": Variant(optimizer="groups"),
    "two optimizers": Variant(optimizer="two"),
    "LBFGS": Variant(optimizer="lbfgs"),
    "frozen": Variant(frozen=True),
    "zeros, not None": Variant(zero=False),
}

# less what takes decisions by the loss, each process by its own
ACROSS = [name for name in VARIANTS if name != "LBFGS"]


def batch(worker: int, step: int, i: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * worker + i)
    return torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 10, (6,), generator=generator)


def optimizers_of(net: Net, kind: str) -> list[torch.optim.Optimizer]:
    parameters = [p for p in net.parameters() if p.requires_grad]
    half = len(parameters) // 2
    if kind == "two":
        sgd = torch.optim.SGD(parameters[:half], lr=0.1)
        return [sgd, torch.optim.Adam(parameters[half:], lr=0.01)]
    if kind == "groups":
        groups = [{"params": parameters[:half], "lr": 0.01}, {"params": parameters[half:]}]
        return [torch.optim.SGD(groups, lr=0.1, weight_decay=0.1)]
    if kind == "lbfgs":
        return [torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)]
    return [torch.optim.SGD(parameters, lr=0.1, momentum=0.9)]


def made(variant: Variant, ranks: int) -> tuple[Net, nn.Module]:
    """The network, and what the script calls."""
    torch.manual_seed(0)
    net = Net(variant.checkpointed).to(variant.dtype)
    if variant.frozen:
        net.conv.requires_grad_(False)
    model: nn.Module = net
    if variant.compiled:
        # the wrapper and its hooks are what matters here
        torch.compiler.set_stance("force_eager")
    if variant.compiled == "before":
        model = torch.compile(model, backend="eager")
    if ranks > 1:
        model = DistributedDataParallel(model, **variant.ddp)
    if variant.compiled == "after":
        model = torch.compile(model, backend="eager")
    return net, model


def train(name: str, run: Any, ddp: bool = True) -> list[Tensor]:
    """The script, which knows of cpdrun what `run` has; weights and buffers after STEPS steps."""
    variant = VARIANTS[name]
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    net, model = made(variant, ranks if ddp else 1)
    optimizers = optimizers_of(net, variant.optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if variant.scaled else None
    wrapped = [m for m in (model, getattr(model, "_orig_mod", None)) if hasattr(m, "no_sync")]
    dtype = variant.dtype

    def loss_of(worker: int, step: int, i: int) -> Tensor:
        x, y = batch(worker, step, i)
        with torch.autocast("cpu", torch.bfloat16, enabled=variant.autocast):
            loss = F.cross_entropy(model(x.to(dtype), variant.use_all).float(), y)
        return scaler.scale(loss) if scaler else loss

    for step in range(STEPS):

        def gradients(step: int = step) -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=variant.zero)
            for w in run.workers:
                with run.worker(w):
                    for i in range(variant.micro_batches):
                        last = i == variant.micro_batches - 1
                        with wrapped[0].no_sync() if wrapped and not last else contextlib.nullcontext():
                            loss = loss_of(w, step, i)
                            loss.backward()
            for optimizer in optimizers if scaler else ():
                scaler.unscale_(optimizer)
            if variant.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), variant.clip)
            return loss

        if variant.optimizer == "lbfgs":
            optimizers[0].step(gradients)
            continue
        gradients()
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
    if variant.compiled:
        torch.compiler.set_stance("default")
    return [t.detach().float() for t in (*net.parameters(), *net.buffers())]


def train_intercepted(
    names: list[str], *typed: str, ddp: bool = True
) -> tuple[dict[str, list[Tensor]], dict[str, Any]]:
    """Weights of each variant under a Interceptor, and the last one's facts."""
    found, facts = {}, {}
    for name in names:
        interceptor = Interceptor(config(*typed))
        interceptor.install()
        try:
            found[name] = train(name, interceptor, ddp)
            interceptor.check()
            facts = interceptor.facts()
        finally:
            interceptor.uninstall()
    return found, facts
