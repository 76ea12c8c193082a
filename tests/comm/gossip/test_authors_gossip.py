"""Gossip and compressors against the authors' own programs: inputs by formula, the digits that their code gave.

CHOCO and Deep-Squeeze: `GossipDataParallel` of gossip_choco/ and gossip_ds/ of github.com/aparna-aketi/Low_Precision_DL
(commit fab2528; arXiv 2111.09389) ran as 3, 4, 5 and 7 gloo processes on a CPU, with float32 and torch 2.15, on
RingGraph (a directed ring of weights 1/2) with eta .5, momentum .9, weight decay .01 and lr .1: six rounds of what its
trainer does in one, and the forward pass after them, which takes in the last messages. Its calls of CUDA were replaced
(streams by nothing, device "cuda" by "cpu"), and two calls of add_ in the form that torch no longer has. With its qgm=0
the step is torch.optim.SGD(momentum=.9, nesterov=True), with qgm=1 its quasi-global momentum; compress_ratio is 0
("quantize" of level 32: nothing) or .75 ("sparsify", top_k). The loss of worker r in round t is
|x - target(r, t)|^2 / 2.

Their additions are in another order, so digests cannot be compared. Over all cases, the weights of worker 1 differ from
theirs by at most 1.4e-7, and the relative distance |ours - theirs| / |theirs| is at most 3.1e-7.

Top-k and QSGD: `SparsificationCompressor` and `QuantizationCompressor` of its compressor.py, which it has from
github.com/epfml/ChocoSGD (arXiv 1902.00340); the latter with torch.rand_like replaced by the uniforms below.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra.utils import instantiate

from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.gossip.base import WeightLayout
from cpdrun.comm.gossip.topologies import Ring

CONF = Path(__file__).parents[3] / "conf" / "sync"
SHAPES = [torch.Size((4, 3)), torch.Size((8,))]
LR, DECAY, BETA, ETA = 0.1, 0.01, 0.9, 0.5
# In six rounds, float32 numbers near 1 are added in another order than theirs. About 30 roundings differ by up to 6e-8
# each. The stored numbers have six digits after the point.
TOLERANCE = 3e-6

# Four workers. rule, quasi-global momentum, fraction sent: the 20 weights of worker 1
WORKER_1 = {
    ("choco", False, 1.0): """
-0.381986 -0.442562 -0.389669 -0.235301 -0.031869 0.150640 0.255292 0.262391 0.196115 0.110680
0.062785 0.083471 -0.214151 0.043986 0.277287 0.404584 0.388586 0.247895 0.045539 -0.139897""",
    ("choco", False, 0.25): """
-0.355645 -0.470492 -0.399587 -0.326939 0.123870 0.211956 0.293847 0.345846 0.027439 0.054441
0.159038 0.151511 -0.241721 0.078835 0.224928 0.383468 0.336837 0.247460 -0.028903 -0.260859""",
    ("choco", True, 1.0): """
-0.030217 -0.005823 0.075366 0.167811 0.216505 0.183876 0.068771 -0.091535 -0.237356 -0.313270
-0.293004 -0.190952 0.155735 0.173193 0.111565 -0.016470 -0.163588 -0.266921 -0.276077 -0.177279""",
    ("choco", True, 0.25): """
0.022017 -0.045046 0.053743 0.191635 0.201079 0.202636 0.112892 -0.147338 -0.288937 -0.312889
-0.331481 -0.240101 0.192013 0.157768 0.100594 -0.012688 -0.196749 -0.425871 -0.270199 -0.143508""",
    ("deep_squeeze", False, 1.0): """
-0.381986 -0.442562 -0.389669 -0.235301 -0.031869 0.150640 0.255292 0.262391 0.196115 0.110680
0.062785 0.083471 -0.214151 0.043986 0.277287 0.404584 0.388586 0.247895 0.045539 -0.139897""",
    ("deep_squeeze", False, 0.25): """
-0.290836 -0.365256 -0.294277 -0.325204 0.117183 0.141123 0.296327 0.452104 0.387734 0.101472
-0.190919 -0.085981 -0.113624 0.080124 0.228656 0.299878 0.581366 0.330091 -0.028903 -0.147699""",
    ("deep_squeeze", True, 1.0): """
-0.030217 -0.005823 0.075366 0.167811 0.216505 0.183876 0.068771 -0.091535 -0.237356 -0.313270
-0.293004 -0.190952 0.155735 0.173193 0.111565 -0.016470 -0.163588 -0.266921 -0.276077 -0.177279""",
    ("deep_squeeze", True, 0.25): """
