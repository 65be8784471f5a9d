"""NF-ResNet-18: without normalisation the signal keeps the variance that its scaling promises."""

import pytest
import torch
from torch import Tensor

from pflsweep.models import nfresnet18
from pflsweep.models.nfresnet18 import Block, ScaledConv2d, ScaledReLU

ALPHA = 0.2


def variance(x: Tensor) -> float:
    """Return the variance of a channel, averaged over channels, without the border, which is padded by zeros."""
    return float(x[:, :, 1:-1, 1:-1].var((0, 2, 3)).mean())


def test_a_convolution_keeps_the_variance_whatever_its_weights():
    torch.manual_seed(0)
    x = torch.randn(32, 16, 12, 12)
    conv = ScaledConv2d(16, 64, 3)
    with torch.no_grad():
        before = conv(x)
        # Weights are standardised, so that neither scale nor mean matters
        conv.weight.mul_(5).add_(3)
        assert torch.allclose(conv(x), before, atol=1e-4)
        assert variance(before) == pytest.approx(1, rel=0.03)
        conv.gain.fill_(2.0)
        conv.bias.fill_(1.0)
        torch.testing.assert_close(conv(x), 2 * before + 1, rtol=1e-3, atol=1e-4)


def test_an_activation_gives_variance_one():
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    assert float(ScaledReLU()(x).var()) == pytest.approx(1, rel=0.02)
    assert float(ScaledReLU(3.0)(3 * x).var()) == pytest.approx(1, rel=0.02)


@pytest.mark.slow
@torch.no_grad()
def test_the_signal_propagates_as_predicted():
    """The variance is 1 + alpha^2 after the first block of each stage and 1 + 2 alpha^2 after its second."""
    torch.manual_seed(0)
    model = nfresnet18.build((3, 64, 64), 10, ALPHA)
    x = model.conv1(torch.randn(48, 3, 64, 64))
    assert variance(x) == pytest.approx(1, rel=0.03)
    seen = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        for block in list(stage)[:2]:
            x = block(x)
            seen.append(variance(x))
    assert seen == pytest.approx([1 + ALPHA**2, 1 + 2 * ALPHA**2] * 4, rel=0.08)


@torch.no_grad()
def test_the_branch_grows_the_variance_by_alpha():
    torch.manual_seed(0)
    block, x = Block(64, 64, 1, 1.0, 4.0), 2 * torch.randn(32, 64, 16, 16)
    assert variance(block(x)) == pytest.approx(5, rel=0.05)
    assert variance(block(x) - x) == pytest.approx(1, rel=0.15)


def test_it_has_no_normalisation_of_activations():
    """A sample's logits depend on that sample alone, in evaluation as in training."""
    model, x = nfresnet18.build((3, 16, 16), 5, ALPHA), torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)
    names = {type(module).__name__ for module in model.modules()}
    assert not any("Norm" in name for name in names)
