"""A custom dataset: noisy sine, square, triangle and sawtooth waves to classify.

The signals are generated from a fixed seed, so nothing has to be downloaded.
"""

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


class Waves:
    """A dataset of waves of four classes with equal numbers of samples.

    Args:
        samples: The number of samples. A quarter of them is the test set.
        length: The number of values of a signal.
        noise: The standard deviation of the noise.

    Attributes:
        train: The training set. A sample is a float32 signal of shape (1, length) and an int64 label of shape ().
        test: The test set, in the same form.
    """

    num_classes = 4
    in_channels = 1

    def __init__(self, samples: int, length: int, noise: float):
        if samples < 8 or length < 8:
            raise ValueError(f"data.samples and data.length must be at least 8, not {samples} and {length}")
        x_Nx1xL, y_N = _waves(samples, length, noise)
        held_out = samples // 4
        self.train = TensorDataset(x_Nx1xL[held_out:], y_N[held_out:])
        self.test = TensorDataset(x_Nx1xL[:held_out], y_N[:held_out])

    def augment(self, x_Bx1xL: Tensor, generator: torch.Generator) -> Tensor:
        """Return the signals, each with its sign flipped with probability 1/2. The class of a wave stays the same."""
        sign_B = 1 - 2 * torch.randint(0, 2, (len(x_Bx1xL), 1, 1), generator=generator).float()
        return x_Bx1xL * sign_B.to(x_Bx1xL.device)


def _waves(N: int, length: int, noise: float) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    y_N = torch.randperm(N, generator=draws) % 4
    cycles_Nx1 = 1 + 2 * torch.rand(N, 1, generator=draws)
    start_Nx1 = torch.rand(N, 1, generator=draws)
    phase_NxL = (cycles_Nx1 * torch.linspace(0, 1, length) + start_Nx1) % 1
    sine = torch.sin(2 * torch.pi * phase_NxL)
    shapes_4xNxL = torch.stack([sine, sine.sign(), 4 * (phase_NxL - 0.5).abs() - 1, 2 * phase_NxL - 1])
    x_NxL = shapes_4xNxL[y_N, torch.arange(N)] + noise * torch.randn(N, length, generator=draws)
    return x_NxL.unsqueeze(1), y_N
