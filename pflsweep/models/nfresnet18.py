"""NF-ResNet-18: a ResNet without normalisation, in which scaled weights and branches preserve the variance.

Brock, De and Smith, "Characterizing signal propagation to close the performance gap in unnormalized ResNets", ICLR
2021, https://arxiv.org/abs/2101.08692. It has the basic blocks of ResNet-18 and a stem for small images (a 3x3
convolution, no pooling): 11,220,132 parameters on CIFAR-100, where FedPG uses it. The published code adds a gain to
each residual branch that starts at 0 (SkipInit); it is left out here, as in the public code of FedPG's authors. Their
network is also narrower and shallower (it differs between their releases), pools in its stem and does not divide by
beta; see nfresnet_pg.py.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.models.blocks import model_of, require_alpha, require_images

WIDTHS = (64, 128, 256, 512)
# With this gain relu(z) * GAMMA has variance 1. The value is the published code's; sqrt(2 / (1 - 1 / pi)) is 1.7129.
GAMMA = 1.7139588594436646

FAMILY = "convolutional"


class ScaledConv2d(nn.Conv2d):
    """A convolution whose weights are standardised over the fan-in of each channel (section 4.1, eq. 1).

    W^ = gain (W - mean) / (std sqrt(N)), so that independent inputs of variance 1 give outputs of variance 1.
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, size, stride, padding=size // 2)
        self.gain = nn.Parameter(torch.ones(outputs))
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        fan_in = self.weight[0].numel()
        scale = self.gain.view(-1, 1, 1, 1) * torch.rsqrt((var * fan_in).clamp(min=1e-4))
        return F.conv2d(x, (self.weight - mean) * scale, self.bias, self.stride, self.padding)


class ScaledReLU(nn.Module):
    """relu(x / beta) * gamma, which has variance 1 if x has variance beta^2."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.scale = GAMMA / beta

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) * self.scale


class Block(nn.Module):
    """The residual block h + alpha f(h / beta) of section 3.

    Where the shape changes, the shortcut is a convolution of the activated h / beta. variance: the expected variance of
    h, beta^2.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, alpha: float, variance: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.enter = ScaledReLU(math.sqrt(variance))
        self.conv1 = ScaledConv2d(inputs, outputs, 3, stride)
        self.relu = ScaledReLU()
        self.conv2 = ScaledConv2d(outputs, outputs, 3)
        self.shortcut = ScaledConv2d(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else None

    def forward(self, h: Tensor) -> Tensor:
        z = self.enter(h)
        skip = h if self.shortcut is None else self.shortcut(z)
        return skip + self.alpha * self.conv2(self.relu(self.conv1(z)))


def build(shape: Sequence[int], classes: int, alpha: float) -> nn.Sequential:
    """Return blocks conv1, layer1 to layer4, head. x [B, channels, H, W] -> [B, classes].

    alpha: the factor of each residual branch, above 0 and at most 10. Weights come from torch's global generator.
    Raises UserError if the data are no images, and on another alpha.
    """
    require_alpha(alpha)
    require_images("nfresnet18", shape, 1)
    blocks: dict[str, nn.Module] = {"conv1": ScaledConv2d(shape[0], WIDTHS[0], 3)}
    below, variance = WIDTHS[0], 1.0
    for number, width in enumerate(WIDTHS, 1):
        first = Block(below, width, 1 if number == 1 else 2, alpha, variance)
        variance = 1 + alpha**2  # the convolution on the shortcut has reset it to 1
        second = Block(width, width, 1, alpha, variance)
        variance += alpha**2
        last = [ScaledReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()] if width == WIDTHS[-1] else []
        blocks[f"layer{number}"] = nn.Sequential(first, second, *last)
        below = width
    return model_of(**blocks, head=nn.Linear(below, classes))
