"""The argument compressor= of a script's calls and of ddp_hook: the bits of the emulation, and refusals."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from bits import reduce, same_bits
from ranks import run_ranks, through_a_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm import (
    AllReduceSync,
    Sum,
    all_reduce,
    all_reduce_,
    all_reduce_coalesced,
    ddp_hook,
    emulate_all_reduce,
)
from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.random_k import RandomK
from cpdrun.comm.compressors.sign import Sign
from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.script.compressor_names import make_compressed_sync
from cpdrun.comm.sums.scaling import APS
from cpdrun.comm.sync.compressed_sync import CompressedSync
from cpdrun.comm.sync.power_sgd import PowerSGDSync

CALLS = [
    {"compressor": "top_k"},
    {"compressor": "top_k", "fmt": "e4m3", "aps": True, "keep": 0.2, "seed": 3},
    {"compressor": "random_k"},
    {"compressor": "qsgd", "levels": 7, "contract": False},
    {"compressor": "min_max", "bits": 4, "rounding": "stochastic"},
    {"compressor": "sign"},
    {"compressor": Sign(1)},
    {"compressor": "rounded", "fmt": "mxfp4"},
    {"compressor": "power_sgd", "rank": 1},
    {"compressor": "power_sgd", "rank": 3, "fmt": "e4m3", "aps": True, "order": "tree", "min_compression_rate": 0},
]  # fmt: skip


def tensors(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    weight = torch.randn(12, 4, 3, 3, generator=generator).to(memory_format=torch.channels_last)
    return [weight, torch.randn(7, generator=generator).bfloat16(), torch.randn(()), torch.zeros(0, 3)]


def of_calls() -> list[list[torch.Tensor]]:
    """In a rank: the sums of each of CALLS."""
    found = []
    for options in CALLS:
        mine = tensors(dist.get_rank())[:2]
        together = all_reduce_coalesced(tensors(dist.get_rank()), **options)
        first = all_reduce(mine[0], **options)
        returned = all_reduce_(mine[0], **options)
        in_place = all_reduce_(mine[1], **options)
        assert (
            returned is mine[0] and same_bits(returned.contiguous(), first) and same_bits(first, together[0])
        )
        assert in_place is mine[1] and in_place.dtype == torch.bfloat16 and together[3].shape == (0, 3)
        here = emulate_all_reduce([tensors(rank)[0] for rank in range(2)], **options)
        assert same_bits(here, first), options
        found.append([first, together[1]])
    return found


# ---- DDP


class Net(nn.Module):
    """A convolution, a matrix, a scalar, and a branch that only even steps take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(1, 8, 3), nn.Linear(8 * 6 * 6, 16)
        self.branch, self.scale = nn.Linear(16, 16), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        x = self.fc(self.conv(x).flatten(1)) * self.scale
        return self.branch(x) if step % 2 == 0 else x


BF16 = torch.bfloat16  # of the net
HOOKS = [
    {"fmt": "e4m1", "aps": True, "full_precision_layers": ["fc.*"]},
    {"fmt": "e4m1", "aps": True, "accumulate": 3, "bucket_cap_mb": 25},
    {"compressor": "top_k", "keep": 0.05, "fmt": "e4m3", "aps": True},
    {"compressor": "qsgd", "error_feedback": False, "seed": 4, "dtype": BF16},
    {"compressor": Sign(1), "full_precision_layers": ["conv.*"]},
    {"compressor": RandomK(0.1, False, "fp32", False, "nearest_even")},
    {"compressor": "power_sgd", "rank": 3, "dtype": BF16},
    {"compressor": "power_sgd", "fmt": "e4m3", "aps": True, "full_precision_layers": ["fc.weight"]},
]
STEPS, LAST = 3, 2


def net_of(dtype: torch.dtype) -> Net:
    return Net().to(dtype, memory_format=torch.channels_last)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    x, y = torch.randn(6, 1, 8, 8, generator=generator), torch.randint(0, 16, (6,), generator=generator)
    dtype = next(model.parameters()).dtype
    return F.cross_entropy(model(x.to(dtype), step).float(), y)


def of_hooks() -> list[tuple[list[list[torch.Tensor]], list[int]]]:
    """In a rank: for each of HOOKS the gradients of each step, before the last of which it is resumed, and the
    bytes that the steps took."""
    found = []
    for options in HOOKS:
        options = dict(options)
        net, accumulate = net_of(options.pop("dtype", torch.float32)), options.pop("accumulate", 1)
        bucket_cap_mb = options.pop("bucket_cap_mb", 0.005)
        model = DistributedDataParallel(net, bucket_cap_mb=bucket_cap_mb, find_unused_parameters=True)
        state, hook = ddp_hook(model, **options)
        model.register_comm_hook(state, hook)
        gradients, sent = [], []
        for step in range(STEPS):
            if step == LAST:
                state.load_state_dict(through_a_file(state.state_dict()))
            model.zero_grad()
            for i in range(accumulate):
                with model.no_sync() if i < accumulate - 1 else nullcontext():
                    loss_of(model, dist.get_rank(), step + 2 * i).backward()
            gradients.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            sent.append(state.sync.wire_bytes()["bytes_per_step_sent"])
        found.append((gradients, sent))
    return found


