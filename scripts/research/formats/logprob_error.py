"""Measure the error of a language model's token log-probabilities under each recipe, relative to float32.

    python scripts/pretrained_models.py smollm2 && apt-get install linux-doc
    python scripts/research/formats/logprob_error.py --to results/reference/logprob_error

The script runs forward passes of SmolLM2-135M-Instruct on English technical text (the prose of the Linux kernel's
documentation) and on random tokens. For each token after the first of a prompt, the log-probability of this token under
float32 is compared with that under a recipe. The error is sqrt(sum (x - r)^2 / sum r^2), where r are the float32
values. ServiceNow/Fast-LLM#525 reports the same error for models that are cast to bf16 or fp16, which PUBLISHED quotes.

There are two kinds of arithmetic. A recipe rounds products, and leaves norms, rotary embeddings and the sums of the
residual stream in float32. A cast model (`model.to(torch.bfloat16)`) also rounds these. The sums of its products are
float32, as on GPUs. Each of them is combined with several output heads:

- own: the head multiplies as most layers do. Logits are rounded to 16 bits, except in forward_blocks.
- bf16: bf16 operands and logits, which most recipes of 4 and 8 bits prescribe.
- fp32: float32 operands and logits. The weight of a cast model was rounded before.

The 95% intervals treat the prompts as a sample: BCa bootstrap over prompts, 10,000 resamples, seed 0. They contain no
uncertainty about other models or other kinds of text. Each pass has one prompt, so scales of whole tensors concern one
prompt. The script writes logprob_error.csv, logprob_error.md and made_by.txt.
"""

import argparse
import gzip
import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import custom_fp
import numpy as np
import pandas as pd
import torch
from scipy.stats import bootstrap
from torch import Tensor, nn

from cpdrun.record import git_commit, write_text

sys.path.insert(0, str(Path(__file__).parents[2]))
from made_by import clean_commit, write_made_by

MODEL = "~/.cache/cpdrun/models/SmolLM2-135M-Instruct"
TEXT = "/usr/share/doc/linux-doc/Documentation"
COMMAND = "python scripts/research/formats/logprob_error.py"
CSV, MARKDOWN = "logprob_error.csv", "logprob_error.md"
CONFIDENCE, RESAMPLES = 0.95, 10_000
LEAST_WORDS = 15  # of a paragraph of prose
HEADS = ("own", "bf16", "fp32")
CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
LIKE_LAYERS = {"head": None}
# For each recipe, the ingredients with which the head multiplies like most layers.
RECIPES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp16_mixed": {},
    "int8": LIKE_LAYERS,
    "fp8_tensorwise": LIKE_LAYERS,
    "fp8_row": LIKE_LAYERS,
    "fp8_block128": LIKE_LAYERS,
    "mxfp8": LIKE_LAYERS,
    "nvfp4": LIKE_LAYERS | {"bf16_layers": 0},
    "ufp4": LIKE_LAYERS,
    "forward_blocks": {},
}
ONLY_16_BITS = ("bf16", "fp16_mixed")  # recipes that are not measured with another head of 16 bits
SOURCE = "https://github.com/ServiceNow/Fast-LLM/pull/525"
PUBLISHED = (  # model, inputs, engine, then the errors in percent: bf16, bf16 with fp32 head, fp16, fp16 with fp32 head
    ("Qwen2.5-0.5B", "text", "Fast-LLM", 1.048, 0.753, 0.136, 0.101),
    ("Qwen2.5-0.5B", "text", "DeepSpeed", 1.075, 0.830, 0.132, 0.105),
    ("Qwen2.5-0.5B", "text", "vLLM", 1.053, 0.794, 0.146, None),
    ("Qwen2.5-0.5B", "random tokens", "Fast-LLM", 0.265, 0.265, 0.032, 0.032),
    ("Qwen2.5-0.5B", "random tokens", "DeepSpeed", 0.307, 0.306, 0.040, 0.040),
    ("Qwen2.5-0.5B", "random tokens", "vLLM", 0.280, 0.280, 0.049, None),
    ("SmolLM2-135M", "random labels", "Fast-LLM", 0.473, 0.371, None, None),
)
HEADER = """\
`{command}` at commit {commit}, in a single forward pass without training.

Each cell is the relative RMS error of the log-probability of the next token, compared with float32, and a 95%
bootstrap interval over the prompts. The own head multiplies as the layers do. The bf16 head, which most recipes of 4
and 8 bits prescribe, and the fp32 head read the same hidden states. A recipe rounds products. A cast model also rounds
norms, rotary embeddings and the residual stream. forward_blocks rounds operands to mxfp4, and no results. nvfp4 keeps
15% of the layers in bf16. The last two columns, for the fp32 head, are the mean difference relative to the RMS of
float32, and the RMS of the differences in nats.

The publisher of the package rounded the weights to 4 bits (Q4_1, in blocks of 32). float32 computes with the rounded
weights, so this rounding is no part of the errors, but other weights can have other errors. The prompts of text have
the SHA-256 {tokens_sha256} (int64 tokens)."""


