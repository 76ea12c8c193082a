"""Random changes of a batch of images, drawn from one generator and computed for the whole batch at once."""

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_flip(x_BxCxHxW: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Pad by `padding` zeros, crop back at a random place, mirror half of the images (arXiv 1512.03385, 4.2).

    Any float dtype and device; the generator lives on the CPU, so that every device draws the same numbers.
    """
    B, _, H, W = x_BxCxHxW.shape
    device = x_BxCxHxW.device
    top_B, left_B = torch.randint(0, 2 * padding + 1, (2, B), generator=generator)
    flip_B = torch.rand(B, generator=generator) < 0.5
    row_BxH = top_B[:, None] + torch.arange(H)
    column_BxW = left_B[:, None] + torch.arange(W)
    column_BxW = torch.where(flip_B[:, None], column_BxW.flip(1), column_BxW)
    padded = F.pad(x_BxCxHxW, (padding,) * 4)
    image_B = torch.arange(B, device=device)[:, None, None]
    cropped_BxHxWxC = padded.permute(0, 2, 3, 1)[
        image_B, row_BxH[:, :, None].to(device), column_BxW[:, None, :].to(device)
    ]
    return cropped_BxHxWxC.permute(0, 3, 1, 2).contiguous()
