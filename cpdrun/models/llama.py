"""A small Llama (Touvron et al., arXiv 2302.13971, section 2.2): pre-norm decoder with RMSNorm, rotary positions,
SwiGLU and no biases.

    x = x + project(attention(norm1(x)));   x = x + down(silu(gate(norm2(x))) * up(norm2(x)))

RMSNorm: Zhang and Sennrich, arXiv 1910.07467; rotary positions: Su et al., arXiv 2104.09864, in the halves' order of
GPT-NeoX, a permutation of the paper's; SwiGLU: Shazeer, arXiv 2002.05202. What differs from Llama: the output layer may
share the embedding's weights (Press and Wolf, arXiv 1608.05859), which of so small a model would be a large part.

Legend: B texts a batch, T positions, D channels, H heads of d channels, V tokens of the vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Llama(nn.Module):
    """Tokens (B, T) int64, T <= context -> logits (B, V, T) float32 of each next token.

    hidden: channels inside a block's perceptron; None: 8/3 of the width as in the paper, up to a multiple of 32. Raises
    ValueError for sizes below 1, where the heads do not divide the width into even parts, and for texts longer than
    context.
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
                f"model.heads must divide model.width = {width} into even parts, for pairs of channels are rotated; "
                f"{heads} does not"
            )
        hidden = 32 * math.ceil(8 * width / 3 / 32) if hidden is None else hidden
        self.context, self.theta, self.channels = context, theta, width // heads
        self.symbols = nn.Embedding(num_classes, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, norm_eps) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=norm_eps)
        self.head = nn.Linear(width, num_classes, bias=False)
        if tied:
            self.head.weight = self.symbols.weight
        self._initialise(layers)

    def forward(self, symbol_BxT: Tensor) -> Tensor:
        T = symbol_BxT.shape[1]
        if self.context < T:
            raise ValueError(
                f"texts of {T} tokens (data.context) for a model of {self.context} positions (model.context); leave "
                "model.context=null"
            )
        x_BxTxD = self.symbols(symbol_BxT)
        rotation = rotation_of(T, self.channels, self.theta, x_BxTxD.device)
        for block in self.blocks:
            x_BxTxD = block(x_BxTxD, *rotation)
        return self.head(self.norm(x_BxTxD)).transpose(1, 2)

    def _initialise(self, layers: int) -> None:
        """Normal of .02 (initializer_range of LlamaConfig in Hugging Face's transformers; the paper names none), less
        for what is added to the residual stream, over sqrt(2 layers) as in GPT-2; norms at 1."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                into_residual = name.endswith(("project.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if into_residual else 0.02)


class Block(nn.Module):
    """Causal self-attention and a gated perceptron, each added to its normed input."""

    def __init__(self, width: int, heads: int, hidden: int, norm_eps: float):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=norm_eps), nn.RMSNorm(width, eps=norm_eps)
        self.attention, self.mlp = Attention(width, heads), SwiGLU(width, hidden)

    def forward(self, x_BxTxD: Tensor, cos_Txd: Tensor, sin_Txd: Tensor) -> Tensor:
        x = x_BxTxD + self.attention(self.norm1(x_BxTxD), cos_Txd, sin_Txd)
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    """Each head over the positions up to its own; queries and keys are rotated."""

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
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotation_of(T: int, channels: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, (T, d) float32 each, of position * theta^(-2i/d), i < d/2; once more for the second half of d."""
    rate_i = theta ** (-torch.arange(0, channels, 2, device=device) / channels)
    angle_Txd = torch.outer(torch.arange(T, device=device), rate_i).repeat(1, 2)
    return angle_Txd.cos(), angle_Txd.sin()


def rotated(x_BxHxTxd: Tensor, cos_Txd: Tensor, sin_Txd: Tensor) -> Tensor:
    """Each channel i < d/2 and its partner i + d/2 turned by the angle of their position."""
    first, second = x_BxHxTxd.chunk(2, dim=-1)
    return x_BxHxTxd * cos_Txd + torch.cat([-second, first], dim=-1) * sin_Txd
