"""fsdp_comm gives the bits of the DDP hook, and those of the emulation with all options of FSDP.

Other tests check bytes, checkpoints and refusals.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from emulated import Emulated
from forked import run_script
from ranks import run_ranks, through_a_file
from sharded_nets import a_net, batch, rank, sgd, sharded, train, whole
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm import ddp_hook, emulate_all_reduce, fsdp_comm
from cpdrun.comm.sums.scaling import DelayedAPS

STEPS = 3
EXAMPLE = Path(__file__).parents[3] / "examples" / "fsdp_digits.py"


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(same_bits(a, b) for a, b in zip(found, expected, strict=True))


# ---- gradients are those of DDP


def by_both(fmt: str, options: dict[str, Any]) -> bool:
    """Return True if fsdp_comm and ddp_hook end with the same weights."""
    options = {**options, **({"scaling": DelayedAPS()} if "delayed" in options else {})}
    options.pop("delayed", None)
    ddp = DistributedDataParallel(a_net(), bucket_cap_mb=0.01)
    state, hook = ddp_hook(ddp, fmt, **options)
    ddp.register_comm_hook(state, hook)
    train(ddp, range(STEPS), sgd(ddp), rank())
    model = sharded(a_net(), reshard_after_forward=False)
    fsdp_comm(model, fmt, **options)
    train(model, range(STEPS), sgd(model), rank())
    return equal(whole(model), list(ddp.parameters()))


VARIANTS = [
    ("e4m3", {"aps": True, "order": "tree"}),
    ("e4m1", {"aps": True, "order": "ring", "kahan": True}),
    ("e3m1", {"delayed": True, "rounding": "stochastic", "error_feedback": True}),
    ("e5m2", {"aps": True, "full_precision_layers": ["head.*"], "overflow": "saturate"}),
    ("e4m3", {"requantise": "once"}),
    ("fp32", {"order": "native"}),  # a sum of two, so the order does not matter
    ("mxfp8_e4m3", {"error_feedback": True}),
]


def unequal() -> list[tuple]:
    return [how for how in VARIANTS if not by_both(*how)]


def test_weights_are_those_of_the_ddp_hook() -> None:
    assert run_ranks(2, unequal) == [[], []]


# ---- weights in a format, and what FSDP does around it


def accumulating(model: nn.Module) -> None:
    """Train with two backward passes per step, of which the first exchanges nothing."""
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(2):
            model.set_requires_gradient_sync(i == 1)
            x, y = batch(rank(), 2 * step + i)
            F.cross_entropy(model(x), y).backward()
        optimizer.step()


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
E3M0 = {"fmt": "e3m0", "aps": True}


def plainly(model: nn.Module) -> None:
    train(model, range(STEPS), sgd(model), rank())


def checkpointed() -> nn.Module:
    net = a_net()
    for i, layer in enumerate(net.layers):
        net.layers[i] = checkpoint_wrapper(layer)
    return net


# how the model is made, how it is sharded, what is exchanged, how it is trained
AROUND: dict[str, tuple[Callable, dict, dict, Callable]] = {
    "bf16": (a_net, {}, {"gather": "bf16"}, plainly),
    "e4m3, scaled": (a_net, {}, {"gather": "e4m3"}, plainly),
    "e4m3": (a_net, {}, {"gather": "e4m3", "fmt": "bf16", "aps": False}, plainly),
    "posit8, scaled": (a_net, {}, {"gather": "posit8"}, plainly),
    "e4m3fnuz": (a_net, {}, {"gather": "e4m3fnuz", "fmt": "bf16", "aps": False}, plainly),
    "takum8, differences": (a_net, {}, {"gather": "takum8", "differences": True}, plainly),
    "differences": (a_net, {}, {"gather": "e2m1", "differences": True}, plainly),
    "checkpointed": (checkpointed, {}, {"gather": "e4m3"}, plainly),
    "checkpointed differences": (checkpointed, {}, {"gather": "e3m0", "differences": True}, plainly),
    "not resharded": (a_net, {"reshard_after_forward": False}, {"gather": "e5m2"}, plainly),
    "param_dtype": (a_net, {"mp_policy": BF16}, {}, plainly),
    "accumulated": (a_net, {}, {"gather": "e4m3"}, accumulating),
    "accumulated differences": (a_net, {}, {"gather": "e3m0", "differences": True}, accumulating),
}


def expected(name: str, workers: int) -> list[Tensor]:
    how = E3M0 | AROUND[name][2]
    emulated = Emulated(workers, **how)
    emulated.dtype = torch.bfloat16 if name == "param_dtype" else torch.float32
    emulated.batches = 2 if AROUND[name][3] is accumulating else 1
    return emulated.run(STEPS)


def around() -> tuple[dict[str, list[Tensor]], dict[str, int]]:
    found, sent = {}, {}
    for name, (make, how, options, run) in AROUND.items():
        model = sharded(make(), **how)
        comm = fsdp_comm(model, **(E3M0 | options))
        run(model)
        found[name], sent[name] = whole(model), comm.wire_bytes()["bytes_per_step_sent"]
    return found, sent


@pytest.fixture(scope="module")
def trained() -> list[tuple[dict[str, list[Tensor]], dict[str, int]]]:
    return run_ranks(2, around)


@pytest.mark.parametrize("name", AROUND)
def test_masters_are_those_of_the_emulation(name: str, trained: list) -> None:
    wanted = expected(name, 2)
    assert all(equal(found[name], wanted) for found, _ in trained)


def test_gathered_weights_have_the_bytes_of_their_format(trained: list) -> None:
    values = sum(p.numel() for p in a_net().parameters())
    _, sent = trained[0]
    gradients = values / 2 / 2  # 4 bits each, for half of them; FSDP pads small parameters
    # The weights of both layers are gathered again for the backward pass. Differences are not.
    layers = sum(p.numel() for layer in a_net().layers for p in layer.parameters())
    assert 0.95 < sent["bf16"] / (gradients + (values + layers) / 2 * 2) < 1.1
    assert 0.95 < sent["not resharded"] / (gradients + values / 2) < 1.1
    assert 0.95 < sent["differences"] / (gradients + values / 2 / 2) < 1.15


def replicas() -> dict[str, Any]:
    """Train on two replicas of two shards each, and return the weights and the bytes."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found: dict[str, Any] = {}
    for fmt, reshard in (("e4m3", True), ("e3m0", False)):
        model = sharded(a_net(), mesh=mesh, reshard_after_forward=reshard)
        options = {"order": "hierarchical", "full_precision_layers": ["head.*"], "gather": "e5m2"}
        comm = fsdp_comm(model, fmt, aps=True, **options)
        plainly(model)
        found[fmt] = whole(model), comm.wire_bytes()["bytes_per_step_sent"]
    # After the forward pass, each pair of ranks keeps the gathered weights, half in each rank.
    for name, how in (("e4m3", {}), ("differences", {"differences": True})):
        model = sharded(a_net(), reshard_after_forward=2)
        fsdp_comm(model, "e4m3", gather="e4m3", aps=True, **how)
        plainly(model)
        found["again in two", name] = whole(model)
    with pytest.raises(ValueError, match="Set order=hierarchical, group_size=2"):
        fsdp_comm(sharded(a_net(), mesh=mesh), "e4m3", order="tree")
    with pytest.raises(ValueError, match="rounding=stochastic is not supported over a mesh"):
        fsdp_comm(sharded(a_net(), mesh=mesh), "e4m3", order="hierarchical", rounding="stochastic")
    return found


