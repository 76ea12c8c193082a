"""A user's topology, compressor and gossip rule, outside the package."""

import torch

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.gossip.base import Gossip
from cpdrun.comm.gossip.topologies import Topology


class Star(Topology):
    """Worker 0 exchanges with all others."""

    def senders(self, N):
        return [set(range(1, N)), *({0} for _ in range(N - 1))]


class Sign(Compressor):
    """A sign byte for each value, and their mean magnitude in four bytes."""

    def message_bytes(self, n):
        return 4 + n

    def compress(self, x_Wxn, keys):
        mean_Wx1 = torch.stack([row.abs().mean() for row in x_Wxn])[:, None]
        return torch.cat([mean_Wx1.view(torch.uint8), (x_Wxn > 0).to(torch.uint8)], dim=1)

    def decompress(self, data_WxM, n):
        mean_Wx1 = data_WxM[:, :4].clone().view(torch.float32)
        return (data_WxM[:, 4:].float() * 2 - 1) * mean_Wx1


class Lazy(Gossip):
    """Mix in one of `every` steps."""

    def __init__(self, *, every, **common):
        super().__init__(**common)
        self.every = every

    def mix(self, x_WxD, *, step, epoch):
        if step % self.every == 0:
            sent = self.exchange(x_WxD, step=step, epoch=epoch)
            for i, w in enumerate(self.mine):
                x_WxD[i] = self.weighted_sum(w, {**sent, w: x_WxD[i]})
