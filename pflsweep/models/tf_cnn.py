"""The CNN of TensorFlow's tutorial on image classification, which FedFomo's public code calls tf_cnn.

Three convolutions of 3x3 without padding (32, 64 and 64 channels), a dense layer of 64. 122,570 parameters on CIFAR-10.
Source: NVlabs/FedFomo, federated/network.py, TFConvNet.
"""

from collections.abc import Sequence

from torch import nn

from pflsweep.models.blocks import model_of, require_images
from pflsweep.models.layers import Conv2d, Linear

FAMILY = "convolutional"


def build(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return blocks conv1, conv2, conv3, fc1, head. x [B, channels, H, W] -> [B, classes]; H, W at least 18.

    Weights come from torch's global generator. Raises UserError on a shape that does not fit.
    """
    require_images("tf_cnn", shape, 18)
    height, width = (((side - 2) // 2 - 2) // 2 - 2 for side in shape[1:])
    return model_of(
        # ReLU after pooling gives the same result as before it, for a quarter of the values
        conv1=nn.Sequential(Conv2d(shape[0], 32, 3), nn.MaxPool2d(2), nn.ReLU()),
        conv2=nn.Sequential(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
        conv3=nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU()),
        fc1=nn.Sequential(nn.Flatten(), Linear(64 * height * width, 64), nn.ReLU()),
        head=nn.Linear(64, classes),
    )
