"""A small Llama: a pre-norm decoder with RMSNorm, rotary positions, SwiGLU and no biases.

    x = x + project(attention(norm1(x)))
    x = x + down(silu(gate(norm2(x))) * up(norm2(x)))

Sources: Llama, Touvron et al. (arXiv 2302.13971, section 2.2). RMSNorm, Zhang and Sennrich (arXiv 1910.07467). Rotary
positions, Su et al. (arXiv 2104.09864), where the two channels of a pair are half the channels apart, as in GPT-NeoX.
This is a permutation of the paper's order. SwiGLU, Shazeer (arXiv 2002.05202).

A difference from Llama: the output layer may share the weights of the embedding (Press and Wolf, arXiv 1608.05859),
which would otherwise be a large part of so small a model.

Shapes: B texts per batch, T positions, D channels, H heads of d channels, V tokens of the vocabulary.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Llama(nn.Module):
    """A small Llama.

    The model takes tokens (B, T) int64 with T <= context and returns the logits (B, V, T) float32 of the next token at
    each position.

    Args:
        num_classes: The number of tokens V of the vocabulary.
        context: The largest number of positions.
        layers: The number of blocks.
        heads: The number of attention heads of a block.
        width: The number of channels D.
        hidden: The number of channels inside the perceptron of a block. With None, it is 8/3 of the width, as in the
            paper, rounded up to a multiple of 32.
        theta: The base of the rotary frequencies.
        norm_eps: The epsilon of RMSNorm.
        tied: Whether the output layer shares the weights of the embedding.
        mlp: A function that takes D and `hidden` and returns the perceptron of a block. None means `SwiGLU`.

    Raises:
        ValueError: A size is below 1, `theta` or `norm_eps` is out of range, the heads do not divide the width into
            even parts, or a text is longer than `context`.
    """

    def __init__(
        self,
        num_classes: int,
        context: int,
        layers: int,
        heads: int,
        width: int,
        hidden: int | None,
        theta: float,
        norm_eps: float,
        tied: bool,
        mlp: Callable[[int, int], nn.Module] | None = None,
    ):
        super().__init__()
        sizes = {"layers": layers, "heads": heads, "width": width, "hidden": hidden}
        for key, value in sizes.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"model.{key} must be a whole number, at least 1, not {value}")
        if not (theta > 0 and norm_eps >= 0):
            raise ValueError(
                f"model.theta must be above 0 and model.norm_eps at least 0, not {theta} and {norm_eps}"
            )
        if width % (2 * heads):
            raise ValueError(
                f"model.heads must divide model.width = {width} into even parts, because rotary positions rotate "
                f"pairs of channels; {heads} does not"
            )
        hidden = 32 * math.ceil(8 * width / 3 / 32) if hidden is None else hidden
        self.context, self.theta, self.channels = context, theta, width // heads
        self.symbols = nn.Embedding(num_classes, width)
        make_mlp = mlp or SwiGLU
        self.blocks = nn.ModuleList(
            Block(width, heads, norm_eps, make_mlp(width, hidden)) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=norm_eps)
        self.head = nn.Linear(width, num_classes, bias=False)
        if tied:
            self.head.weight = self.symbols.weight
        self._initialize(layers)

    def forward(self, symbol_BxT: Tensor) -> Tensor:
        T = symbol_BxT.shape[1]
        if self.context < T:
            raise ValueError(
                f"texts of {T} tokens (data.context) are longer than the {self.context} positions of the model "
                "(model.context); set model.context=null to use the context of the data"
            )
        x_BxTxD = self.symbols(symbol_BxT)
        rotation = rotation_of(T, self.channels, self.theta, x_BxTxD.device)
        for block in self.blocks:
            x_BxTxD = block(x_BxTxD, *rotation)
        return self.head(self.norm(x_BxTxD)).transpose(1, 2)

    def _initialize(self, layers: int) -> None:
        """Draw the matrices from a normal distribution with standard deviation 0.02.

        Norms keep their weight of 1. The value 0.02 is the initializer_range of LlamaConfig in Hugging Face's
        transformers, because the paper gives none. As in GPT-2, it is divided by sqrt(2 layers) for matrices whose
        output is added to the residual stream.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                into_residual = name.endswith(("project.weight", "down.weight", "experts.down"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if into_residual else 0.02)


class Block(nn.Module):
    """Causal self-attention and a gated perceptron. Each reads the normalized input and is added to the input."""

    def __init__(self, width: int, heads: int, norm_eps: float, mlp: nn.Module):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=norm_eps), nn.RMSNorm(width, eps=norm_eps)
        self.attention, self.mlp = Attention(width, heads), mlp

    def forward(self, x_BxTxD: Tensor, cos_Txd: Tensor, sin_Txd: Tensor) -> Tensor:
        x = x_BxTxD + self.attention(self.norm1(x_BxTxD), cos_Txd, sin_Txd)
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    """Causal self-attention with rotary positions, which rotate the queries and keys."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x_BxTxD: Tensor, cos_Txd: Tensor, sin_Txd: Tensor) -> Tensor:
        q_BxHxTxd, k_BxHxTxd, v_BxHxTxd = (
            of(x_BxTxD).unflatten(2, (self.heads, -1)).transpose(1, 2) for of in (self.q, self.k, self.v)
        )
        q_BxHxTxd, k_BxHxTxd = (rotated(x, cos_Txd, sin_Txd) for x in (q_BxHxTxd, k_BxHxTxd))
        mixed = F.scaled_dot_product_attention(q_BxHxTxd, k_BxHxTxd, v_BxHxTxd, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """The gated perceptron down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotation_of(T: int, channels: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of the rotation angle of each position and channel, (T, d) float32 each.

    The angle of channel i < d/2 is position * theta^(-2i/d). Channel i + d/2 has the same angle as channel i.
    """
    rate_i = theta ** (-torch.arange(0, channels, 2, device=device) / channels)
    angle_Txd = torch.outer(torch.arange(T, device=device), rate_i).repeat(1, 2)
    return angle_Txd.cos(), angle_Txd.sin()


def rotated(x_BxHxTxd: Tensor, cos_Txd: Tensor, sin_Txd: Tensor) -> Tensor:
    """Rotate each pair of channels i and i + d/2, i < d/2, by the angle of the position."""
    first, second = x_BxHxTxd.chunk(2, dim=-1)
    return x_BxHxTxd * cos_Txd + torch.cat([-second, first], dim=-1) * sin_Txd
