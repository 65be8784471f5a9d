"""The CNN of FedPG's CIFAR-10 rows: two convolutions (64, 64 channels), three dense layers (384, 192, K).

The paper states only the widths. Kernels of 5x5, no padding, and dropout of 0.2 and 0.5 after the first two dense
layers are taken from the same authors' public code (FedLF, FedMDFG). 797,962 parameters on CIFAR-10.
"""

from collections.abc import Sequence

from torch import nn

from pflsweep.models.blocks import convolved, model_of
from pflsweep.models.layers import Conv2d, Dropout, Linear
from pflsweep.util.errors import UserError

FAMILY = "convolutional"


def build(shape: Sequence[int], classes: int, dropout: Sequence[float]) -> nn.Sequential:
    """Return blocks conv1, conv2, fc1, fc2, head. x [B, channels, H, W] -> [B, classes]; H, W at least 16.

    dropout: the shares of units dropped in fc1 and in fc2. Weights come from torch's global generator. Raises UserError
    on a shape that does not fit, and on shares outside [0, 1).
    """
    if len(dropout) != 2 or not all(0 <= p < 1 for p in dropout):
        raise UserError(f"model.dropout is {list(dropout)}: it must be two shares in [0, 1), of fc1 and of fc2.")
    height, width = convolved("cnn_pg", shape)
    return model_of(
        conv1=nn.Sequential(Conv2d(shape[0], 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(64, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        fc1=nn.Sequential(nn.Flatten(), Linear(64 * height * width, 384), nn.ReLU(), Dropout(dropout[0])),
        fc2=nn.Sequential(Linear(384, 192), nn.ReLU(), Dropout(dropout[1])),
        head=nn.Linear(192, classes),
    )
