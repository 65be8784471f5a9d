"""FedPG's NF-ResNet-18 compared with its definition, written out layer by layer."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.models import nfresnet_pg

GAMMA = 1.7139588594436646
ALPHA = 0.3


def conv(x: Tensor, weights: dict[str, Tensor], name: str, stride: int, padding: int) -> Tensor:
    w, gain = weights[f"{name}.weight"], weights[f"{name}.gain"]
    flat = w.flatten(1)
    standard = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, correction=0, keepdim=True) + 1e-5)
    return F.conv2d(x, gain * (standard / flat.shape[1] ** 0.5).view_as(w), None, stride, padding)


def written_out(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(conv(x, weights, "conv1.0", 1, 1)), 3, 2, 1)
    for stage in (1, 2, 3):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            branch = conv(F.relu(x) * GAMMA, weights, f"{name}.conv1", stride, 1)
            branch = conv(F.relu(branch) * GAMMA, weights, f"{name}.conv2", 1, 1)
            skip = conv(x, weights, f"{name}.shortcut", stride, 0) if block == 0 else x
            x = skip + ALPHA * branch
    return F.linear(x.mean((2, 3)), weights["head.weight"], weights["head.bias"])


@pytest.mark.parametrize("size", [32, 17])
@torch.no_grad()
def test_it_computes_what_the_authors_network_does(size: int) -> None:
    torch.manual_seed(0)
    model = nfresnet_pg.build((3, size, size), 7, ALPHA).double()
    for weight in model.parameters():
        # Gains are all 1 at first
        weight.add_(0.1 * torch.randn_like(weight))
    x = torch.randn(4, 3, size, size, dtype=torch.float64)
    torch.testing.assert_close(model(x), written_out(dict(model.named_parameters()), x))
    assert [weight.shape[0] for name, weight in model.named_parameters() if name.endswith("0.conv1.weight")] == [
        16,
        32,
        64,
    ]
