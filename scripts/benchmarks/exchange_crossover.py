"""Find the link rate below which a low-precision exchange is faster than bf16, and compare it with the cost model.

    sudo python scripts/benchmarks/exchange_crossover.py                      # 2 ranks; .1, 1, 5 Gbit/s and loopback
    sudo python scripts/benchmarks/exchange_crossover.py --ranks 4 --output crossover.md
    python scripts/benchmarks/exchange_crossover.py --loopback                # only the loopback, without root

Each rank runs in a network namespace behind a token bucket (slow_links.py). On every link, the ranks calibrate the link
and the codecs (`cpdrun.costmodel.measure`, without an exchange), and then all methods exchange one vector in turns.
Times are medians of the times of the slowest rank. Predictions are computed by `cpdrun.costmodel.exchange_s` from the
calibrated numbers. No parameter is fitted to the measured times. The "link" of the loopback is memory, whose bandwidth
is shared with the processors that pack.

The crossover of a method is the rate above which the platform's bf16 ring is faster. The measured crossover is the rate
at which the ratio of the two times passes 1, interpolated logarithmically between two links. The predicted crossover is
the rate at which the ratio of the predicted times passes 1, with the processor as calibrated on the fastest link. The
script takes about ten minutes. The result is results/reference/wire/crossover.md.
"""

import argparse
import math
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from harness import Report, make_parser, make_table, time_ranks
from slow_links import LOOPBACK, add_link_arguments, parse_arguments, run_ranks

from cpdrun.costmodel import Codec, Exchange, Network, exchange_s

REFERENCE = "bf16 ring"
KEEP = 0.01
WARM_UPS = 2
CALIBRATIONS = 3  # the number of repetitions of each calibration
HEADS = (
    *("link", "calibrated", "method", "measured ms", "quartiles", "times bf16 ring"),
    *("predicted ms", "times, predicted", "error"),
)


@dataclass(frozen=True)
class Method:
    """A way to exchange a vector.

    Attributes:
        pattern: The pattern of costmodel.PATTERNS.
        bits: The number of bits that are sent for each value.
        codec: The calibrated codec.
        aps: Whether the ranks agree on a scale.
    """

    pattern: str
    bits: float
    codec: str
    aps: bool = False


METHODS = {
    "fp32 ring": Method("ring", 32, "fp32"),
    "bf16 ring": Method("ring", 16, "bf16"),
    "8 bits, APS": Method("direct", 8, "e4m3", aps=True),
    "4 bits, APS": Method("direct", 4, "e2m1", aps=True),
    "top-k 1%": Method("messages", math.nan, "top-k"),  # its number of bits is computed from the message
}


def run_rank(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from cpdrun.costmodel.measure import measure_codec, measure_network

    device = torch.device("cpu")
    top_k_s = dict.fromkeys(("add_s", "sum_s"), 0.0) | top_k_codec(options.values)
    formats = [method.codec for method in METHODS.values() if method.codec != "top-k"]
    network = measure_network(device, CALIBRATIONS)
    codecs = {name: measure_codec(name, device, CALIBRATIONS) for name in formats}
    found = time_ranks(exchanges(options.values), options.repeats, warm_ups=WARM_UPS)
    seconds = {label: [spent for spent, _ in turns] for label, turns in found.items()}
    return {"network": network, "codecs": codecs | {"top-k": top_k_s}, "seconds": seconds}


def exchanges(n_values: int) -> dict[str, Callable[[], None]]:
    """Return, for each method, a function that sums one float32 vector over the ranks."""
    import torch
    import torch.distributed as dist

    from cpdrun.comm import all_reduce_
    from cpdrun.comm.sync.compressed_sync import CompressedSync

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
        "top-k 1%": lambda: sparse.reduce_stacked([gradient.unsqueeze(0)], step=0, epoch=0),
    }


def top_k() -> Any:
    from cpdrun.comm.compressors.top_k import TopK

    return TopK(keep=KEEP, format="fp32", aps=False, rounding="nearest_even")


def top_k_codec(n_values: int) -> dict[str, float]:
    """Return two times in seconds per value: to compress the vector, and to decode a message and add its values."""
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


def predicted_s(label: str, ranks: int, values: int, codecs: Mapping[str, Codec], link: Network) -> float:
    """Return the seconds of one exchange according to the cost model."""
    method, others = METHODS[label], ranks - 1
    if method.pattern == "messages":
        sent = others * codecs[method.codec].packed_bytes(values)
    else:
        sent = 2 * others / ranks * values * method.bits / 8
    what = Exchange(method.pattern, ranks, values, sent, codecs[method.codec], layers=int(method.aps))
    return exchange_s(what, link)


