"""Random augmentation of images.

The random numbers of a batch come from one generator, and whole batches are computed at once.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_flip(
    x_BxCxHxW: Tensor, padding: int, generator: torch.Generator, *, reflect: bool = False
) -> Tensor:
    """Pad the images, crop them at random places to their size, and mirror half of them (arXiv 1512.03385, 4.2).

    Args:
        x_BxCxHxW: The images, of any float dtype, on any device.
        padding: The number of pixels to pad on each side.
        generator: The random generator. It is on the CPU, so the random numbers are the same for every device.
        reflect: Whether to pad with the mirrored image, without a repetition of its edge. By default, the padding is
            zero.

    Returns:
        A new tensor of the same shape.
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
    """Set a square of each image to 0, centered at a random pixel and clipped at the edges (arXiv 1708.04552).

    Args:
        x_BxCxHxW: The images, of any float dtype, on any device.
        size: The height and width of the square.
        generator: The random generator, on the CPU.
        whole: Whether the whole square must be inside the image. The size is then at most H and W.

    Returns:
        A new tensor of the same shape.
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
    """Return a random part of an image as (top, left, height, width) (arXiv 1409.4842, section 6).

    The fraction of the area is uniform in [smallest_area, 1], and the logarithm of width / height is uniform in
    [ln 3/4, ln 4/3]. If ten random parts do not fit into the image, the result is the largest central square.
    """
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
    """Return a random integer from 0 to n - 1."""
    return int(torch.randint(0, n, (), generator=generator))
