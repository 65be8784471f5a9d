"""Augmentation of whole training batches. Draws depend on the batch's key, so they are the same for every method."""

import torch
from torch import Tensor

from pflsweep.ops import random

KINDS = ("none", "crop_flip")
# The padding is side // _PART pixels: 4 for 32, 8 for 64.
_PART = 8


def crop_flip(x: Tensor, keys: Tensor, black: Tensor) -> Tensor:
    """Return random crops of padded images, half of them flipped, as He et al. (CVPR 2016, section 4.2) do for CIFAR.

    Each image is padded by an eighth of its side and cropped to its size at a random place. x [C, B, channels, H, W];
    keys [C] int64; black [channels, 1, 1] the normalised value of the padding -> x's shape. Row i of a client depends
    on its key and i alone.
    """
    rows, channels, height, width = x.shape[1:]
    u = torch.func.vmap(lambda key: random.uniform(random.fold(key, random.CROPS), (rows, 3)))(keys).flatten(0, 1)
    down, across = (_places(u[:, axis], side) for axis, side in enumerate((height, width)))
    across = torch.where(u[:, 2:] < 0.5, across.flip(1), across)
    inside = ((down >= 0) & (down < height))[:, None, :, None] & ((across >= 0) & (across < width))[:, None, None, :]
    flat = x.flatten(0, 1)
    moved = flat.gather(2, down.clamp(0, height - 1)[:, None, :, None].expand(-1, channels, -1, width))
    moved = moved.gather(3, across.clamp(0, width - 1)[:, None, None, :].expand(-1, channels, height, -1))
    return torch.where(inside, moved, black).view(x.shape)


def _places(u: Tensor, side: int) -> Tensor:
    """Return the image line of each line of a crop. u [n] in [0, 1) -> [n, side]; lines outside are padding."""
    reach = side // _PART
    shift = (u * (2 * reach + 1)).long() - reach
    return shift[:, None] + torch.arange(side, device=u.device)
