"""Where few bits stop paying: measured seconds of an exchange over rate-limited links, beside the cost model's.

    sudo python scripts/benchmarks/exchange_crossover.py                       # 2 ranks; .1, 1, 5 Gbit/s and loopback
    sudo python scripts/benchmarks/exchange_crossover.py --ranks 4 --output crossover.md
    python scripts/benchmarks/exchange_crossover.py --rate loopback                        # no link, no root

Each rank runs in a network namespace behind a token bucket, (slow_links.py). On every link, in one process a rank:
the link and the codecs are calibrated (`cpdrun.costmodel.measure`, never an exchange), then all methods exchange one
vector in turns, so that a busy machine disturbs all alike. Times are medians of the slowest rank's; predictions are
`cpdrun.costmodel.exchange_s` of what was calibrated: nothing is fitted. The loopback's "link" is memory, shared
with the processors that pack. As root, the ranks go before the machine's other programs.

The crossover of a method is the rate above which the platform's bf16 ring is faster: measured, where the ratio of the
two times passes 1 between two links, interpolated in logarithms; predicted, where the model's does, with the processor
as calibrated on the fastest link.
"""

import argparse
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cost_model import be_preferred
from slow_links import found_by_ranks

from cpdrun.costmodel import Codec, Exchange, Network, exchange_s
from cpdrun.record import write_text

LOOPBACK = "loopback"
AGAINST = "bf16 ring"
KEEP = 0.01
WARM_UPS = 2
CALIBRATIONS = 3  # repeats of each calibrated number


@dataclass(frozen=True)
class Method:
    """`bits` a value of what is sent; `pattern` of costmodel.PATTERNS; format: of cpdrun's own exchange."""

    pattern: str
    bits: float
    codec: str
    aps: bool = False


METHODS = {
    "fp32 ring": Method("ring", 32, "fp32"),
    "bf16 ring": Method("ring", 16, "bf16"),
    "8 bits, APS": Method("direct", 8, "e4m3", aps=True),
    "4 bits, APS": Method("direct", 4, "e2m1", aps=True),
    "top-k 1 %": Method("messages", math.nan, "top-k"),  # as many bits as its message has
}


# ---- one rank