def test_replicas_are_the_second_level_of_a_hierarchical_sum() -> None:
    head = [name.startswith("head.") for name, _ in a_net().named_parameters()]

    class Hybrid(Emulated):
        def step(self, step: int) -> None:
            self.gather_()
            of_workers = [self.gradients(worker, step) for worker in range(4)]
            for m, full, gradients in zip(self.masters, head, zip(*of_workers, strict=True), strict=True):
                shares = [g / 4 for g in gradients]
                how = ("fp32", False) if full else (self.fmt, True)
                m.grad = emulate_all_reduce(shares, how[0], aps=how[1], order="hierarchical", group_size=2)
            self.optimizer.step()

        def gather_(self) -> None:
            super().gather_()
            for w, m, full in zip(self.model.parameters(), self.masters, head, strict=True):
                if full:
                    w.data.copy_(m.data)

    of_ranks = run_ranks(4, replicas)
    for fmt in ("e4m3", "e3m0"):
        wanted = Hybrid(4, fmt, gather="e5m2", aps=True).run(STEPS)
        assert all(equal(found[fmt][0], wanted) for found in of_ranks), fmt
    assert all(found["e3m0"][1] < found["e4m3"][1] for found in of_ranks)
    for name, differences in (("e4m3", False), ("differences", True)):
        wanted = Emulated(4, "e4m3", gather="e4m3", differences=differences, aps=True).run(STEPS)
        assert all(equal(found["again in two", name], wanted) for found in of_ranks), name


