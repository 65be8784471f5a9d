"""LeNet-5 (LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998).

It has ReLU, max pooling and no padding, as in FedPG's appendix B.2 and its authors' public code: 62,006 parameters on
CIFAR-10.
"""

from collections.abc import Sequence

from torch import nn

from pflsweep.models.blocks import convolved, model_of
from pflsweep.models.layers import Conv2d

FAMILY = "convolutional"


def build(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return blocks conv1, conv2, fc1, fc2, head. x [B, channels, H, W] -> [B, classes]; H, W at least 16.

    Weights come from torch's global generator. Raises UserError on a shape that does not fit.
    """
    height, width = convolved("lenet5", shape)
    return model_of(
        conv1=nn.Sequential(Conv2d(shape[0], 6, 5), nn.MaxPool2d(2), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        fc1=nn.Sequential(nn.Flatten(), nn.Linear(16 * height * width, 120), nn.ReLU()),
        fc2=nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
        head=nn.Linear(84, classes),
    )