-0.014229 0.093362 0.133570 0.118736 0.413979 -0.020358 -0.234337 -0.105078 -0.232762 -0.270885
-0.340858 -0.093776 0.135455 0.282649 0.033841 -0.128818 -0.106285 -0.250954 -0.308721 -0.097568""",
}

# workers, rule, quasi-global momentum, fraction sent; weights 0, 4, 8, 12 and 16 of worker 1
OTHER_RINGS = """
3 choco 0 1 -0.364763 -0.066552 0.244250 -0.270402 0.445924
3 choco 0 0.25 -0.396751 0.123870 0.300075 -0.183948 0.411418
3 choco 1 1 -0.000193 0.170684 -0.181035 0.095404 -0.106575
3 choco 1 0.25 0.001913 0.201079 -0.186102 0.097396 -0.116106
3 deep_squeeze 0 1 -0.364763 -0.066552 0.244250 -0.270402 0.445924
3 deep_squeeze 0 0.25 -0.217111 -0.085646 0.299392 -0.392165 0.499266
3 deep_squeeze 1 1 -0.000193 0.170684 -0.181035 0.095404 -0.106575
3 deep_squeeze 1 0.25 0.098746 0.201079 -0.232762 0.005427 -0.105633
5 choco 0 1 -0.333816 -0.066940 0.214034 -0.211886 0.367314
5 choco 0 0.25 -0.383980 0.123870 0.209256 -0.219231 0.304794
5 choco 1 1 0.011707 0.191100 -0.231408 0.170897 -0.197114
5 choco 1 0.25 -0.022328 0.201079 -0.362078 0.226101 -0.287056
5 deep_squeeze 0 1 -0.333816 -0.066940 0.214034 -0.211886 0.367314
5 deep_squeeze 0 0.25 -0.344072 0.117183 0.351530 -0.113624 0.513034
5 deep_squeeze 1 1 0.011707 0.191100 -0.231408 0.170897 -0.197114
5 deep_squeeze 1 0.25 -0.029284 0.291588 -0.330460 0.135455 -0.235893
7 choco 0 1 -0.316682 -0.113030 0.283754 -0.297703 0.458337
7 choco 0 0.25 -0.301717 0.123870 0.216881 -0.183948 0.394547
7 choco 1 1 0.049200 0.126694 -0.147530 0.077036 -0.104837
7 choco 1 0.25 0.085167 0.201079 -0.283893 0.097396 -0.148628
7 deep_squeeze 0 1 -0.316682 -0.113030 0.283754 -0.297703 0.458337
7 deep_squeeze 0 0.25 -0.228093 -0.147398 0.391091 -0.411553 0.495535
7 deep_squeeze 1 1 0.049200 0.126694 -0.147530 0.077036 -0.104837
7 deep_squeeze 1 0.25 0.073054 0.201079 -0.232762 -0.005521 -0.249397
"""


def target(n: int, worker: int, step: int, parameter: int) -> torch.Tensor:
    i = torch.arange(n, dtype=torch.float64)
    return torch.sin(0.7 * i + 1.3 * worker + 0.9 * step + 2.1 * parameter).float()


def start() -> list[torch.Tensor]:
    weight = torch.cos(0.3 * torch.arange(12, dtype=torch.float64))
    bias = torch.cos(0.5 * torch.arange(8, dtype=torch.float64) + 1)
    return [weight.float().view(4, 3), bias.float()]


def gossip_of(workers: int, rule: str, quasi_global: bool, keep: float) -> Any:
    spec = yaml.safe_load((CONF / f"gossip_{rule}.yaml").read_text()) | {"eta": ETA}
    spec |= {"knows_start": False} if rule == "choco" else {}
    spec |= {"quasi_global_momentum": BETA, "nesterov": True} if quasi_global else {}
    compressor = (
        TopK(keep, "fp32", False, "nearest_even") if keep < 1 else Rounded("fp32", False, "nearest_even")
    )
    spec |= {"topology": Ring("uniform", directed=True), "compressor": compressor}
    given = {"world_size": workers, "parameter_names": ["weight", "bias"], "seed": 0, "epochs": 1}
    return instantiate(spec, **given, _convert_="object")


def weights_of_worker_1(workers: int, rule: str, quasi_global: bool, keep: float) -> torch.Tensor:
    """Return the weights of worker 1 after six rounds."""
    gossip, rows = gossip_of(workers, rule, quasi_global, keep), WeightLayout(SHAPES)
    x = rows.zeros(workers, torch.device("cpu"))
    own = [[torch.nn.Parameter(view) for view in rows.parameters(row)] for row in x]
    momentum = {} if quasi_global else {"momentum": BETA, "nesterov": True}
    optimizers = [torch.optim.SGD(parameters, LR, weight_decay=DECAY, **momentum) for parameters in own]
    with torch.no_grad():
        for parameters in own:
            torch._foreach_copy_(parameters, start())
    gossip.begin(rows, x)
    for step in range(6):
        gossip.before_step(x, step=step, epoch=0)
        for w, parameters in enumerate(own):
            gradient = [
                p.detach() - target(p.numel(), w, step, i).view_as(p) for i, p in enumerate(parameters)
            ]
            gossip.correct(w, gradient, [DECAY * p.detach() for p in parameters])
            for p, g in zip(parameters, gradient, strict=True):
                p.grad = g
            optimizers[w].step()
        gossip.after_step(x, lr=LR, step=step, epoch=0)
    return torch.cat([p.detach().flatten() for p in own[1]])


@pytest.mark.parametrize(("rule", "quasi_global", "keep"), WORKER_1)
def test_weights_are_those_of_the_authors_programs(rule: str, quasi_global: bool, keep: float) -> None:
    ours = weights_of_worker_1(4, rule, quasi_global, keep)
    theirs = [float(x) for x in WORKER_1[rule, quasi_global, keep].split()]
    torch.testing.assert_close(ours, torch.tensor(theirs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("row", OTHER_RINGS.strip().splitlines())
def test_weights_on_other_rings_are_those_of_the_authors_programs(row: str) -> None:
    workers, rule, quasi_global, keep, *theirs = row.split()
    ours = weights_of_worker_1(int(workers), rule, quasi_global == "1", float(keep))
    torch.testing.assert_close(ours[::4], torch.tensor([float(x) for x in theirs]), rtol=0, atol=TOLERANCE)


# ---- compressors

LAYER = torch.arange(24, dtype=torch.float64)
X = (torch.sin(1.7 * LAYER) * torch.exp(-0.1 * LAYER)).float()
UNIFORM = ((0.618034 * LAYER) % 1).float()
TOP_QUARTER = {1: 0.8972954, 3: -0.6858604, 5: 0.4843069, 6: -0.3840994, 8: 0.3860463, 10: -0.3536784}
# level 4: s = 15; of |x| / norm * s, each rounded down or, where the uniform says so, up
LEVELS_15 = [0, 8, -2, -6, 3, 5, -3, -3, 3, 1, -4, 0, 3, -1, -2, 1, 1, -1, -2, 1, 1, -1, 0, 1]
QSGD_15 = {False: 0.104616, True: 0.0945329}  # what a level is worth; True: its is_biased, our contract
QSGD_255 = {False: [0.0, 0.89847, -0.209233, -0.683083], True: [0.0, 0.898138, -0.209156, -0.682831]}


def test_top_k_keeps_the_values_that_the_authors_code_keeps() -> None:
    c = TopK(0.25, "fp32", False, "nearest_even")
    received = c.decompress(c.compress(X[None], [()]), 24)[0]
    assert received.nonzero().flatten().tolist() == list(TOP_QUARTER)
    torch.testing.assert_close(
        received[received != 0], torch.tensor([*TOP_QUARTER.values()]), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("contract", [False, True])
def test_qsgd_gives_the_authors_levels_for_the_same_random_numbers(contract: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("cpdrun.comm.compressors.qsgd.uniforms", lambda like, keys: uniforms_for(like))
    for levels, expected in ((15, torch.tensor(LEVELS_15) * QSGD_15[contract]), (255, QSGD_255[contract])):
        c = QSGD(levels, contract)
        received = c.decompress(c.compress(X[None], [()]), 24)[0]
        expected = torch.as_tensor(expected)
        torch.testing.assert_close(received[: len(expected)], expected, rtol=1e-5, atol=0)


def uniforms_for(like: torch.Tensor) -> torch.Tensor:
    """Theirs rounds up where uniform < rest, ours where uniform >= 1 - rest."""
    return (1 - UNIFORM).clamp(max=1 - 2.0**-24).expand_as(like)