# ---- a script that is stopped, and one that compiles


def stopped_and_not() -> list[list[Tensor]]:
    options = {"gather": "e3m0", "differences": True, "error_feedback": True, "rounding": "stochastic"}
    found = []
    for stops in (False, True):
        model = sharded(a_net())
        comm, optimizer = fsdp_comm(model, "e3m1", aps=True, **options), sgd(model)
        train(model, range(2), optimizer, rank())
        if stops:
            kept = through_a_file(comm.state_dict())
            weights, state = model.state_dict(), optimizer.state_dict()
            model = sharded(a_net())
            model.load_state_dict(weights)
            comm, optimizer = fsdp_comm(model, "e3m1", aps=True, **options), sgd(model)
            optimizer.load_state_dict(state)
            comm.load_state_dict(kept)
        train(model, range(2, 4), optimizer, rank())
        found.append(whole(model))
    return found


def compiled() -> list[list[Tensor]]:
    found = []
    for compiles in (False, True):
        model = sharded(a_net())
        comm = fsdp_comm(
            torch.compile(model, backend="eager") if compiles else model, "e3m0", aps=True, gather="e4m3"
        )
        called = torch.compile(model, backend="eager") if compiles else model
        train(called, range(STEPS), sgd(model), rank())
        assert "layers.0.weight" in comm.sync.names
        found.append(whole(model))
    return found


def stopped_and_compiled() -> list[list[list[Tensor]]]:
    return [stopped_and_not(), compiled()]


def test_a_script_continues_from_its_checkpoint_and_may_be_compiled() -> None:
    for pairs in run_ranks(2, stopped_and_compiled):
        for without, with_it in pairs:
            assert equal(without, with_it)


# ---- refusals


def refusals() -> dict[str, str]:
    said = {}

    def catch(what: str, call: Callable[[], object]) -> None:
        with pytest.raises(ValueError) as caught:
            call()
        said[what] = str(caught.value)

    catch("plain", lambda: fsdp_comm(a_net(), "e4m3"))
    catch("gather", lambda: fsdp_comm(sharded(a_net()), "e4m3", gather="mxfp8_e4m3"))
    catch("scaled", lambda: fsdp_comm(sharded(a_net()), "mxfp8_e4m3", aps=True))
    catch("name", lambda: fsdp_comm(sharded(a_net()), "e4m3", gather="e44"))
    catch("pattern", lambda: fsdp_comm(sharded(a_net()), "e4m3", full_precision_layers=["nobody"]))
    catch(
        "offload",
        lambda: fsdp_comm(sharded(a_net(), offload_policy=CPUOffloadPolicy(pin_memory=False)), "e4m3"),
    )
    even = nn.Linear(4, 4)
    fully_shard(even, shard_placement_fn=lambda p: torch.distributed.tensor.Shard(p.dim() - 1))
    catch("dimension", lambda: fsdp_comm(even, "e4m3"))
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    catch("one shard", lambda: fsdp_comm(sharded(a_net(), mesh=alone), "e4m3"))
    return said


def test_models_that_are_not_supported_are_refused_in_one_line() -> None:
    for said in run_ranks(2, refusals):
        assert "does not use fully_shard" in said["plain"]
        assert said["gather"].startswith(
            "gather=mxfp8_e4m3: the format of gathered weights must not have its own scales"
        )
        assert "Set aps=false" in said["scaled"]
        assert "e44" in said["name"] and "'nobody' matches no parameter" in said["pattern"]
        assert "Leave offload_policy out" in said["offload"]
        assert "Leave shard_placement_fn out" in said["dimension"]
        assert "exchanges nothing" in said["one shard"]
        assert not any("\n" in line for line in said.values())


# ---- the example


def test_the_example_runs(tmp_path) -> None:
    assert EXAMPLE.read_text().count("# <-") == 2
    run_script(2, EXAMPLE, [], tmp_path)
    said = "".join((tmp_path / f"rank{rank}.log").read_text() for rank in range(2))
    (accuracy,) = set(re.findall(r"digits: ([\d.]+)%", said))
    assert said.count("digits: ") == 2 and float(accuracy) > 85
