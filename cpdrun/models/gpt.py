"""A small GPT: a pre-norm decoder with learned positions and tied embeddings (Radford et al. 2019, GPT-2).

Shapes: B texts per batch, T positions, D channels, H heads of d channels, V symbols (256 for bytes).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPT(nn.Module):
    """A small GPT.

    The model takes symbols (B, T) int64 with T <= context and returns the logits (B, V, T) float32 of the next symbol
    at each position.

    Args:
        num_classes: The number of symbols V.
        context: The largest number of positions.
        layers: The number of blocks.
        heads: The number of attention heads of a block.
        width: The number of channels D.
        dropout: The probability of dropout after the embedding and after each half of a block.

    Raises:
        ValueError: The number of heads does not divide the width, or a text is longer than `context`.
    """

    def __init__(self, num_classes: int, context: int, layers: int, heads: int, width: int, dropout: float):
        super().__init__()
        if width % heads:
            raise ValueError(f"model.heads must divide model.width = {width}; {heads} does not")
        self.symbols = nn.Embedding(num_classes, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self._initialize(layers)

    def forward(self, symbol_BxT: Tensor) -> Tensor:
        T = symbol_BxT.shape[1]
        if len(self.positions.weight) < T:
            raise ValueError(
                f"texts of {T} symbols (data.context) are longer than the {len(self.positions.weight)} positions of "
                "the model (model.context); set model.context=null to use the context of the data"
            )
        positions_TxD = self.positions(torch.arange(T, device=symbol_BxT.device))
        x_BxTxD = self.blocks(self.dropout(self.symbols(symbol_BxT) + positions_TxD))
        return F.linear(self.norm(x_BxTxD), self.symbols.weight).transpose(1, 2)

    def _initialize(self, layers: int) -> None:
        """Initialize the weights as GPT-2 does.

        Matrices are drawn from a normal distribution with standard deviation 0.02. For matrices whose output is added
        to the residual stream, the standard deviation is divided by sqrt(2 layers).
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                into_residual = name.endswith(("project.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if into_residual else 0.02)


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron. Each reads the normalized input and is added to the input."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BxTxD: Tensor) -> Tensor:
        x = x_BxTxD + self.dropout(self.project(self._attend(self.norm1(x_BxTxD))))
        return x + self.dropout(self.mlp(self.norm2(x)))

    def _attend(self, x_BxTxD: Tensor) -> Tensor:
        heads = self.qkv(x_BxTxD).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q_BxHxTxd, k_BxHxTxd, v_BxHxTxd = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(q_BxHxTxd, k_BxHxTxd, v_BxHxTxd, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)
