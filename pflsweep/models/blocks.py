"""How every model is put together: named blocks, bottom to top, the last one a single linear head."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from pflsweep.models.layers import number_layers
from pflsweep.util.errors import UserError


def model_of(**blocks: nn.Module) -> nn.Sequential:
    """A model of named blocks: its `head` is one nn.Linear, its extractor all before.

    So parts of it are contiguous slices. Raises TypeError where the last block is something else.
    """
    name, head = list(blocks.items())[-1]
    if name != "head" or not isinstance(head, nn.Linear):
        raise TypeError(f"the last block of a model is `head`, one nn.Linear; here it is `{name}`, {head}")
    model = nn.Sequential(OrderedDict(blocks))
    number_layers(model)
    return model


def head_of(model: nn.Module) -> nn.Linear:
    """A model's last block. Raises TypeError where it is no nn.Linear, or the model no nn.Sequential of blocks."""
    if not isinstance(model, nn.Sequential):
        raise TypeError(
            f"a model is an nn.Sequential of blocks, the last one nn.Linear; here it is {type(model).__name__}"
        )
    head = model[-1] if len(model) else None
    if not isinstance(head, nn.Linear):
        raise TypeError(f"the last block of a model is its head, one nn.Linear; here it is {type(head).__name__}")
    return head


def unsuited(model: nn.Module) -> str:
    """Why clients cannot train a model as a vector of all its parameters, the same in each chunk; '' where they can."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p:
            return f"`{name}` draws from PyTorch's own generator, in evaluation too: use pflsweep.models.layers.Dropout"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return (
                f"`{name}` keeps running statistics, which clients do not send: use pflsweep.models.layers.BatchNorm2d"
            )
    for name, _ in model.named_buffers():
        return (
            f"`{name}` is a buffer, which is neither trained nor sent: make it a parameter, or compute it in `forward`"
        )
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            return f"`{name}` is frozen, but all parameters are trained: compute with a constant in `forward`"
    if len(list(model.named_parameters(remove_duplicate=False))) > len(list(model.parameters())):
        return "two layers share a parameter: give each its own"
    return ""


def require_images(name: str, shape: Sequence[int], least: int) -> None:
    """Raises UserError where a row is no image [channels, H, W], or one with a side below `least` pixels."""
    if len(shape) != 3:
        raise UserError(
            f"model={name} needs images [channels, height, width]; one row here has shape {list(shape)}. Use model=mlp."
        )
    if min(shape[1:]) < least:
        raise UserError(
            f"model={name} needs images of at least {least}x{least} pixels; these are {shape[1]}x{shape[2]}. "
            "Use model=mlp."
        )


def convolved(name: str, shape: Sequence[int]) -> tuple[int, int]:
    """Height and width after twice (convolution of 5x5 without padding, pooling by 2, ReLU: which after pooling does
    what it does before it, to a quarter of the values).

    shape: (channels, H, W). Raises UserError where the data are no images, or images too small for it.
    """
    require_images(name, shape, 16)
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    return height, width
