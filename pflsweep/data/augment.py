"""Augmentation of training batches: whole batches at once, drawn from the batch's key, the same for every method."""

import torch
from torch import Tensor

from pflsweep.ops import random

KINDS = ("none", "crop_flip")
_OWN = 1 << 41  # what tells these draws from the dropout of the same step
_PART = 8  # padding is a side / _PART: 4 pixels of 32, 8 of 64


def crop_flip(x: Tensor, keys: Tensor, black: Tensor) -> Tensor:
    """Each image padded by an eighth of its side, cut back to its size at a random place, flipped in half of the cases.

    As He et al. (CVPR 2016, section 4.2) for CIFAR. x [C, B, channels, H, W]; keys [C] int64; black [channels, 1, 1]
    what the padding is after normalisation -> x's shape. Row i of a client depends on its key and i alone.
    """
    rows, channels, height, width = x.shape[1:]
    u = torch.func.vmap(lambda key: random.uniform(random.fold(key, _OWN), (rows, 3)))(keys).flatten(0, 1)
    down, across = (_places(u[:, axis], side) for axis, side in enumerate((height, width)))
    across = torch.where(u[:, 2:] < 0.5, across.flip(1), across)
    inside = ((down >= 0) & (down < height))[:, None, :, None] & ((across >= 0) & (across < width))[:, None, None, :]
    flat = x.flatten(0, 1)
    moved = flat.gather(2, down.clamp(0, height - 1)[:, None, :, None].expand(-1, channels, -1, width))
    moved = moved.gather(3, across.clamp(0, width - 1)[:, None, None, :].expand(-1, channels, height, -1))
    return torch.where(inside, moved, black).view(x.shape)


def _places(u: Tensor, side: int) -> Tensor:
    """u [n] in [0, 1) -> [n, side] which line of the image each line of the crop is; outside is padding."""
    reach = side // _PART
    shift = (u * (2 * reach + 1)).long() - reach
    return shift[:, None] + torch.arange(side, device=u.device)
