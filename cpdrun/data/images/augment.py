"""Random changes of a batch of images, drawn from one generator and computed for the whole batch at once."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_flip(
    x_BxCxHxW: Tensor, padding: int, generator: torch.Generator, *, reflect: bool = False
) -> Tensor:
    """Pad by `padding` zeros, crop back at a random place, mirror half of the images (arXiv 1512.03385, 4.2).

    reflect: pad with the image mirrored at its edge, which itself is not repeated. Any float dtype and device; the
    generator lives on the CPU, so that every device draws the same numbers.
    """
    B, _, H, W = x_BxCxHxW.shape
    device = x_BxCxHxW.device
    top_B, left_B = torch.randint(0, 2 * padding + 1, (2, B), generator=generator)
    flip_B = torch.rand(B, generator=generator) < 0.5
    row_BxH = top_B[:, None] + torch.arange(H)
    column_BxW = left_B[:, None] + torch.arange(W)
    column_BxW = torch.where(flip_B[:, None], column_BxW.flip(1), column_BxW)
    padded = F.pad(x_BxCxHxW, (padding,) * 4, mode="reflect" if reflect else "constant")
    image_B = torch.arange(B, device=device)[:, None, None]
    cropped_BxHxWxC = padded.permute(0, 2, 3, 1)[
        image_B, row_BxH[:, :, None].to(device), column_BxW[:, None, :].to(device)
    ]
    return cropped_BxHxWxC.permute(0, 3, 1, 2).contiguous()


def cutout(x_BxCxHxW: Tensor, size: int, generator: torch.Generator, *, whole: bool = False) -> Tensor:
    """A square of `size` pixels of each image set to 0, its centre anywhere, cut off at the edges (arXiv 1708.04552).

    whole: the square lies in the image with all of its pixels (size is then at most H and W). Any float dtype and
    device; the generator lives on the CPU. A new tensor.
    """
    B, _, H, W = x_BxCxHxW.shape
    if whole:
        top_B = torch.randint(0, H - size + 1, (B, 1), generator=generator)
        left_B = torch.randint(0, W - size + 1, (B, 1), generator=generator)
    else:
        top_B = torch.randint(0, H, (B, 1), generator=generator) - size // 2
        left_B = torch.randint(0, W, (B, 1), generator=generator) - size // 2
    row_BxH = (torch.arange(H) >= top_B) & (torch.arange(H) < top_B + size)
    column_BxW = (torch.arange(W) >= left_B) & (torch.arange(W) < left_B + size)
    hole_BxHxW = row_BxH[:, :, None] & column_BxW[:, None, :]
    return x_BxCxHxW.masked_fill(hole_BxHxW[:, None].to(x_BxCxHxW.device), 0.0)


def random_resized_crop(
    height: int, width: int, smallest_area: float, generator: torch.Generator
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a part of an image: its share of the area uniform in smallest_area..1, the
    logarithm of width/height uniform in that of 3/4..4/3 (arXiv 1409.4842, section 6). After ten parts that do not
    fit, the largest central square."""
    for _ in range(10):
        share, ratio = torch.rand(2, generator=generator).tolist()
        area = height * width * (smallest_area + (1 - smallest_area) * share)
        aspect = math.exp(math.log(3 / 4) + ratio * math.log(16 / 9))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return randint(height - h + 1, generator), randint(width - w + 1, generator), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def randint(n: int, generator: torch.Generator) -> int:
    """One of 0..n-1."""
    return int(torch.randint(0, n, (), generator=generator))
