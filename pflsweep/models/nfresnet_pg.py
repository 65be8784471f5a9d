"""The NF-ResNet-18 of FedPG's public code, which is smaller than the published model of that name (see nfresnet18.py).

Source: the authors' platform, pfedplat/model/NFResNet.py (NFResNet18), after Brock, De and Smith, "Characterizing
signal propagation to close the performance gap in unnormalized ResNets", ICLR 2021. It differs from the published
network: a stem of 64 channels with max pooling, three stages of two blocks with 16, 32 and 64 channels, no bias in
convolutions, no division by beta, no gain on the stem's ReLU, shortcuts that convolve h before its activation, no
activation before the head. 189,844 parameters on CIFAR-100.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.models.blocks import model_of, require_alpha, require_images
from pflsweep.models.layers import channels_last
from pflsweep.models.nfresnet18 import ScaledReLU

STEM, WIDTHS = 64, (16, 32, 64)
EPS = 1e-5

FAMILY = "convolutional"


class StandardisedConv2d(nn.Conv2d):
    """A convolution without bias whose weights are gain (w - mean) / (std + EPS) / sqrt(fan-in) in each channel."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, size, stride, padding=size // 2, bias=False)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        weight = self.gain * (self.weight - mean) / (std + EPS) * self.weight[0].numel() ** -0.5
        return F.conv2d(channels_last(x), weight, None, self.stride, self.padding)


class Block(nn.Module):
    """The residual block h + alpha f(h). Where the shape changes, the shortcut is a convolution of h."""

    def __init__(self, inputs: int, outputs: int, stride: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.relu = ScaledReLU()
        self.conv1 = StandardisedConv2d(inputs, outputs, 3, stride)
        self.conv2 = StandardisedConv2d(outputs, outputs, 3)
        self.shortcut = StandardisedConv2d(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def forward(self, h: Tensor) -> Tensor:
        skip = h if self.shortcut is None else self.shortcut(h)
        return skip + self.alpha * self.conv2(self.relu(self.conv1(self.relu(h))))


def build(shape: Sequence[int], classes: int, alpha: float) -> nn.Sequential:
    """Return blocks conv1, layer1 to layer3, head. x [B, channels, H, W] -> [B, classes].

    alpha: the factor of each residual branch, above 0 and at most 10. Weights come from torch's global generator.
    Raises UserError if the data are no images, and on another alpha.
    """
    require_alpha(alpha)
    require_images("nfresnet_pg", shape, 1)
    stem = StandardisedConv2d(shape[0], STEM, 3)
    # ReLU after pooling gives the same result as before it, for a quarter of the values
    blocks: dict[str, nn.Module] = {"conv1": nn.Sequential(stem, nn.MaxPool2d(3, 2, 1), nn.ReLU())}
    below = STEM
    for number, width in enumerate(WIDTHS, 1):
        first = Block(below, width, 1 if number == 1 else 2, alpha)
        last = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if width == WIDTHS[-1] else []
        blocks[f"layer{number}"] = nn.Sequential(first, Block(width, width, 1, alpha), *last)
        below = width
    return model_of(**blocks, head=nn.Linear(below, classes))
