"""The CNN of McMahan et al. (see cnn.py) with a normalisation layer after each convolution."""

from collections.abc import Sequence

from torch import nn

from pflsweep.models.blocks import convolved, model_of
from pflsweep.models.layers import Conv2d, Linear, norm_layer

FAMILY = "convolutional"


def build(shape: Sequence[int], classes: int, norm: str, groups: int) -> nn.Sequential:
    """Return blocks conv1, conv2, fc1, head. x [B, channels, H, W] -> [B, classes]; H, W at least 16.

    norm: `group` (GroupNorm of `groups` groups), `batch` or `none` (see layers.norm_layer). Weights come from
    torch's global generator. Raises UserError on a shape or groups that do not fit, and on an unknown norm.
    """
    height, width = convolved("cnn_norm", shape)
    return model_of(
        conv1=nn.Sequential(Conv2d(shape[0], 32, 5), norm_layer(norm, 32, groups), nn.MaxPool2d(2), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(32, 64, 5), norm_layer(norm, 64, groups), nn.MaxPool2d(2), nn.ReLU()),
        fc1=nn.Sequential(nn.Flatten(), Linear(64 * height * width, 512), nn.ReLU()),
        head=nn.Linear(512, classes),
    )
