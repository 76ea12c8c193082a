"""The DDP communication hook: process groups, memory, refusals and the example.

test_compressor_names.py compares the gradients of hooks with those of the emulation.
"""

import copy
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from bits import reduce, same_bits
from forked import run_script
from ranks import run_ranks, through_a_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm import AllReduceSync, ddp_hook
from cpdrun.comm.sums.scaling import DelayedAPS

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp_digits.py"


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def batch(rank: int, step: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    x, y = torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 10, (6,), generator=generator)
    return x.to(device), y.to(device)


def own_gradients(net: nn.Module, rank: int, step: int) -> list[torch.Tensor]:
    """The gradients of one rank alone."""
    net = copy.deepcopy(net)
    x, y = batch(rank, step, next(net.parameters()).device.type)
    F.cross_entropy(net(x), y).backward()
    return [parameter.grad for parameter in net.parameters()]


STATEFUL = {"scaling": DelayedAPS, "rounding": "stochastic", "error_feedback": True}


def two_pairs(pairs: list[list[int]], device: str) -> tuple[list[torch.Tensor], list[str]]:
    """Two models on four ranks, each trained by a pair; three steps, resumed from a checkpoint before the last."""
    unsorted = any(ranks != sorted(ranks) for ranks in pairs)  # supported since torch 2.15
    groups = [dist.new_group(ranks, **({"sort_ranks": False} if unsorted else {})) for ranks in pairs]
    j = next(j for j, ranks in enumerate(pairs) if dist.get_rank() in ranks)
    place = pairs[j].index(dist.get_rank())
    net = small_net().to(device)
    torch.compiler.set_stance("force_eager")  # only the wrapper and its names matter
    inside = torch.compile(net, backend="eager") if j == 0 else net
    model = DistributedDataParallel(inside, process_group=groups[j], bucket_cap_mb=0.01)
    options = STATEFUL | {"scaling": DelayedAPS()}
    state, hook = ddp_hook(model, "e3m1", full_precision_layers=["5.*"], **options)
    model.register_comm_hook(state, hook)
    for step in range(3):
        if step == 2:
            state.load_state_dict(through_a_file(state.state_dict(), pairs[j][0], groups[j]))
        x, y = batch(10 * j + place, step, device)
        net.zero_grad()
        F.cross_entropy(model(x), y).backward()
    return [parameter.grad.cpu() for parameter in net.parameters()], state.sync.names


def expected_of_pair(j: int, device: str) -> list[torch.Tensor]:
    net = small_net().to(device)
    knobs = {"order": "rank", "group_size": None, "kahan": False, "overflow": "infinity"}
    options = STATEFUL | {"scaling": DelayedAPS(), "full_precision": {"layers": ["5.*"]}}
    names = [name for name, _ in net.named_parameters()]
    sync = AllReduceSync(format="e3m1", world_size=2, parameter_names=names, **knobs | options)
    for step in range(3):
        workers = [own_gradients(net, 10 * j + place, step) for place in range(2)]
        result = reduce(sync, [[g / 2 for g in grads] for grads in workers], step=step)
    return [gradient.cpu() for gradient in result]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_two_pairs_on_four_ranks(device: str) -> None:
    """Stochastic rounding depends on the order of a group; delayed APS and error feedback on its state."""
    pairs = [[3, 0], [2, 1]] if device == "cpu" else [[0, 3], [1, 2]]
    expected = [expected_of_pair(j, device) for j in range(2)]
    for rank, (gradients, names) in enumerate(run_ranks(4, two_pairs, pairs, device)):
        j = 0 if rank in pairs[0] else 1
        assert names[0] == "0.weight" and not any("_orig_mod" in name for name in names)
        assert all(same_bits(a, b) for a, b in zip(gradients, expected[j], strict=True)), rank


def refusals() -> dict[str, str]:
    said = {}

    def catch(what: str, call: Callable[[], object]) -> None:
        with pytest.raises(ValueError) as caught:
            call()
        said[what] = str(caught.value)

    model, other = DistributedDataParallel(small_net()), DistributedDataParallel(small_net())
    model.register_comm_hook(*ddp_hook(other, "e4m3"))
    x, y = batch(0, 0)
    catch("other model", lambda: F.cross_entropy(model(x), y).backward())
    half = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    catch("other group", lambda: ddp_hook(model, "e4m3", group=half))
    sparse = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    catch("sparse", lambda: ddp_hook(sparse, "e4m3"))
    fsdp1 = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    catch("FSDP1", lambda: ddp_hook(fsdp1, "e4m3"))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    catch("FSDP2", lambda: ddp_hook(fully_shard(nn.Linear(4, 4), mesh=mesh), "e4m3"))
    return said


def test_models_that_the_hook_does_not_support_are_refused_in_one_line() -> None:
    for rank, said in enumerate(run_ranks(2, refusals)):
        assert "belongs to another model" in said["other model"]
        assert said["other group"].startswith(f"group contains the ranks [{rank}], but DDP's process group")
        assert said["sparse"].startswith("0 has sparse gradients") and "sparse=False" in said["sparse"]
        assert "FullyShardedDataParallel" in said["FSDP1"] and "fully_shard (FSDP2)" in said["FSDP2"]
        assert not any("\n" in line for line in said.values())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def take_200_steps() -> tuple[int, int]:
    model = DistributedDataParallel(small_net(), bucket_cap_mb=0.01)
    hook = ddp_hook(model, "e3m2", scaling=DelayedAPS(), error_feedback=True, rounding="stochastic")
    model.register_comm_hook(*hook)
    x, y = batch(dist.get_rank(), 0)
    sizes = []
    for step in range(200):
        F.cross_entropy(model(x), y).backward()
        if step in (49, 199):
            sizes.append(resident_bytes())
    return sizes[0], sizes[1]


def test_steps_leak_no_memory() -> None:
    for before, after in run_ranks(2, take_200_steps):
        assert after - before < 4 << 20


def test_the_example_runs(tmp_path) -> None:
    script = EXAMPLE.read_text()
    assert len(script.splitlines()) <= 30 and script.count("# <-") == 2
    said = run_script(2, EXAMPLE, [], tmp_path)
    assert float(re.search(r"digits: ([\d.]+)%", said)[1]) > 85
