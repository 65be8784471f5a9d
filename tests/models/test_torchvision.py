"""Torchvision's models as chains of named blocks: the same models, with our layers where one keeps a state or draws."""

import pytest
import torch
from torch import nn

from pflsweep.models.layers import BatchNorm2d, Dropout, context
from pflsweep.models.torchvision import FAMILIES, OPTIONS, build, supported
from pflsweep.ops.random import tensor_key
from pflsweep.ops.torchvision_compat import torchvision
from pflsweep.util.errors import UserError

# The smallest model of each family, with the side of its test images
ONE_EACH = {
    "alexnet": 63,
    "convnext_tiny": 32,
    "densenet121": 32,
    "efficientnet_b0": 32,
    "efficientnet_v2_s": 32,
    "googlenet": 32,
    "inception_v3": 75,
    "mnasnet0_5": 32,
    "mobilenet_v2": 32,
    "mobilenet_v3_small": 32,
    "regnet_x_400mf": 32,
    "resnet18": 32,
    "resnext50_32x4d": 32,
    "shufflenet_v2_x0_5": 32,
    "vgg11_bn": 32,
    "wide_resnet50_2": 32,
}
AUXILIARY = {"inception_v3": 3_326_696}  # parameters of the auxiliary classifier, which torchvision counts


def test_each_family_is_tried():
    assert all(any(name.startswith(family) for name in ONE_EACH) for family in FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), ONE_EACH.items())
def test_the_logits_are_torchvisions(name, side):
    """Logits are compared in training with dropout off, where batch norm uses the batch in both."""
    torch.manual_seed(3)
    ours = build((3, side, side), 5, name, "batch", 8).double()
    torch.manual_seed(3)
    theirs = torchvision().models.get_model(name, weights=None, num_classes=5, **OPTIONS.get(name, {})).double()
    for module in theirs.modules():
        if isinstance(module, (nn.Dropout, torchvision().ops.StochasticDepth)):
            module.eval()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    x = torch.randn(4, 3, side, side, dtype=torch.float64)
    with torch.no_grad(), context():
        logits = ours(x)
        torch.testing.assert_close(logits, theirs(x), rtol=1e-6, atol=1e-8)
    assert float(logits.std(0).mean()) > 1e-5, "they tell samples apart"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in supported() if not name.startswith("regnet") or "00mf" in name])
def test_parameter_counts_are_the_published_ones(name):
    """Models are built without memory for weights, except small RegNets, which compute their widths with tensors."""
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        model = build((3, 80, 80), 1000, name, "batch", 8)
    published = torchvision().models.get_model_weights(name).DEFAULT.meta["num_params"]
    assert sum(p.numel() for p in model.parameters()) == published - AUXILIARY.get(name, 0)
    assert all(any(True for _ in block.parameters()) for block in model), "FedALA's p counts layers that are trained"
    assert not list(model.buffers())
    strange = (nn.BatchNorm2d, nn.Dropout, torchvision().ops.StochasticDepth)
    assert not any(isinstance(module, strange) for module in model.modules())


def test_blocks_have_torchvisions_names():
    names = list(dict(build((3, 32, 32), 5, "mobilenet_v3_small", "group", 8).named_children()))
    assert names == [*(f"features{k}" for k in range(13)), "classifier0", "head"]


def test_resnet18_is_what_fedala_counts():
    """FedALA, Table 1: 11.182M parameters in all 6 blocks, and 11.172M, 11.024M, 10.499M, 8.399M, 0.005M in the top."""
    for norm in ("batch", "group"):
        model = build((3, 64, 64), 10, "resnet18", norm, 32)
        names, blocks = zip(*model.named_children(), strict=True)
        assert names == ("conv1", "layer1", "layer2", "layer3", "layer4", "head")
        sizes = [sum(p.numel() for p in block.parameters()) for block in blocks]
        assert sum(sizes) == 11_181_642
        top = [round(sum(sizes[-p:]) / 1e6, 3) for p in range(6, 0, -1)]
        assert top == [11.182, 11.172, 11.024, 10.499, 8.399, 0.005]


@pytest.mark.parametrize(("norm", "layer"), [("group", nn.GroupNorm), ("batch", BatchNorm2d), ("none", nn.Identity)])
def test_norm_chooses_what_batch_norm_becomes(norm, layer):
    model = build((3, 32, 32), 5, "mobilenet_v3_small", norm, 8)
    found = [module for module in model.modules() if isinstance(module, layer)]
    assert len(found) == 34
    assert all(getattr(module, "eps", 0.001) == 0.001 for module in found), "as torchvision's"


def test_dropout_and_stochastic_depth_follow_the_key():
    model = build((3, 32, 32), 5, "efficientnet_b0", "group", 8)
    whole = [module.whole for module in model.modules() if isinstance(module, Dropout)]
    assert (sum(whole), len(whole)) == (16, 17)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        quiet = model(x)
        with context(key=tensor_key(0, "a")):
            assert torch.equal(model(x), model(x))
            assert not torch.equal(model(x), quiet)
        with context():
            assert torch.equal(model(x), quiet)


def test_gray_images_are_three_equal_channels():
    torch.manual_seed(0)
    gray = build((1, 32, 32), 5, "mobilenet_v3_small", "group", 8)
    torch.manual_seed(0)
    coloured = build((3, 32, 32), 5, "mobilenet_v3_small", "group", 8)
    x = torch.randn(2, 1, 32, 32)
    assert torch.equal(gray(x), coloured(x.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((3, 32, 32), 5, None, "group", 8), r"model\.name is null: .* model\.name=resnet18\..* alexnet, .*vgg11"),
        (((3, 32, 32), 5, "resnet19", "group", 8), "model.name is 'resnet19'.*Did you mean 'resnet18'.*vgg11, vgg11"),
        (((3, 32, 32), 5, "vit_b_16", "group", 8), "model.name is 'vit_b_16': .*a chain of blocks.*alexnet, "),
        (((3, 32, 32), 5, "squeezenet1_0", "group", 8), "model.name is 'squeezenet1_0': .*a linear layer at its end"),
        (((3, 32, 32), 5, "mobilenet_v2", "bach", 8), "model.norm is 'bach'.*Did you mean 'batch'"),
        (((3, 32, 32), 5, "mobilenet_v2", "group", 7), "model.groups is 7: it must divide .* here 32"),
        (((4, 32, 32), 5, "mobilenet_v2", "group", 8), "1 or 3 channels; these have 4"),
        (((60,), 5, "mobilenet_v2", "group", 8), r"model=torchvision needs images.*\[60\]"),
        (((3, 16, 16), 5, "vgg11", "group", 8), "model.name=vgg11 does not take images of 16x16 pixels"),
    ],
)
def test_errors_name_the_option(arguments, message):
    with pytest.raises(UserError, match=message):
        build(*arguments)