def links_and_codecs(found: Mapping[str, Any]) -> tuple[Network, dict[str, Codec]]:
    return Network(**found["network"]), {name: Codec(**codec) for name, codec in found["codecs"].items()}


def table(ranks: int, values: int, by_rate: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table with a row for each link and method."""
    rows = []
    for rate, found in by_rate.items():
        link, codecs = links_and_codecs(found)
        measured = {label: statistics.median(seconds) for label, seconds in found["seconds"].items()}
        expected = {label: predicted_s(label, ranks, values, codecs, link) for label in METHODS}
        about = f"{link.bandwidth_bytes_per_s * 8e-9:.3g} Gbit/s, {link.latency_s * 1e6:.0f} us"
        for label, seconds in measured.items():
            low, _, high = statistics.quantiles(found["seconds"][label], n=4)
            rows.append(
                (
                    *(rate, about, label, f"{1e3 * seconds:.1f}", f"{1e3 * low:.1f} - {1e3 * high:.1f}"),
                    *(f"{measured[REFERENCE] / seconds:.2f}", f"{1e3 * expected[label]:.1f}"),
                    *(
                        f"{expected[REFERENCE] / expected[label]:.2f}",
                        f"{expected[label] / seconds - 1:+.0%}",
                    ),
                )
            )
    return make_table(HEADS, rows, text_columns=3)


def crossovers(ranks: int, values: int, by_rate: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one line for each method with the rates at which it is faster than the bf16 ring."""
    lines = []
    ordered = sorted(by_rate.values(), key=lambda found: found["network"]["bandwidth_bytes_per_s"])
    fastest, codecs = links_and_codecs(ordered[-1])
    rates = [found["network"]["bandwidth_bytes_per_s"] for found in ordered]
    for label in METHODS:
        if label == REFERENCE:
            continue
        ratios = [
            statistics.median(found["seconds"][REFERENCE]) / statistics.median(found["seconds"][label])
            for found in ordered
        ]

        def ratio_at(rate: float, label: str = label) -> float:
            link = replace(fastest, bandwidth_bytes_per_s=rate, burst_bytes=0.0)
            of = [predicted_s(name, ranks, values, codecs, link) for name in (REFERENCE, label)]
            return of[0] / of[1]

        grid = [10 ** (6 + i / 50) for i in range(301)]  # 8 Mbit/s to 8 Tbit/s
        lines.append(
            f"- {label}: measured, {describe_crossing(rates, ratios)}; predicted, "
            f"{describe_crossing(grid, [ratio_at(rate) for rate in grid])}."
        )
    return lines


def crossing(rates: Sequence[float], ratios: Sequence[float]) -> float | None:
    """Return the rate at which the ratio first passes 1, interpolated in logarithms, or None if it never does."""
    for (rate, ratio), (faster, then) in pairwise(zip(rates, ratios, strict=True)):
        if (ratio > 1) != (then > 1):
            share = math.log(ratio) / (math.log(ratio) - math.log(then))
            return rate * (faster / rate) ** share
    return None


def describe_crossing(rates: Sequence[float], ratios: Sequence[float]) -> str:
    rate, wins = crossing(rates, ratios), ratios[0] > 1
    if rate is None:
        return f"{'faster' if wins else 'slower'} than bf16's ring on every link"
    return f"faster than bf16's ring {'below' if wins else 'above'} {rate * 8e-9:.2g} Gbit/s"


def main() -> None:
    parser = make_parser(__doc__)
    add_link_arguments(parser, ranks=[2], rates=["100mbit", "1gbit", "5gbit", LOOPBACK])
    parser.add_argument("--values", type=int, default=4_000_000, help="number of values (default: 4 million)")
    parser.add_argument(
        "--repeats", type=int, default=7, help="how many times each method is timed (default: 7)"
    )
    options = parse_arguments(parser, run_rank)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    with Report(options.output) as report:
        report.add("# Where few bits stop paying")
        report.add(
            f"`{shlex.join(['python', 'scripts/benchmarks/exchange_crossover.py', *sys.argv[1:]])}`: one machine of "
            f"{os.cpu_count()} cores, with each rank in a network namespace behind a token bucket. Other programs had "
            f"{load:.1f} runnable threads a core."
        )
        arguments = [f"--values={options.values}", f"--repeats={options.repeats}"]
        for ranks in options.ranks:
            by_rate = {rate: run_ranks(__file__, ranks, rate, arguments) for rate in options.rate}
            report.add(f"## {ranks} ranks, {options.values:,} values")
            report.add(table(ranks, options.values, by_rate))
            report.add("\n".join(crossovers(ranks, options.values, by_rate)))


if __name__ == "__main__":
    main()
