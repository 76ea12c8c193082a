"""A graph that changes: in round t worker i receives from i - 2^(t mod log2 N).

With N a power of two, log2 N rounds are the exact mean of all (Assran et al., "Stochastic Gradient Push for Distributed
Deep Learning", arXiv 1811.10792, appendix A; Ying et al., arXiv 2110.13363, section 4).
"""

from cpdrun.comm.gossip.topology.base import Topology


class OnePeerExponential(Topology):
    """One neighbour a round, 1, 2, 4, 8 ... workers before."""

    def rounds(self, N: int) -> list[list[set[int]]]:
        return [[{(i - (1 << k)) % N} for i in range(N)] for k in range(max(1, (N - 1).bit_length()))]
