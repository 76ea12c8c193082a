"""Predict the speed-up of AlexNet on 96 GPUs that send 8 bits per value, not 32 (Dettmers, arXiv:1511.04561).

    python scripts/research/speedup/alexnet_96gpu.py [--assumptions FILE.yaml] [--out FOLDER]

The script prints a Markdown page. With --out, it writes the page, a picture and a table to the folder. The assumptions
are in alexnet_96gpu.yaml. To study another case, copy the file and change its numbers. The formulas are
those of the cost model and of model_parallel.py. The script takes a few seconds. The result is in
results/reference/costmodel.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from model_parallel import (
    SCHEMES,
    Cluster,
    Model,
    exchange_s,
    exchange_to_compute,
    speedup,
)

from cpdrun.costmodel import Codec, Network
from cpdrun.record import write_text

NEAR = 0.2  # Speed-ups that differ by at most this fraction count as near, because the abstract says "50x and more".
WORKERS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 256, 512, 1024)
BITS = (32, 16, 8, 4)
ASSUMPTIONS = Path(__file__).with_suffix(".yaml")
COMMAND = "python scripts/research/speedup/alexnet_96gpu.py"


class CaseError(Exception):
    """Raised if an assumption is missing or invalid."""


@dataclass(frozen=True)
class Case:
    """The assumptions about the cluster and the model, which are the arguments of the formulas."""

    models: dict[str, Model]  # the model on each GPU
    links: dict[str, Network]
    inner: Network
    workers: int
    group_size: int
    codec_s: float
    abstract: dict[int, float]  # the speed-up in the abstract for each number of bits
    known: dict[int, float]  # the measured speed-up for each number of workers

    def codec(self, bits: int) -> Codec:
        """Return the codec of a number of bits. fp32 values are not packed, but only added."""
        busy_s = 0.0 if bits == 32 else self.codec_s
        return Codec(bits, pack_s=busy_s, add_s=self.codec_s, sum_s=busy_s, unpack_s=busy_s)

    def cluster(self, link: str, workers: int) -> Cluster:
        return Cluster(workers, self.group_size, self.inner, self.links[link])

    def speedup(self, gpu: str, link: str, bits: int, scheme: str, workers: int = 0, **how: Any) -> float:
        cluster = self.cluster(link, workers or self.workers)
        return speedup(self.models[gpu], cluster, self.codec(bits), scheme, **how)


def read_case(text: str) -> Case:
    """Read assumptions. Raise CaseError if something is missing or not a number."""
    try:
        given = yaml.safe_load(text)
        models = {
            gpu: Model(float(step_s), given["samples"], given["convolution_values"], tuple(given["widths"]))
            for gpu, step_s in given["gpus"].items()
        }
        links = {name: Network(**values) for name, values in given["links"].items()}
        return Case(
            models,
            links,
            Network(**given["inner"]),
            int(given["workers"]),
            int(given["group_size"]),
            float(given["codec_s"]),
            dict(given["abstract"]),
            dict(given["known"]),
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaseError(f"assumptions: {error!r}; see {ASSUMPTIONS.name} for the keys") from None


# ---- the page


def page(case: Case) -> str:
    """Return the page in Markdown."""
    lines = ["# AlexNet on many GPUs: the prediction of arXiv:1511.04561, ours beside it", ""]
    lines += [
        f"`{COMMAND}`. Predicted, not measured; assumptions: scripts/research/speedup/alexnet_96gpu.yaml.",
        "",
    ]
    for section in (_abstract, _what_travels, _on_96, _known, _against_workers):
        lines += [*section(case), ""]
    return "\n".join(lines).rstrip() + "\n"


def _abstract(case: Case) -> Iterator[str]:
    c = exchange_to_compute(case.abstract[32], case.workers)
    yield "## What the abstract's two numbers say together"
    yield ""
    yield (
        f"{case.abstract[32]:g}x on {case.workers} GPUs in 32 bits, with nothing hidden, is an exchange that takes "
        f"c = {c:.2f} times the computation: {case.workers} / (1 + c). A quarter of it, 8 bits for 32, gives "
        f"{case.workers} / (1 + c/4) = **{case.workers / (1 + c / 4):.1f}x**: the abstract's "
        f'"{case.abstract[8]:g}x and more". The two agree with each other to a tenth; what is left to predict is c.'
    )


def _what_travels(case: Case) -> Iterator[str]:
    model = next(iter(case.models.values()))
    yield "## What travels"
    yield ""
    total = model.convolution_values + model.connected_values
    activations = 2 * sum(model.widths[:-1]) + model.widths[-1]
    yield (
        f"Data parallel: {total:,} gradients a step, {model.connected_values / total:.0%} of them of fully connected "
        f"layers. Model parallel: these stay, and {activations:,} activations and errors a sample travel, of all "
        f"N x {model.samples} samples to all workers; the two cost the same at N = "
        f"{2 * model.connected_values / (activations * model.samples):.0f}. Hybrid: split over the "
        f"{case.group_size} GPUs of a machine only."
    )


def _on_96(case: Case) -> Iterator[str]:
    yield f"## {case.workers} GPUs"
    yield ""
    yield (
        f"c: exchange over computation in 32 bits. Abstract: {case.abstract[32]:g}x in 32 bits, "
        f"{case.abstract[8]:g}x and more in 8 (c = {exchange_to_compute(case.abstract[32], case.workers):.2f}). "
        "In brackets: with all of the exchange hidden that can be."
    )
    yield ""
    yield "| GPU | link | scheme | c | 32 bits | 8 bits | 8 over 32 |"
    yield "|---|---|---|---:|---:|---:|---:|"
    near = []
    for gpu, model in case.models.items():
        for link in case.links:
            for scheme in SCHEMES:
                c = (
                    exchange_s(model, case.cluster(link, case.workers), case.codec(32), scheme)
                    / model.compute_s
                )
                plain = {bits: case.speedup(gpu, link, bits, scheme) for bits in (32, 8)}
                hidden = {bits: case.speedup(gpu, link, bits, scheme, overlap=True) for bits in (32, 8)}
                cells = [f"{plain[bits]:.0f}x ({hidden[bits]:.0f}x)" for bits in (32, 8)]
                yield f"| {gpu} | {link} | {scheme} | {c:.2f} | {' | '.join(cells)} | {plain[8] / plain[32]:.1f} |"
                if all(abs(plain[bits] / times - 1) <= NEAR for bits, times in case.abstract.items()):
                    near.append(f"{gpu}, {link}, {scheme} parallel ({plain[32]:.0f}x and {plain[8]:.0f}x)")
    yield ""
    yield f"Within {NEAR:.0%} of both numbers of the abstract: {'; '.join(near) or 'none'}."


def table(case: Case) -> pd.DataFrame:
    """Return the predicted speed-ups without overlap for each GPU, link and scheme.

    The column "32 bits as in the abstract" says whether the speed-up with 32 bits is near the number in the abstract.
    """
    rows = []
    for gpu, link, scheme in product(case.models, case.links, SCHEMES):
        times = {f"times in {bits} bits": case.speedup(gpu, link, bits, scheme) for bits in (32, 8)}
        is_near = abs(times["times in 32 bits"] / case.abstract[32] - 1) <= NEAR
        rows.append(
            {"GPU": gpu, "link": link, "scheme": scheme, "32 bits as in the abstract": is_near, **times}
        )
    return pd.DataFrame(rows)


def _known(case: Case) -> Iterator[str]:
    """Compare with measurements on one machine that contains all GPUs."""
    gpu, model = next(iter(case.models.items()))
    yield "## Against measured speed-ups"
    yield ""
    yield (
        f"arXiv:1404.5997, table 1: {gpu}s in one machine, 32 bits, fully connected layers model parallel, the "
        "exchange hidden behind sub-batches."
    )
    yield ""
    yield "| GPUs | measured | predicted, nothing hidden | predicted, all hidden that can be |"
    yield "|---:|---:|---:|---:|"
    errors = {}
    for workers, measured in case.known.items():
        cluster = Cluster(workers, workers, case.inner, case.inner)
        bounds = [speedup(model, cluster, case.codec(32), "model", overlap=hide) for hide in (False, True)]
        yield f"| {workers} | {measured:.2f}x | {bounds[0]:.2f}x | {bounds[1]:.2f}x |"
        errors[workers] = bounds[0] / measured - 1
    most = max(errors, key=errors.get)
    yield ""
    yield (
        f"Nothing hidden, the prediction is {errors[most]:+.0%} from the measured speed-up at {most} GPUs, the most of "
        "these. Shared lanes between the GPUs of a machine, unequal work and the host's own time are not in it."
    )


def _against_workers(case: Case) -> Iterator[str]:
    gpu, link = list(case.models)[len(case.models) // 2], next(iter(case.links))
    yield f"## 1 to {WORKERS[-1]} workers: {gpu}, {link}, nothing hidden"
    for scheme in SCHEMES:
        yield ""
        yield f"| {scheme} parallel | " + " | ".join(f"{bits} bits" for bits in BITS) + " |"
        yield "|---:|" + "---:|" * len(BITS)
        for workers in WORKERS:
            found = [case.speedup(gpu, link, bits, scheme, workers) for bits in BITS]
            yield f"| {workers} | " + " | ".join(f"{times:.3g}x" for times in found) + " |"


# ---- the picture


def draw(case: Case, path: Path) -> None:
    """Draw the speed-up against the number of workers, with one panel per scheme and the abstract's two values."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from cpdrun.report.style import FP32, HEADING, NAME, PNG_DPI, RC, shades

    gpu, link = list(case.models)[len(case.models) // 2], next(iter(case.links))
    with rc_context(RC):
        figure = Figure(figsize=(8.0, 2.5), layout="constrained")
        panels = figure.subplots(1, len(SCHEMES), sharey=True)
        for axes, scheme in zip(panels, SCHEMES, strict=True):
            axes.plot(WORKERS, WORKERS, color=FP32.color, linestyle=":", linewidth=0.7)
            for bits, color in zip(BITS, (FP32.color, *reversed(shades(len(BITS) - 1))), strict=True):
                times = [case.speedup(gpu, link, bits, scheme, workers) for workers in WORKERS]
                axes.plot(WORKERS, times, ".-", color=color, markersize=3, label=f"{bits} bits")
                if bits in case.abstract:
                    axes.plot(
                        [case.workers],
                        [case.abstract[bits]],
                        "D",
                        color=color,
                        markeredgecolor="black",
                        markersize=4,
                        zorder=5,
                        label=f"{bits} bits in the abstract: {case.abstract[bits]:g}x",
                    )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            ticks = [1, 4, 16, 64, 256, 1024]
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.set_yticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
            axes.set_xlabel("GPUs")
            axes.set_title(f"{scheme} parallel", loc="left", **HEADING)
        panels[0].set_ylabel("times one GPU")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, frameon=False, prop={"size": NAME["fontsize"]}, loc="outside right center"
        )
        figure.suptitle(
            f"predicted, not measured: AlexNet, {gpu}, machines of {case.group_size} on {link}; nothing hidden",
            fontsize=6.5,
            color="#666666",
        )
        figure.savefig(path, dpi=PNG_DPI)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--assumptions", type=Path, help="other assumptions (default: alexnet_96gpu.yaml)")
    parser.add_argument("--out", type=Path, help="folder for alexnet_96gpu.md, .csv and .png")
    arguments = parser.parse_args(argv)
    try:
        source = arguments.assumptions or ASSUMPTIONS
        case = read_case(source.read_text(encoding="utf-8"))
        text = page(case)
    except (OSError, CaseError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.out is None:
        print(text, end="")
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out / "alexnet_96gpu.md", text)
    write_text(arguments.out / "alexnet_96gpu.csv", table(case).to_csv(index=False, float_format="%.4g"))
    draw(case, arguments.out / "alexnet_96gpu.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