@dataclass(frozen=True)
class Variant:
    """A model whose arithmetic is rounded, and the output heads that read its hidden states.

    Attributes:
        arithmetic: "recipe" or "cast".
        name: The name of the recipe, or of the type to which the model was cast.
        body: Returns the hidden states of a batch of tokens.
        heads: Functions from hidden states to logits.
    """

    arithmetic: str
    name: str
    body: Callable[[Tensor], Tensor]
    heads: dict[str, Callable[[Tensor], Tensor]]


def read_prose(text: str) -> str:
    """Return the paragraphs of a reStructuredText file that are prose, separated by empty lines."""
    paragraphs = []
    for block in text.split("\n\n"):
        lines = block.strip("\n").split("\n")
        words = " ".join(lines).split()
        if (
            len(words) >= LEAST_WORDS
            and words[-1].endswith((".", ":"))
            and all(line[:1].isalpha() for line in lines)
        ):
            paragraphs.append(" ".join(words))
    return "\n\n".join(paragraphs)


def read_prompts(folder: Path, tokenizer: Any, prompts: int, tokens: int) -> list[Tensor]:
    """Return the first `tokens` tokens of the prose of `prompts` files, which are chosen by the hashes of their paths.

    Raises:
        ValueError: The folder contains fewer than `prompts` files with `tokens` tokens of prose.
    """
    found: list[Tensor] = []
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.rst*")]
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        if name.startswith("translations/"):
            continue
        opened = gzip.open if name.endswith(".gz") else open
        with opened(folder / name, "rt", encoding="utf-8", errors="replace") as file:
            ids = tokenizer(read_prose(file.read()))["input_ids"]
        if len(ids) >= tokens:
            found.append(torch.tensor([ids[:tokens]]))
        if len(found) == prompts:
            return found
    raise ValueError(
        f"{folder} contains {len(found)} files with {tokens} tokens of prose, but {prompts} are needed"
    )


def random_prompts(vocabulary: int, prompts: int, tokens: int) -> list[Tensor]:
    """Return uniformly random tokens, seed 0, as in Fast-LLM#525."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocabulary, (1, tokens), generator=generator) for _ in range(prompts)]


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of each next token: shape (tokens - 1,), float64, for a batch of one.

    The softmax is computed in float32. Its error, about 1e-6, is a thousandth of the smallest error that is measured.
    """
    logits, chosen = logits[0, :-1].float(), tokens[0, 1:]
    return logits.gather(1, chosen[:, None])[:, 0].double() - logits.logsumexp(1)


def recipe_variant(load: Callable[[], nn.Module], name: str, like_layers: dict[str, Any]) -> Variant:
    rounded = load()
    custom_fp.apply_recipe(rounded, name)
    own = load()
    custom_fp.apply_recipe(own, name, **like_layers)
    heads = {"own": own.lm_head, "fp32": load().lm_head}
    if name not in ONLY_16_BITS:
        bf16 = load()
        custom_fp.apply_recipe(bf16, "bf16")
        heads["bf16"] = bf16.lm_head
    return Variant("recipe", name, partial(_hidden_states, rounded), heads)


