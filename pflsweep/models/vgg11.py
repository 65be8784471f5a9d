"""VGG-11 (configuration A of Simonyan and Zisserman, ICLR 2015, https://arxiv.org/abs/1409.1556) for small images.

Its dense layers read the last convolution's map directly, 1x1 for 32x32 pixels; torchvision's model resizes it to 7x7.
28,144,010 parameters on CIFAR-10. FedFomo's latent partition clusters the outputs of fc2's linear layer.
"""

from collections.abc import Sequence

from torch import nn

from pflsweep.models.blocks import model_of, require_images
from pflsweep.models.layers import Dropout, Linear, norm_layer
from pflsweep.util.errors import UserError

CHANNELS = (64, 128, 256, 256, 512, 512, 512, 512)
POOLED = (1, 2, 4, 6, 8)  # the convolutions that are followed by pooling

FAMILY = "convolutional"


def build(shape: Sequence[int], classes: int, norm: str, groups: int, dropout: float) -> nn.Sequential:
    """Return blocks conv1 to conv8, fc1, fc2, head. x [B, channels, H, W] -> [B, classes]; H, W at least 32.

    norm: the layer after each convolution: `none` as in the original, `batch` or `group` (see layers.norm_layer).
    dropout: the share of units dropped in fc1 and fc2. Weights are initialised as by He et al. 2015, from torch's
    global generator. Raises UserError on a shape or value that does not fit.
    """
    require_images("vgg11", shape, 32)
    if not 0 <= dropout < 1:
        raise UserError(f"model.dropout is {dropout}: it must be a share in [0, 1).")
    blocks: dict[str, nn.Module] = {}
    below = shape[0]
    for number, channels in enumerate(CHANNELS, 1):
        pool = [nn.MaxPool2d(2)] if number in POOLED else []
        conv = nn.Conv2d(below, channels, 3, padding=1)
        blocks[f"conv{number}"] = nn.Sequential(conv, norm_layer(norm, channels, groups), *pool, nn.ReLU())
        below = channels
    flat = below * (shape[1] // 32) * (shape[2] // 32)
    blocks["fc1"] = nn.Sequential(nn.Flatten(), Linear(flat, 4096), nn.ReLU(), Dropout(dropout))
    blocks["fc2"] = nn.Sequential(Linear(4096, 4096), nn.ReLU(), Dropout(dropout))
    model = model_of(**blocks, head=nn.Linear(4096, classes))
    for parameter in model[:-1].parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    return model
