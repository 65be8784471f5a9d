"""Every model: parameter counts, shapes, named blocks, readable errors."""

from pathlib import Path

import pytest
import torch
import yaml
from hydra.utils import get_method
from torch import nn

from pflsweep.errors import UserError
from pflsweep.models import cnn, cnn_norm, cnn_pg, mlp
from pflsweep.models.blocks import model_of
from pflsweep.models.layers import context

CONF = sorted((Path(__file__).parents[2] / "conf/model").glob("*.yaml"))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts():
    assert count(cnn.build((1, 28, 28), 10)) == 582_026
    assert count(cnn.build((3, 32, 32), 10)) == 878_538
    assert count(cnn_pg.build((3, 32, 32), 10, (0.2, 0.5))) == 797_962
    assert count(mlp.build((1, 28, 28), 10, [200, 200])) == 199_210
    assert count(mlp.build((60,), 10, [])) == 610
    norms = 2 * (32 + 64)
    assert count(cnn_norm.build((3, 32, 32), 10, "batch", 8)) == 878_538 + norms
    assert count(cnn_norm.build((3, 32, 32), 10, "group", 8)) == 878_538 + norms


@pytest.mark.parametrize("path", CONF, ids=lambda path: path.stem)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 16, 16)])
def test_every_yaml_builds_a_model_of_blocks(path, shape):
    assert path.read_text().startswith("# ")
    config = yaml.safe_load((path).read_text())
    model = get_method(config.pop("_target_"))(shape, 7, **config)
    assert type(model) is nn.Sequential
    assert list(dict(model.named_children()))[-1] == "head"
    assert isinstance(model[-1], nn.Linear)
    assert not list(model.buffers())
    x = torch.randn(2, *shape)
    with context():
        features = model[:-1](x)
        assert features.shape == (2, model[-1].in_features)
        assert model(x).shape == (2, 7)


def test_blocks_are_named_bottom_to_top():
    assert list(dict(cnn.build((3, 32, 32), 10).named_children())) == ["conv1", "conv2", "fc1", "head"]
    assert list(dict(mlp.build((1, 8, 8), 10, [5, 6]).named_children())) == ["fc1", "fc2", "head"]
    assert mlp.build((60,), 10, [])(torch.randn(2, 60)).shape == (2, 10)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cnn.build((1, 8, 8), 10), "model=cnn needs images of at least 16x16.*8x8.*model=mlp"),
        (lambda: cnn_pg.build((60,), 10, (0.2, 0.5)), r"model=cnn_pg needs images.*\[60\]"),
        (lambda: cnn_pg.build((3, 32, 32), 10, (0.2, 1.0)), r"model.dropout is \[0.2, 1.0\]"),
        (lambda: cnn_norm.build((3, 32, 32), 10, "bach", 8), "model.norm is 'bach'.*Did you mean 'batch'"),
        (lambda: cnn_norm.build((3, 32, 32), 10, "group", 5), "model.groups is 5"),
        (lambda: mlp.build((1, 8, 8), 10, [200, 0]), r"model.hidden is \[200, 0\]"),
    ],
)
def test_errors_name_the_option(build, message):
    with pytest.raises(UserError, match=message):
        build()


def test_a_model_without_a_linear_head_is_refused():
    with pytest.raises(TypeError, match="head"):
        model_of(fc1=nn.Linear(2, 2), tail=nn.Linear(2, 2))
    with pytest.raises(TypeError, match="head"):
        model_of(head=nn.ReLU())
