"""Every model: parameter counts, shapes, named blocks, readable errors."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from hydra.utils import get_method
from torch import nn

from pflsweep.models import (
    char_lstm,
    cnn,
    cnn_norm,
    cnn_pg,
    fasttext,
    lenet5,
    mlp,
    nfresnet18,
    nfresnet_pg,
    tf_cnn,
    vgg11,
)
from pflsweep.models.blocks import head_of, model_of, unsuited
from pflsweep.models.layers import context
from pflsweep.util.errors import UserError

CONF = sorted((Path(__file__).parents[2] / "conf/model").glob("*.yaml"))
IMAGES: list[tuple[int, ...]] = [(1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 16, 16)]
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "fasttext": [(12,), (1,)],
    "char_lstm": [(12,), (1,)],
    "tf_cnn": [(1, 28, 28), (3, 32, 32), (3, 18, 40)],
    "vgg11": [(3, 32, 32), (1, 64, 40)],
}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts():
    assert count(cnn.build((1, 28, 28), 10)) == 582_026
    assert count(cnn.build((3, 32, 32), 10)) == 878_538
    assert count(cnn_pg.build((3, 32, 32), 10, (0.2, 0.5))) == 797_962
    # The number that TensorFlow's tutorial prints
    assert count(tf_cnn.build((3, 32, 32), 10)) == 122_570
    assert count(mlp.build((1, 28, 28), 10, [200, 200])) == 199_210
    assert count(mlp.build((60,), 10, [])) == 610
    assert count(lenet5.build((3, 32, 32), 10)) == 62_006
    assert count(lenet5.build((1, 28, 28), 10)) == 44_426
    # The number of ResNet-18 with batch norm
    assert count(nfresnet18.build((3, 32, 32), 100, 0.2)) == 11_220_132
    # The number of the authors' class
    assert count(nfresnet_pg.build((3, 32, 32), 100, 0.2)) == 189_844
    assert count(fasttext.build((200,), 4, 98_635, 32)) == 98_635 * 32 + 32 * 33 + 4 * 33
    lstm = 4 * 256 * (8 + 256 + 1) + 4 * 256 * (256 + 256 + 1)
    assert count(char_lstm.build((80,), 80, 80, 8, 256)) == 80 * 8 + lstm + 80 * 257 == 817_872
    assert count(vgg11.build((3, 32, 32), 10, "none", 32, 0.5)) == 28_144_010
    assert count(vgg11.build((3, 32, 32), 10, "batch", 32, 0.5)) == 28_149_514
    norms = 2 * (32 + 64)
    assert count(cnn_norm.build((3, 32, 32), 10, "batch", 8)) == 878_538 + norms
    assert count(cnn_norm.build((3, 32, 32), 10, "group", 8)) == 878_538 + norms


@pytest.mark.parametrize(("path", "shape"), [(path, shape) for path in CONF for shape in SHAPES.get(path.stem, IMAGES)])
def test_every_yaml_builds_a_model_of_blocks(path, shape):
    assert path.read_text().startswith("# ")
    config = yaml.safe_load((path).read_text())
    if path.stem == "torchvision":
        # Which of its many models has to be said
        config["name"] = "mobilenet_v3_small"
    model = get_method(config.pop("_target_"))(shape, 7, **config)
    assert type(model) is nn.Sequential
    assert list(dict(model.named_children()))[-1] == "head"
    assert isinstance(model[-1], nn.Linear)
    assert not unsuited(model)
    x = torch.randn(2, *shape) if len(shape) == 3 else torch.randint(50, (2, *shape))
    with context():
        features = model[:-1](x)
        assert features.shape == (2, model[-1].in_features)
        assert model(x).shape == (2, 7)


def frozen() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.bias.requires_grad_(False)
    return layer


def twice() -> nn.Sequential:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, second)


def complex_valued() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.phase = nn.Parameter(torch.ones(4, dtype=torch.complex64))
    return layer


def with_a_constant() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.register_buffer("scale", torch.ones(4))
    return layer


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.Dropout(0.5), r"`body` draws .*layers\.Dropout"),
        (lambda: nn.BatchNorm1d(4), r"`body` keeps running statistics.*layers\.BatchNorm2d"),
        (with_a_constant, r"`body\.scale` is a buffer"),
        (frozen, r"`body\.bias` is frozen"),
        (lambda: nn.LazyLinear(4), r"`body\.weight` has no size yet: run the model once"),
        (complex_valued, r"`body\.phase` is torch\.complex64"),
        (twice, r"two layers share a parameter"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.0)), "^$"),
    ],
)
def test_what_clients_cannot_train_is_said(make: Callable[[], nn.Module], why: str) -> None:
    assert re.search(why, unsuited(model_of(body=make(), head=nn.Linear(4, 2))))


def test_a_forward_of_its_own_is_refused() -> None:
    class Scaled(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert "Scaled has a `forward` of its own" in unsuited(Scaled(nn.Linear(4, 2)))
    assert not unsuited(model_of(body=Scaled(nn.Linear(4, 4)), head=nn.Linear(4, 2)))


def test_a_hook_on_the_whole_model_is_refused() -> None:
    model = model_of(body=nn.Linear(4, 4), head=nn.Linear(4, 2))
    model.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    assert "a hook on the whole model" in unsuited(model)


def test_blocks_are_named_bottom_to_top():
    assert list(dict(cnn.build((3, 32, 32), 10).named_children())) == ["conv1", "conv2", "fc1", "head"]
    assert list(dict(mlp.build((1, 8, 8), 10, [5, 6]).named_children())) == ["fc1", "fc2", "head"]
    assert mlp.build((60,), 10, [])(torch.randn(2, 60)).shape == (2, 10)
    assert list(dict(lenet5.build((3, 32, 32), 10).named_children())) == ["conv1", "conv2", "fc1", "fc2", "head"]
    assert list(dict(fasttext.build((9,), 4, 30, 5).named_children())) == ["words", "fc1", "head"]
    stages = [f"layer{number}" for number in range(1, 5)]
    assert list(dict(nfresnet18.build((3, 32, 32), 10, 0.2).named_children())) == ["conv1", *stages, "head"]


def test_fasttext_is_the_mean_of_the_words_and_two_linear_layers():
    model = fasttext.build((4,), 3, 30, 5)
    x = torch.tensor([[7, 9, 9, 0], [4, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.int32)
    words = model.words.words.weight
    means = torch.stack([(words[7] + 2 * words[9]) / 3, words[4], torch.zeros(5)])
    torch.testing.assert_close(model.words(x), means)
    torch.testing.assert_close(model(x), model.head(model.fc1(means)))
    model(x).sum().backward()
    assert words.grad is not None
    assert words.grad.any(1).nonzero()[:, 0].tolist() == [4, 7, 9], "padding trains nothing"


@torch.no_grad()
def test_fasttext_may_count_padding_as_zeros():
    torch.manual_seed(0)
    plain = fasttext.build((4,), 3, 30, 5)
    torch.manual_seed(0)
    counted = fasttext.build((4,), 3, 30, 5, padding="counted")
    x = torch.tensor([[7, 9, 9, 0], [4, 0, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]])
    shares = torch.tensor([[3 / 4], [1 / 4], [0], [1]])
    torch.testing.assert_close(counted.words(x), shares * plain.words(x))
    with pytest.raises(UserError, match=r"model\.padding is 'count': it must be skipped or counted\. Did you mean"):
        fasttext.build((4,), 3, 30, 5, padding="count")


@torch.no_grad()
def test_the_character_lstm_is_pytorchs_with_one_bias():
    torch.manual_seed(0)
    model = char_lstm.build((7,), 3, 30, 5, 4)
    theirs = nn.LSTM(5, 4, num_layers=2, batch_first=True)
    for number, layer in enumerate((model.lstm1, model.lstm2)):
        for name in ("weight_ih", "weight_hh"):
            getattr(theirs, f"{name}_l{number}").copy_(getattr(layer, name))
        getattr(theirs, f"bias_ih_l{number}").copy_(layer.bias)
        getattr(theirs, f"bias_hh_l{number}").zero_()
        assert bool((layer.bias[4:8] >= 0.5).all()), "the forget gate begins open"
    x = torch.randint(30, (6, 7), dtype=torch.int32)
    states, _ = theirs(model.words(x))
    torch.testing.assert_close(model.lstm2(model.lstm1(model.words(x))), states[:, -1])
    torch.testing.assert_close(model(x), model.head(states[:, -1]))


def test_padding_of_texts_comes_first_as_vectors_of_zeros():
    """A 0 inside a text is a word like another; an empty text is zeros throughout."""
    torch.manual_seed(0)
    model = char_lstm.build((5,), 3, 30, 4, 6, "first")
    plain = char_lstm.build((5,), 3, 30, 4, 6)
    plain.load_state_dict(model.state_dict())
    x = torch.tensor([[7, 0, 9, 0, 0], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0], [8, 0, 0, 0, 0]], dtype=torch.int32)
    vectors = model.words(x)
    assert torch.equal(vectors[0, 2:], plain.words(x)[0, :3])
    assert torch.equal(vectors[1], plain.words(x)[1])
    assert torch.equal(vectors[3, -1], plain.words(x)[3, 0])
    assert not vectors[0, :2].any()
    assert not vectors[2].any()
    assert not vectors[3, :-1].any()
    each = torch.func.vmap(lambda row: model(row[None])[0])(x)
    torch.testing.assert_close(each, model(x))


@torch.no_grad()
def test_vgg11_shows_the_second_dense_layer():
    """FedFomo's latent partition uses 4096 numbers an image, before the ReLU."""
    model = vgg11.build((3, 32, 32), 10, "none", 32, 0.5)
    x = torch.randn(2, 3, 32, 32)
    z = model.fc2[0](model[:-2](x))
    assert z.shape == (2, 4096)
    assert bool((z < 0).any())
    torch.testing.assert_close(model.head(z.relu()), model(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: cnn.build((1, 8, 8), 10), "model=cnn needs images of at least 16x16.*8x8.*model=mlp"),
        (lambda: tf_cnn.build((1, 16, 16), 10), "model=tf_cnn needs images of at least 18x18.*16x16.*model=mlp"),
        (lambda: cnn_pg.build((60,), 10, (0.2, 0.5)), r"model=cnn_pg needs images.*\[60\]"),
        (lambda: cnn_pg.build((3, 32, 32), 10, (0.2, 1.0)), r"model.dropout is \[0.2, 1.0\]"),
        (lambda: cnn_norm.build((3, 32, 32), 10, "bach", 8), "model.norm is 'bach'.*Did you mean 'batch'"),
        (lambda: cnn_norm.build((3, 32, 32), 10, "group", 5), "model.groups is 5"),
        (lambda: mlp.build((1, 8, 8), 10, [200, 0]), r"model.hidden is \[200, 0\]"),
        (lambda: lenet5.build((1, 8, 8), 10), "model=lenet5 needs images of at least 16x16.*8x8"),
        (lambda: nfresnet18.build((60,), 10, 0.2), r"model=nfresnet18 needs images.*\[60\]"),
        (lambda: nfresnet_pg.build((60,), 10, 0.2), r"model=nfresnet_pg needs images.*\[60\]"),
        (lambda: nfresnet_pg.build((3, 32, 32), 10, 0.0), "model.alpha is 0.0"),
        (lambda: vgg11.build((1, 28, 28), 10, "none", 32, 0.5), "model=vgg11 needs images of at least 32x32.*28x28"),
        (lambda: vgg11.build((3, 32, 32), 10, "group", 24, 0.5), "model.groups is 24.*here 64"),
        (lambda: vgg11.build((3, 32, 32), 10, "none", 32, 1.0), "model.dropout is 1.0"),
        (lambda: fasttext.build((3, 32, 32), 10, 30, 5), r"model=fasttext reads texts.*\[3, 32, 32\]"),
        (lambda: fasttext.build((9,), 10, 0, 5), "model.vocabulary is 0"),
        (lambda: char_lstm.build((3, 32, 32), 10, 30, 5, 6), r"model=char_lstm reads texts.*\[3, 32, 32\]"),
        (lambda: char_lstm.build((9,), 10, 30, 5, 0), "model.hidden is 0"),
        (lambda: char_lstm.build((9,), 10, 30, 5, 6, "fist"), "model.padding is 'fist'.*Did you mean 'first'"),
        (lambda: char_lstm.build((9,), 10, 30, 5, 6)(torch.randn(2, 9)), "model=char_lstm reads texts"),
        (lambda: fasttext.build((9,), 10, 30, 5)(torch.randn(2, 9)), "model=fasttext reads texts"),
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
    for none, named in ((nn.Linear(2, 2), "Linear"), (nn.Sequential(), "NoneType"), (nn.Sequential(nn.ReLU()), "ReLU")):
        with pytest.raises(TypeError, match=f"here it is {named}"):
            head_of(none)