def be_rank(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from cpdrun.costmodel.measure import measure_codec, measure_network

    torch.set_num_threads(1)
    if os.geteuid() == 0:
        be_preferred()
    dist.init_process_group("gloo")
    device = torch.device("cpu")
    steps = exchanges(options.values)
    top_k = dict.fromkeys(("add_s", "sum_s"), 0.0) | top_k_codec(options.values)
    found: dict[str, Any] = {
        "network": measure_network(device, CALIBRATIONS),
        "codecs": {
            m.codec: measure_codec(m.codec, device, CALIBRATIONS)
            for m in METHODS.values()
            if m.codec != "top-k"
        },
        "seconds": time_steps(steps, options.repeats),
    }
    found["codecs"]["top-k"] = top_k
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def exchanges(n_values: int) -> dict[str, Callable[[], None]]:
    """Each method's sum over the ranks of one float32 vector, from float32 to float32."""
    import torch
    import torch.distributed as dist

    from cpdrun.comm import all_reduce_
    from cpdrun.comm.compressed_sync import CompressedSync

    generator = torch.Generator().manual_seed(dist.get_rank())
    gradient = torch.randn(n_values, generator=generator) * 1e-3
    buffer, half = gradient.clone(), torch.empty(n_values, dtype=torch.bfloat16)
    sparse = CompressedSync(
        compressor=top_k(), error_feedback=False, world_size=dist.get_world_size(), parameter_names=["vector"]
    )

    def bf16() -> None:
        half.copy_(buffer)
        dist.all_reduce(half)
        buffer.copy_(half)

    return {
        "fp32 ring": lambda: dist.all_reduce(buffer),
        "bf16 ring": bf16,
        "8 bits, APS": lambda: all_reduce_(buffer, "e4m3", aps=True),
        "4 bits, APS": lambda: all_reduce_(buffer, "e2m1", aps=True),
        "top-k 1 %": lambda: sparse.reduce_stacked([gradient.unsqueeze(0)], step=0, epoch=0),
    }


def top_k() -> Any:
    from cpdrun.comm.compressors.top_k import TopK

    return TopK(keep=KEEP, format="fp32", aps=False, rounding="nearest_even")


def top_k_codec(n_values: int) -> dict[str, float]:
    """Seconds a value to compress the vector, and to decode a message of it and add it."""
    import torch

    from cpdrun.costmodel.measure import alternate

    compressor, x_1xn = top_k(), torch.randn(1, n_values) * 1e-3
    data, total_n = compressor.compress(x_1xn, [()]), torch.zeros(n_values)
    each = [
        lambda: compressor.compress(x_1xn, [()]),
        lambda: total_n.add_(compressor.decompress(data, n_values)[0]),
    ]
    pack_s, unpack_s = (s / n_values for s in alternate(each, torch.device("cpu"), CALIBRATIONS))
    return {"bits": 8 * data.shape[1] / n_values, "pack_s": pack_s, "unpack_s": unpack_s}


def time_steps(steps: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, of the slowest rank, in turns."""
    import torch
    import torch.distributed as dist

    seconds: dict[str, list[float]] = {label: [] for label in steps}
    for repeat in range(WARM_UPS + repeats):
        for label, step in steps.items():
            dist.barrier()
            started = time.perf_counter()
            step()
            spent = torch.tensor(time.perf_counter() - started)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            if repeat >= WARM_UPS:
                seconds[label].append(spent.item())
    return seconds


# ---- all ranks


def measure(ranks: int, rate: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = [f"--values={options.values}", f"--repeats={options.repeats}"]
    return found_by_ranks(__file__, ranks, None if rate == LOOPBACK else rate, arguments)


# ---- the model, and both side by side


def predicted_s(label: str, ranks: int, values: int, codecs: Mapping[str, Codec], link: Network) -> float:
    """Of one method on a link, by the cost model."""
    method, others = METHODS[label], ranks - 1
    if method.pattern == "messages":
        sent = others * codecs[method.codec].packed_bytes(values)
    else:
        sent = 2 * others / ranks * values * method.bits / 8
    what = Exchange(method.pattern, ranks, values, sent, codecs[method.codec], layers=int(method.aps))
    return exchange_s(what, link)


def links_and_codecs(found: Mapping[str, Any]) -> tuple[Network, dict[str, Codec]]:
    return Network(**found["network"]), {name: Codec(**codec) for name, codec in found["codecs"].items()}


def table(ranks: int, values: int, by_rate: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """In Markdown: a row a link and method."""
    lines = [
        f"## {ranks} ranks, {values:,} values",
        "",
        "| link | calibrated | method | measured ms | quartiles | times bf16 ring | predicted ms | times, predicted "
        "| error |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for rate, found in by_rate.items():
        link, codecs = links_and_codecs(found)
        measured = {label: statistics.median(seconds) for label, seconds in found["seconds"].items()}
        expected = {label: predicted_s(label, ranks, values, codecs, link) for label in METHODS}
        for label, seconds in measured.items():
            low, _, high = statistics.quantiles(found["seconds"][label], n=4)
            about = f"{link.bandwidth_bytes_per_s * 8e-9:.3g} Gbit/s, {link.latency_s * 1e6:.0f} us"
            lines.append(
                f"| {rate} | {about} | {label} | {1e3 * seconds:.1f} | {1e3 * low:.1f} - {1e3 * high:.1f} "
                f"| {measured[AGAINST] / seconds:.2f} | {1e3 * expected[label]:.1f} "
                f"| {expected[AGAINST] / expected[label]:.2f} | {expected[label] / seconds - 1:+.0%} |"
            )
    return lines


def crossovers(ranks: int, values: int, by_rate: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence a method: up to, or from, which rate it is faster than bf16's ring."""
    lines = []
    ordered = sorted(by_rate.values(), key=lambda found: found["network"]["bandwidth_bytes_per_s"])
    fastest, codecs = links_and_codecs(ordered[-1])
    rates = [found["network"]["bandwidth_bytes_per_s"] for found in ordered]
    for label in METHODS:
        if label == AGAINST:
            continue
        ratios = [
            statistics.median(found["seconds"][AGAINST]) / statistics.median(found["seconds"][label])
            for found in ordered
        ]

        def ratio_at(rate: float, label: str = label) -> float:
            link = replace(fastest, bandwidth_bytes_per_s=rate, burst_bytes=0.0)
            of = [predicted_s(name, ranks, values, codecs, link) for name in (AGAINST, label)]
            return of[0] / of[1]

        grid = [10 ** (6 + i / 50) for i in range(301)]  # 8 Mbit/s to 8 Tbit/s
        lines.append(
            f"- {label}: measured, {_said(rates, ratios)}; predicted, "
            f"{_said(grid, [ratio_at(rate) for rate in grid])}."
        )
    return lines


def crossing(rates: Sequence[float], ratios: Sequence[float]) -> float | None:
    """The rate at which the ratio first passes 1, up or down, interpolated in logarithms; None where it never does."""
    for (rate, ratio), (faster, then) in pairwise(zip(rates, ratios, strict=True)):
        if (ratio > 1) != (then > 1):
            share = math.log(ratio) / (math.log(ratio) - math.log(then))
            return rate * (faster / rate) ** share
    return None


def _said(rates: Sequence[float], ratios: Sequence[float]) -> str:
    rate, wins = crossing(rates, ratios), ratios[0] > 1
    if rate is None:
        return f"{'faster' if wins else 'slower'} than bf16's ring on every link"
    return f"faster than bf16's ring {'below' if wins else 'above'} {rate * 8e-9:.2g} Gbit/s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", type=int, default=4_000_000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    rates = ["100mbit", "1gbit", "5gbit", LOOPBACK]
    parser.add_argument("--rate", nargs="+", default=rates, help="as tc spells it, or loopback")
    parser.add_argument("--repeats", type=int, default=7, help="of each exchange")
    parser.add_argument("--output", type=Path, metavar="FILE.md", help="the tables as Markdown")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        be_rank(options)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the links are removed
    if os.geteuid() != 0 and any(rate != LOOPBACK for rate in options.rate):
        raise SystemExit("network namespaces need root: run it with sudo, or with --rate loopback")
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    texts = [
        "# Where few bits stop paying",
        "",
        f"`{' '.join(['python scripts/benchmarks/exchange_crossover.py', *sys.argv[1:]])}`: one machine of "
        f"{os.cpu_count()} cores, "
        "each rank in a network namespace behind a token bucket; other programs had "
        f"{load:.1f} runnable threads a core.",
    ]
    for ranks in options.ranks:
        by_rate = {rate: measure(ranks, rate, options) for rate in options.rate}
        texts += ["", *table(ranks, options.values, by_rate), "", *crossovers(ranks, options.values, by_rate)]
    print("\n".join(texts))
    if options.output:
        write_text(options.output, "\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
