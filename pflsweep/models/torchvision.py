"""torchvision's classification models by name, as named blocks bottom to top with one linear head.

Layers that keep state or draw random numbers (batch normalisation, dropout, stochastic depth) are replaced by those of
layers.py. Otherwise a model gives the same logits as torchvision's with the same weights.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pflsweep.models.blocks import model_of, require_images
from pflsweep.models.layers import NORM_LAYERS, Dropout, context, norm_layer
from pflsweep.ops.torchvision_compat import torchvision
from pflsweep.util.errors import UserError, nearest

_RESNET = "conv1 bn1 relu maxpool layer1 layer2 layer3 layer4 avgpool flatten fc"
_FEATURES = "features avgpool flatten classifier"
# What the `forward` of each family calls, in order: attributes of the model, or keys of ADDED.
FAMILIES = {
    "alexnet": _FEATURES,
    "convnext": "features avgpool classifier",
    "densenet": "features relu pool flatten classifier",
    "efficientnet": _FEATURES,
    "googlenet": "conv1 maxpool1 conv2 conv3 maxpool2 inception3a inception3b maxpool3 inception4a inception4b "
    "inception4c inception4d inception4e maxpool4 inception5a inception5b avgpool flatten dropout fc",
    "inception_v3": "Conv2d_1a_3x3 Conv2d_2a_3x3 Conv2d_2b_3x3 maxpool1 Conv2d_3b_1x1 Conv2d_4a_3x3 maxpool2 Mixed_5b "
    "Mixed_5c Mixed_5d Mixed_6a Mixed_6b Mixed_6c Mixed_6d Mixed_6e Mixed_7a Mixed_7b Mixed_7c avgpool dropout flatten "
    "fc",
    "mnasnet": "layers pool flatten classifier",
    "mobilenet_v2": "features pool flatten classifier",
    "mobilenet_v3": _FEATURES,
    "regnet": "stem trunk_output avgpool flatten fc",
    "resnet": _RESNET,
    "resnext": _RESNET,
    "shufflenet": "conv1 maxpool stage2 stage3 stage4 conv5 pool flatten fc",
    "vgg": _FEATURES,
    "wide_resnet": _RESNET,
}
# Containers of which each child is a block.
OPENED = ("features", "layers", "trunk_output", "classifier")
# Keyword arguments of single models: no auxiliary classifiers.
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}

FAMILY = "convolutional"


class Gray(nn.Module):
    """Repeats the only channel three times. x [B, 1, H, W] -> [B, 3, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


class GlobalMean(nn.Module):
    """Global average pooling. x [B, channels, H, W] -> [B, channels, 1, 1].

    It replaces AdaptiveAvgPool2d(1), which fails under vmap on channels-last tensors (ConvNeXt).
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


# Steps that a `forward` computes by a function, so the model has no attribute of this name.
ADDED = {"relu": nn.ReLU, "pool": GlobalMean, "flatten": nn.Flatten}


def build(shape: Sequence[int], classes: int, name: str | None, norm: str, groups: int) -> nn.Sequential:
    """Return blocks with torchvision's names, the last one `head`. x [B, 1 or 3, H, W] -> [B, classes].

    name: of a model in torchvision.models, such as mobilenet_v3_small. norm: what replaces its batch normalisation, see
    layers.norm_layer. Weights are torchvision's initial ones, from torch's global generator. Raises UserError without a
    name, on one that is not supported, and on a shape or groups that do not fit.
    """
    # Required, since the models take from seconds to hours: none of them is what everybody would expect
    if name is None:
        raise UserError(
            "model.name is null: it must name a model of torchvision, such as mobilenet_v3_small, efficientnet_b0, "
            "shufflenet_v2_x0_5 or vgg11_bn. Set it, as in model.name=resnet18. These can be named: "
            f"{', '.join(supported())}."
        )
    family = _family(name)
    require_images("torchvision", shape, 1)
    if shape[0] not in (1, 3):
        raise UserError(f"model.name={name} needs images of 1 or 3 channels; these have {shape[0]}. Use model=cnn.")
    whole = torchvision().models.get_model(name, weights=None, num_classes=classes, **OPTIONS.get(name, {}))
    _replace(whole, norm, groups)
    blocks = _blocks(([("gray", Gray())] if shape[0] == 1 else []) + list(_chain(whole, FAMILIES[family])))
    model = model_of(**blocks)
    _try(model, tuple(shape), name)
    return model


def supported() -> list[str]:
    """Return the names of the models that `build` supports."""
    models = torchvision().models
    return [name for name in models.list_models(module=models) if name.startswith(tuple(FAMILIES))]


def _family(name: str) -> str:
    """Return the key of FAMILIES for a model's name. Raises UserError on a name that is not supported."""
    known = supported()
    if name not in known:
        raise UserError(
            f"model.name is '{name}': it must be one of torchvision's classifiers that are a chain of blocks with a "
            f"linear layer at its end.{nearest(str(name), known)} These are {', '.join(known)}."
        )
    return next(family for family in FAMILIES if name.startswith(family))


def _replace(model: nn.Module, norm: str, groups: int) -> None:
    """Replace the layers that keep state, draw random numbers or fail under vmap, and make activations not in-place."""
    depth = torchvision().ops.StochasticDepth
    for module in list(model.modules()):
        if getattr(module, "inplace", False):
            setattr(module, "inplace", False)  # noqa: B010 - mypy does not know it
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, norm_layer(norm, child.num_features, groups, child.eps))
            elif isinstance(child, nn.Dropout):
                setattr(module, name, Dropout(child.p))
            elif isinstance(child, depth):
                setattr(module, name, Dropout(child.p, whole=True))
            elif isinstance(child, nn.AdaptiveAvgPool2d) and child.output_size in (1, (1, 1)):
                setattr(module, name, GlobalMean())


def _chain(model: nn.Module, order: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and module of each step of a model's forward pass. order: a value of FAMILIES."""
    for word in order.split():
        part = getattr(model, word, None)
        if part is None:
            yield word, ADDED[word]()
        elif word in OPENED and isinstance(part, nn.Sequential):
            for name, child in part.named_children():
                yield (f"{word}{name}" if name.isdigit() else name), child
        else:
            yield word, part


def _blocks(chain: list[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    """Return a chain of modules grouped into blocks, the last module as `head`.

    A block begins at each module with parameters, except norms. All other modules belong to the block before them.
    """
    blocks: dict[str, list[nn.Module]] = {}
    begun: list[nn.Module] = []
    for name, module in chain[:-1]:
        norm = isinstance(module, NORM_LAYERS)
        if norm or not any(True for _ in module.parameters()):
            begun.append(module)
        elif blocks:
            begun = blocks[name] = [module]
        else:
            begun = blocks[name] = [*begun, module]
    return {**{name: nn.Sequential(*modules) for name, modules in blocks.items()}, "head": chain[-1][1]}


def _try(model: nn.Sequential, shape: tuple[int, ...], name: str) -> None:
    """Run one forward pass. Raises UserError if the images are too small for the model."""
    try:
        with torch.no_grad(), context():
            model(torch.zeros(2, *shape))
    except RuntimeError as error:
        raise UserError(f"model.name={name} does not take images of {shape[1]}x{shape[2]} pixels ({error}).") from error
