"""Dropout and batch norm in the context: exact, blind to padding, the same under vmap and in threads."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pflsweep.models import cnn_norm, cnn_pg, layers
from pflsweep.models.blocks import model_of
from pflsweep.models.layers import BatchNorm2d, Conv2d, Dropout, Linear, context
from pflsweep.ops import products
from pflsweep.ops.random import fold, tensor_key

KEY = tensor_key(0, "test")


def small_model(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return model_of(
        conv1=nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), Dropout(0.3)),
        head=nn.Linear(4 * 16, 3),
    )


def test_dropout_is_the_identity_without_a_key():
    x = torch.randn(5, 7)
    layer = Dropout(0.5)
    assert layer(x) is x
    with context(mask=torch.ones(5)):
        assert layer(x) is x
    with context(key=KEY):
        assert Dropout(0.0)(x) is x


def test_dropout_keeps_the_mean_and_drops_the_share():
    with context(key=KEY):
        y = Dropout(0.2)(torch.ones(1000, 100))
    assert abs((y == 0).float().mean() - 0.2) < 0.005
    assert torch.allclose(y[y > 0], torch.tensor(1.25))


def test_stochastic_depth_keeps_or_drops_whole_samples():
    with context(key=KEY):
        y = Dropout(0.25, whole=True)(torch.ones(4000, 3, 2, 2))
    kept = y[:, 0, 0, 0] > 0
    assert abs(kept.float().mean() - 0.75) < 0.02
    assert torch.equal(y, (kept.float() / 0.75)[:, None, None, None].expand_as(y))


def test_each_dropout_layer_has_its_own_draws():
    model = cnn_pg.build((3, 32, 32), 10, (0.5, 0.5))
    first, second = (layer for layer in model.modules() if isinstance(layer, Dropout))
    x = torch.ones(20, 50)
    with context(key=KEY):
        assert torch.equal(first(x), first(x))
        assert not torch.equal(first(x), second(x))
    with context(key=fold(KEY, 1)):
        other = first(x)
    with context(key=KEY):
        assert not torch.equal(first(x), other)


def test_dropout_is_the_same_lifted():
    layer, x, keys = Dropout(0.4), torch.randn(6, 5, 3), fold(KEY, torch.arange(6))

    def drop(key, x):
        with context(key=key):
            return layer(x)

    assert torch.equal(vmap(drop)(keys, x), torch.stack([drop(k, row) for k, row in zip(keys, x, strict=True)]))


def test_batch_norm_is_torchs_in_training():
    ours, theirs, x = BatchNorm2d(4), nn.BatchNorm2d(4), torch.randn(6, 4, 5, 5) * 3 + 2
    with torch.no_grad():
        for layer in (ours, theirs):
            layer.weight.copy_(torch.arange(4.0))
            layer.bias.copy_(torch.arange(4.0) - 2)
    with context():
        assert torch.allclose(ours(x), theirs(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_padding_has_no_influence(dtype):
    model = small_model(BatchNorm2d(4))
    parameters = dict(model.named_parameters())
    x, y = torch.randn(7, 1, 6, 6), torch.randint(3, (7,))
    padded = torch.cat([x, torch.full((3, 1, 6, 6), 1e6)])
    mask = torch.arange(10) < 7

    def loss(parameters, x, mask):
        collected = {}
        with context(key=KEY, mask=mask, collect=collected):
            logits = functional_call(model, parameters, (x,))[:7]
        return nn.functional.cross_entropy(logits, y), (logits, collected[0])

    plain, (logits, moments) = grad(loss, has_aux=True)(parameters, x, None)
    masked, (logits2, moments2) = grad(loss, has_aux=True)(parameters, padded, mask.to(dtype))
    assert torch.allclose(logits, logits2, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(moments, moments2, strict=True))
    assert all(torch.allclose(plain[name], masked[name], atol=1e-6) for name in plain)


def test_padding_of_nan_does_not_reach_the_statistics():
    layer, x = BatchNorm2d(4), torch.randn(5, 4, 3, 3)
    padded = torch.cat([x, torch.full((2, 4, 3, 3), float("nan"))]).requires_grad_()
    with context(mask=torch.arange(7) < 5):
        y = layer(padded)[:5]
    y.square().sum().backward()
    assert padded.grad is not None
    assert padded.grad.isfinite().all()
    with context():
        assert torch.allclose(y, layer(x), atol=1e-6)


def test_calibration_on_one_batch_is_that_batch():
    model, x = small_model(BatchNorm2d(4)), torch.randn(8, 1, 6, 6)
    stats = {}
    with context(collect=stats):
        training = model(x)
    with context(stats=stats):
        assert torch.allclose(model(x), training, atol=1e-6)


def test_calibration_over_uneven_batches_is_that_of_all_samples():
    layer, x = BatchNorm2d(4).double(), torch.randn(20, 4, 3, 3, dtype=torch.double) + 5
    stats = {}
    for part in (x[:3], x[3:15], x[15:]):
        padded = torch.cat([part, torch.full((2, 4, 3, 3), 99.0)])
        with context(mask=torch.arange(len(padded)) < len(part), collect=stats):
            layer(padded)
    # A client without further batches
    with context(mask=torch.zeros(2, dtype=torch.bool), collect=stats):
        assert layer(torch.zeros(2, 4, 3, 3).double()).isfinite().all()
    total, mean, var = stats[0]
    assert total == 20
    assert torch.allclose(mean, x.mean((0, 2, 3)))
    assert torch.allclose(var, x.var((0, 2, 3), correction=0))


def test_evaluation_without_statistics_is_refused():
    model, x = small_model(BatchNorm2d(4)), torch.randn(2, 1, 6, 6)
    with pytest.raises(RuntimeError, match="no running statistics"):
        model(x)
    with context(stats={}), pytest.raises(RuntimeError, match="no running statistics"):
        model(x)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_training_calibration_and_evaluation_are_the_same_lifted(norm):
    model = cnn_norm.build((1, 16, 16), 3, norm, 8)
    parameters = {name: torch.stack([p, p * 1.1, p * 0.9]).detach() for name, p in model.named_parameters()}
    x, y, keys = torch.randn(3, 5, 1, 16, 16), torch.randint(3, (3, 5)), fold(KEY, torch.arange(3))
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]

    def everything(parameters, x, y, key, mask):
        def loss(parameters):
            with context(key=key, mask=mask):
                losses = nn.functional.cross_entropy(functional_call(model, parameters, (x,)), y, reduction="none")
            return (losses * mask).sum() / mask.sum()

        stats = {}
        with context(mask=mask, collect=stats):
            functional_call(model, parameters, (x,))
        with context(stats=stats):
            return grad(loss)(parameters), functional_call(model, parameters, (x,))

    lifted = vmap(everything)(parameters, x, y, keys, mask)
    for i in range(3):
        own = {name: p[i] for name, p in parameters.items()}
        gradient, logits = everything(own, x[i], y[i], keys[i], mask[i])
        assert torch.allclose(lifted[1][i], logits, atol=1e-4)
        assert all(torch.allclose(lifted[0][name][i], gradient[name], atol=1e-4) for name in own)


def test_contexts_nest_and_threads_do_not_mix():
    layer, x = Dropout(0.5), torch.ones(50)

    def drop(number: int) -> torch.Tensor:
        with context(key=fold(KEY, number)):
            for _ in range(20):
                layer(x)
            with context():
                assert layer(x) is x
            return layer(x)

    alone = [drop(i) for i in range(8)]
    with context(key=KEY), ThreadPoolExecutor(4) as pool:
        for one, other in zip(alone, pool.map(drop, range(8)), strict=True):
            assert torch.equal(one, other)
    assert layer(x) is x


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("lifted", [False, True])
def test_a_convolution_with_channels_last_is_the_same_convolution(lifted: bool, channels: int) -> None:
    ours, stock = Conv2d(channels, 4, 5).double(), nn.Conv2d(channels, 4, 5).double()
    stock.load_state_dict(ours.state_dict())
    x = torch.rand(2, 7, channels, 9, 9, dtype=torch.float64)
    got, wanted = (vmap(f)(x) if lifted else f(x[0]) for f in (ours, stock))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert lifted or got.is_contiguous(memory_format=torch.channels_last)


def derivatives(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Return a dense layer's derivatives of first and second order, also with a gradient of stride 0."""
    layer = Linear(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    x = x.clone().requires_grad_()
    free = [x, layer.weight, layer.bias]
    out = layer(x)
    sums = torch.autograd.grad(out.sum(), free, retain_graph=True)
    first = torch.autograd.grad(out.square().sum(), free, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first[:2]), free)
    return out.detach(), *sums, *(g.detach() for g in first), *second


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Record the arguments of oneDNN's product."""
    seen: list[tuple[int, ...]] = []
    forward = layers._Product.forward

    def watched(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        seen.append(tuple(a.shape))
        return forward(ctx, a, b)

    monkeypatch.setattr(layers._Product, "forward", staticmethod(watched))
    taken = "oneDNN" if products._has_onednn() else "torch"
    monkeypatch.setattr(products, "provider", lambda: taken)
    return seen


def test_a_large_dense_layer_is_the_same_layer(called: list, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(32, 300) / 17, torch.randn(256, 300) / 17, torch.randn(256)
    fast = derivatives(x, weight, bias)
    assert len(called) > 5 or not products._has_onednn()
    monkeypatch.setattr(products, "provider", lambda: "torch")
    called.clear()
    usual = derivatives(x, weight, bias)
    assert not called
    for one, other in zip(fast, usual, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def test_other_dense_layers_are_pytorchs(called: list) -> None:
    layer, x = Linear(300, 256), torch.randn(32, 300)
    assert torch.equal(layer(x[:1]), nn.functional.linear(x[:1], layer.weight, layer.bias)), "small"
    large = Linear(2048, 2048)
    assert torch.equal(large(row := torch.randn(1, 2048)), nn.functional.linear(row, large.weight, large.bias)), "a row"
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert torch.equal(layer(x[None]), nn.functional.linear(x[None], layer.weight, layer.bias))
    assert layer.double()(x.double()).dtype == torch.float64
    assert not called


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_under_what_transforms_it_a_dense_layer_is_pytorchs(called: list) -> None:
    """A user may transform the models of a record."""
    layer, x = Linear(300, 256), torch.randn(32, 300)
    weights = dict(layer.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, weights, (x,)).square().sum()

    layer.zero_grad()
    nn.functional.linear(x, layer.weight, layer.bias).square().sum().backward()
    torch.testing.assert_close(grad(loss)(weights, x)["weight"], layer.weight.grad)
    torch.testing.assert_close(vmap(layer)(x.expand(2, 32, 300))[1], layer(x))
    ahead = jvp(lambda x: layer(x), (x,), (x,))[1]
    torch.testing.assert_close(ahead, x @ layer.weight.T)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        torch.testing.assert_close(forward_ad.unpack_dual(layer(dual)).tangent, ahead)
    assert "mkldnn" not in make_fx(layer)(x).code
    called.clear()
    frozen = torch.jit.trace(layer, (x,), check_trace=False)
    assert torch.equal(frozen(x), nn.functional.linear(x, layer.weight, layer.bias))
    assert not called


def test_relu_after_pooling_is_relu_before_it() -> None:
    torch.manual_seed(0)
    pool, relu = nn.MaxPool2d(2), nn.ReLU()
    x = torch.randint(-2, 3, (50, 4, 8, 8)).float().requires_grad_()  # with many ties
    weight = torch.randn(50, 4, 4, 4)
    one, other = pool(relu(x)), relu(pool(x))
    assert torch.equal(one, other)
    (before,), (after,) = (torch.autograd.grad((y * weight).sum(), x) for y in (one, other))
    assert torch.equal(before, after)
    assert before.any()
