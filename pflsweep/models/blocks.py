"""The form of every model: an nn.Sequential of named blocks, bottom to top, whose last one is a single linear head."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from pflsweep.models.layers import number_layers
from pflsweep.util.errors import UserError, nearest


class MalformedError(TypeError):
    """A model that is not a nn.Sequential of blocks with one nn.Linear as its head."""


def model_of(**blocks: nn.Module) -> nn.Sequential:
    """Return a model of named blocks. The last one is `head`, one nn.Linear; the extractor is all blocks before it.

    So extractor and head are contiguous slices of the parameter vector. Raises MalformedError if the last block is
    something else.
    """
    name, head = list(blocks.items())[-1]
    if name != "head" or not isinstance(head, nn.Linear):
        raise MalformedError(
            f"the last block of a model is `head`, one nn.Linear; here it is `{name}`, {type(head).__name__}"
        )
    model = nn.Sequential(OrderedDict(blocks))
    number_layers(model)
    return model


def head_of(model: nn.Module) -> nn.Linear:
    """Return a model's last block.

    Raises MalformedError if the model is not a nn.Sequential of blocks, or its last block no nn.Linear.
    """
    if not isinstance(model, nn.Sequential):
        raise MalformedError(
            f"a model is an nn.Sequential of blocks, the last one nn.Linear; here it is {type(model).__name__}"
        )
    head = model[-1] if len(model) else None
    if not isinstance(head, nn.Linear):
        raise MalformedError(f"the last block of a model is its head, one nn.Linear; here it is {type(head).__name__}")
    return head


def unsuited(model: nn.Module) -> str:
    """Return why a model cannot be trained as one vector of all its parameters, or '' where it can."""
    if type(model).forward is not nn.Sequential.forward:
        return f"{type(model).__name__} has a `forward` of its own, which blocks would lose: put it into a block"
    if model._forward_hooks or model._forward_pre_hooks:
        return "it has a hook on the whole model, which blocks would lose: put it on a block"
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
        if isinstance(weight, nn.parameter.UninitializedParameter):
            return f"`{name}` has no size yet: run the model once on a row, torch.zeros(1, *shape), where it is built"
        if not weight.is_floating_point():
            return f"`{name}` is {weight.dtype}: a parameter has to be real, so keep real and imaginary part as two"
        if not weight.requires_grad:
            return f"`{name}` is frozen, but all parameters are trained: compute with a constant in `forward`"
    if len(list(model.named_parameters(remove_duplicate=False))) > len(list(model.parameters())):
        return "two layers share a parameter: give each its own"
    return ""


def require_texts(name: str, shape: Sequence[int], numbers: dict[str, int]) -> None:
    """Raise UserError if a row is not a text, a sequence of token ids, or one of the model's numbers is below 1.

    name: the option `model=name`, for the message. shape: of one row. numbers: options of the model.
    """
    if len(shape) != 1:
        raise UserError(
            f"model={name} reads texts, rows of token ids; one row here has shape {list(shape)}. Images: model=cnn."
        )
    for option, value in numbers.items():
        if value < 1:
            raise UserError(f"model.{option} is {value}: it must be at least 1.")


def require_padding(padding: str, known: Sequence[str]) -> None:
    """Raise UserError if model.padding is none of the known values."""
    if padding not in known:
        guess = nearest(str(padding), list(known))
        raise UserError(f"model.padding is '{padding}': it must be {' or '.join(known)}.{guess}")


def require_token_ids(name: str, x: Tensor) -> None:
    """Raise UserError if rows are no token ids. name: the option `model=name`, for the message."""
    if x.is_floating_point():
        raise UserError(f"model={name} reads texts, rows of token ids; this dataset's rows are other numbers.")


def require_images(name: str, shape: Sequence[int], least: int) -> None:
    """Raise UserError if a row is not an image [channels, H, W], or an image with a side below `least` pixels.

    name: the option `model=name`, for the message. shape: of one row.
    """
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
    """Return height and width after twice a 5x5 convolution without padding and pooling by 2.

    shape: (channels, H, W). Raises UserError if the data are no images, or too small. In the models that use this,
    ReLU comes after pooling: the result is the same, for a quarter of the values.
    """
    require_images(name, shape, 16)
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    return height, width


def require_alpha(alpha: float) -> None:
    """Raise UserError if the factor of a network's residual branches is not above 0 and at most 10."""
    if not 0 < alpha <= 10:
        raise UserError(
            f"model.alpha is {alpha}: the factor of each residual branch must be above 0 and at most 10, such as 0.2."
        )
