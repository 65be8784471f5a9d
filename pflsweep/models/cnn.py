"""The CNN of McMahan et al. (AISTATS 2017).

"Communication-Efficient Learning of Deep Networks from Decentralized Data", https://arxiv.org/abs/1602.05629.
The convolutions have no padding, as in PGFed and FedALA; the original pads. FedFomo names the original, and has this
network here. 582,026 parameters on MNIST, 878,538 on CIFAR-10.
"""

from collections.abc import Sequence

from torch import nn

from pflsweep.models.blocks import convolved, model_of
from pflsweep.models.layers import Conv2d, Linear

FAMILY = "convolutional"


def build(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return blocks conv1, conv2, fc1, head. x [B, channels, H, W] -> [B, classes]; H, W at least 16.

    Weights come from torch's global generator. Raises UserError on a shape that does not fit.
    """
    height, width = convolved("cnn", shape)
    return model_of(
        conv1=nn.Sequential(Conv2d(shape[0], 32, 5), nn.MaxPool2d(2), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU()),
        fc1=nn.Sequential(nn.Flatten(), Linear(64 * height * width, 512), nn.ReLU()),
        head=nn.Linear(512, classes),
    )