def cast_variant(load: Callable[[], nn.Module], name: str) -> Variant:
    cast = load().to(CASTS[name])
    for module in cast.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(_linear_with_float32_sums, module)  # type: ignore[method-assign]
    heads = {"own": cast.lm_head, "fp32": lambda hidden: hidden.float() @ cast.lm_head.weight.float().T}
    return Variant("cast", name, partial(_hidden_states, cast), heads)


def _hidden_states(model: nn.Module, tokens: Tensor) -> Tensor:
    return model.model(tokens, use_cache=False).last_hidden_state


def _linear_with_float32_sums(module: nn.Linear, x: Tensor) -> Tensor:
    """Multiply as GPUs do: exact products of 16-bit operands, float32 sums, and a 16-bit result.

    The CPU's own kernels for 16 bits are five times slower on processors without such instructions.
    """
    bias = None if module.bias is None else module.bias.float()
    return nn.functional.linear(x.float(), module.weight.float(), bias).to(x.dtype)


def measure(
    variant: Variant, prompts: Sequence[Tensor], reference: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """Return the differences to the reference log-probabilities: for each head, one tensor per prompt."""
    differences: dict[str, list[Tensor]] = {head: [] for head in HEADS if head in variant.heads}
    for tokens, expected in zip(prompts, reference, strict=True):
        hidden = variant.body(tokens)
        for head, found in differences.items():
            found.append(log_probabilities(variant.heads[head](hidden), tokens) - expected)
    return differences


def summarize(differences: Sequence[Tensor], reference: Sequence[Tensor]) -> dict[str, float]:
    """Return the relative RMS error with its interval over prompts, and the mean, RMS and largest difference.

    The RMS and the largest difference are in nats. The mean is divided by the RMS of the reference. Differences that
    are NaN or infinite make the results NaN.
    """
    squares = np.array([float(x.square().sum()) for x in differences])
    scales = np.array([float(r.square().sum()) for r in reference])
    every, every_reference = torch.cat(list(differences)), torch.cat(list(reference))
    rms, scale = every.square().mean().sqrt(), every_reference.square().mean().sqrt()
    low, high = _interval(squares, scales)
    return {
        "rms_relative": float(rms / scale),
        "low": low,
        "high": high,
        "mean_relative": float(every.mean() / scale),
        "rms_nats": float(rms),
        "largest_nats": float(every.abs().max()),
        "reference_rms_nats": float(scale),
        "prompts": len(differences),
        "tokens": every.numel(),
    }


def _interval(squares: np.ndarray, scales: np.ndarray) -> tuple[float, float]:
    def error(squares: np.ndarray, scales: np.ndarray, axis: int) -> np.ndarray:
        return np.sqrt(squares.sum(axis) / scales.sum(axis))

    if not squares.any():
        return 0.0, 0.0
    found = bootstrap(
        (squares, scales),
        error,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(0),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def variants(load: Callable[[], nn.Module]) -> Iterator[Variant]:
    for name in CASTS:
        yield cast_variant(load, name)
    for name, like_layers in RECIPES.items():
        yield recipe_variant(load, name, like_layers)


def measure_all(load: Callable[[], nn.Module], inputs: dict[str, list[Tensor]]) -> pd.DataFrame:
    """Return one row for each combination of inputs, variant and output head."""
    exact = load()
    reference = {
        kind: [log_probabilities(exact(tokens).logits, tokens) for tokens in prompts]
        for kind, prompts in inputs.items()
    }
    rows = []
    for variant in variants(load):
        for kind, prompts in inputs.items():
            started = time.monotonic()
            for head, differences in measure(variant, prompts, reference[kind]).items():
                names = {"inputs": kind, "arithmetic": variant.arithmetic, "name": variant.name, "head": head}
                rows.append(names | summarize(differences, reference[kind]))
            print(
                f"{kind}, {variant.arithmetic} {variant.name}: {time.monotonic() - started:.0f} s", flush=True
            )
    return pd.DataFrame(rows)


def as_markdown(rows: pd.DataFrame, header: str) -> str:
    """Return the tables of the measured and the published errors, in percent."""
    lines = ["# Error of token log-probabilities: SmolLM2-135M-Instruct", "", header]
    for kind, of_kind in rows.groupby("inputs", sort=False):
        first = of_kind.iloc[0]
        lines += [
            "",
            f"## {str(kind).capitalize()}",
            "",
            f"{first.prompts} prompts with {first.tokens:,} predicted tokens. The RMS of the float32 "
            f"log-probabilities is {first.reference_rms_nats:.2f} nats.",
            "",
            "| arithmetic | own head | bf16 head | fp32 head | mean (fp32 head) | RMS in nats (fp32 head) |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for (arithmetic, name), heads in of_kind.groupby(["arithmetic", "name"], sort=False):
            cells = [_cell(heads[heads["head"] == head]) for head in HEADS]
            exact = heads[heads["head"] == "fp32"].iloc[0]
            label = f"`{name}`" if arithmetic == "recipe" else f"cast to {name}"
            cells += [f"{100 * exact.mean_relative:+.3f}%", f"{exact.rms_nats:.4f}"]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Published",
        "",
        f"The source is [ServiceNow/Fast-LLM#525]({SOURCE}): the comments of 2026-05-29 (SmolLM2-135M) and 2026-06-01",
        "(Qwen2.5-0.5B). The authors call the figures of SmolLM2-135M correct, but superseded by the others.",
        "Their texts, weights and kernels differ from those here. Their fp32 head multiplies 16-bit weights and hidden",
        "states in float32, as the fp32 head of the cast models above.",
        "",
        "| model | inputs | engine | bf16 | bf16, fp32 head | fp16 | fp16, fp32 head |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for model, kind, engine, *errors in PUBLISHED:
        cells = ["" if error is None else f"{error:.3f}%" for error in errors]
        lines.append(f"| {model} | {kind} | {engine} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    row = rows.iloc[0]
    return f"{100 * row.rms_relative:.3g}% ({100 * row.low:.3g} to {100 * row.high:.3g})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path(MODEL), help=f"default: {MODEL}")
    parser.add_argument(
        "--text", type=Path, default=Path(TEXT), help=f"folder of .rst files (default: {TEXT})"
    )
    parser.add_argument("--prompts", type=int, default=24, help="prompts of text (default: 24)")
    parser.add_argument("--random-prompts", type=int, default=6, help="of random tokens (default: 6)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per prompt (default: 256)")
    parser.add_argument("--to", type=Path, help="folder for the results. Without it, the tables are printed")
    arguments = parser.parse_args()
    started = time.monotonic()
    commit = clean_commit() if arguments.to else git_commit() or "unknown"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = arguments.model.expanduser()
    if not folder.is_dir():
        parser.error(f"{folder} does not exist. Run `python scripts/pretrained_models.py smollm2` first")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    try:
        inputs = {"text": read_prompts(arguments.text, tokenizer, arguments.prompts, arguments.tokens)}
    except ValueError as error:
        parser.error(str(error))
    inputs["random tokens"] = random_prompts(len(tokenizer), arguments.random_prompts, arguments.tokens)
    with torch.inference_mode():
        rows = measure_all(lambda: AutoModelForCausalLM.from_pretrained(folder).eval(), inputs)
    tokens_sha256 = hashlib.sha256(torch.cat(inputs["text"]).numpy().tobytes()).hexdigest()
    text = as_markdown(rows, HEADER.format(command=COMMAND, commit=commit[:10], tokens_sha256=tokens_sha256))
    print(text)
    if arguments.to:
        arguments.to.mkdir(parents=True, exist_ok=True)
        write_text(arguments.to / CSV, rows.to_csv(index=False, lineterminator="\n", float_format="%.6g"))
        write_text(arguments.to / MARKDOWN, text)
        write_made_by(arguments.to / "made_by.txt", commit, started, [MARKDOWN, CSV])
    return 0


if __name__ == "__main__":
    sys.exit(main())