def expected(options: dict[str, Any]) -> list[list[torch.Tensor]]:
    """Emulate the ranks of a hook in this process; each rank's gradient is that of its own model."""
    options = dict(options)
    dtype, accumulate = options.pop("dtype", torch.float32), options.pop("accumulate", 1)
    options.pop("bucket_cap_mb", None)
    net = net_of(dtype)
    names = [name for name, _ in net.named_parameters()]
    full, seed = options.pop("full_precision_layers", []), options.pop("seed", 0)
    given = {"names": names, "world_size": 2, "seed": seed, "full_precision_layers": full}
    if options.pop("aps", False):
        given["scaling"] = APS()
    compressor, fmt = options.pop("compressor", None), options.pop("fmt", None)
    if compressor is None:
        given = {"parameter_names": names, "world_size": 2, "full_precision": {"layers": full}}
        sync = AllReduceSync(format=fmt, scaling=APS(), **given)
    else:
        sync = make_compressed_sync(compressor, fmt, options=options, **given)
    found = []
    for step in range(STEPS):
        workers = []
        for rank in range(2):
            alone = copy.deepcopy(net)
            for i in range(accumulate):
                loss_of(alone, rank, step + 2 * i).backward()
            own = [torch.zeros_like(p) if p.grad is None else p.grad for p in alone.parameters()]
            workers.append([g.float().contiguous() / 2 for g in own])
        found.append([g.to(dtype) for g in reduce(sync, workers, step=step)])
    return found


def both() -> tuple[list, list]:
    return of_calls(), of_hooks()


@pytest.fixture(scope="module")
def of_ranks() -> list[tuple[list, list]]:
    return run_ranks(2, both)


def test_ranks_have_the_bits_of_the_emulation(of_ranks):
    for calls, _ in of_ranks:
        for options, (weight, bias) in zip(CALLS, calls, strict=True):
            both_ranks = [tensors(rank) for rank in range(2)]
            weights, biases = ([given[p] for given in both_ranks] for p in range(2))
            assert same_bits(weight, emulate_all_reduce(weights, **options)), options
            # these draw random numbers by the tensor's place in the call
            if options["compressor"] not in ("qsgd", "min_max", "random_k"):
                assert same_bits(bias, emulate_all_reduce(biases, **options)), options


def test_gradients_of_ddp_have_the_bits_of_the_emulation(of_ranks):
    """With buckets that DDP rebuilds, accumulation, channels_last, bfloat16, unused parameters and a resumed step."""
    for _, hooks in of_ranks:
        for options, (steps, sent) in zip(HOOKS, hooks, strict=True):
            assert len(set(sent[1:])) == 1 and sent[0] == sent[1] > 0, (options, sent)
            for step, (gradients, wanted) in enumerate(zip(steps, expected(options), strict=True)):
                for p, (gradient, of_emulation) in enumerate(zip(gradients, wanted, strict=True)):
                    if gradient is not None:
                        a, b = gradient.float().contiguous(), of_emulation.float()
                        assert same_bits(a, b), (options, step, p)


def test_a_name_takes_the_defaults_of_conf_and_the_format_of_the_call():
    given = {"names": ["a"], "world_size": 2, "options": {}}
    sync = make_compressed_sync("top_k", "e4m3", **given)
    assert isinstance(sync, CompressedSync) and sync.feedback is not None
    made = sync.compression.compressor
    assert isinstance(made, TopK) and made.keep == 0.01 and made.values.format.name == "e4m3"
    made = make_compressed_sync("qsgd", None, **given).compression.compressor
    assert isinstance(made, QSGD) and made.levels == 127 and made.contract
    sync = make_compressed_sync("power_sgd", Sum("e4m3", "tree"), **given | {"options": {"rank": 4}})
    assert isinstance(sync, PowerSGDSync) and (sync.rank, sync.factors.sum.order) == (4, "tree")
    assert sync.feedback is not None
    assert (
        make_compressed_sync("sign", None, **given | {"options": {"error_feedback": False}}).feedback is None
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "fmt is missing: pass a format"),
        ({"compressor": "topk"}, ValueError, "compressor='topk': choose one of min_max, qsgd, .*power_sgd, or pass"),
        ({"compressor": "top_k", "kep": 1}, ValueError, "kep: compressor=top_k has no such .*: keep, rounding"),
        ({"compressor": "top_k", "keep": 2}, ValueError, "keep must be above 0 and at most 1"),
        ({"compressor": "top_k", "order": "tree"}, ValueError, "order: compressor=top_k has no such setting"),
        (
            {"compressor": "sign", "fmt": "e4m3"},
            ValueError,
            "fmt=e4m3: compressor=sign does not send values in a number format",
        ),
        ({"compressor": "qsgd", "aps": True}, ValueError, "aps=True: compressor=qsgd has its own scale"),
        (
            {"compressor": Sign(1), "fmt": "e4m3"},
            ValueError,
            r"fmt cannot be combined with a Compressor object\. Pass fmt to Sign\(...\)",
        ),
        ({"compressor": Sign(1), "aps": True}, ValueError, "aps or scaling cannot be combined with a Compressor"),
        ({"compressor": Sign(1), "bits": 1}, ValueError, "bits cannot be combined with a Compressor"),
        ({"compressor": "top_k", "fmt": Sum("e4m3")}, ValueError, "fmt is a Sum, but compressor=top_k"),
        ({"compressor": "power_sgd", "keep": 1}, ValueError, "keep: compressor=power_sgd .*: rank"),
        ({"compressor": "top_k", "error_feedback": True}, ValueError, "Use ddp_hook or AllReduceSync"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_in_one_line(options, error, message):
    with pytest.raises(error, match=message) as caught:
        emulate_all_reduce([torch.ones(3)], **options)
    assert "\n" not in str(caught.value)
