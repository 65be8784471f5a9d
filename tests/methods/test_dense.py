"""The written-out gradient of a dense model equals autograd's."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.methods.dense import DenseGradient
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Batch, Task, cross_entropy
from pflsweep.models import cnn, layers, mlp
from pflsweep.models.blocks import model_of

SHAPE, CLASSES = (1, 6, 5), 4
PLAIN: Callable[..., Tensor] = partial(cross_entropy)  # a function of its own, so that autograd computes the gradient


def biasless() -> nn.Sequential:
    body = nn.Sequential(nn.Flatten(), nn.Linear(30, 7, bias=False), nn.ReLU(), nn.Linear(7, 6))
    return model_of(body=body, head=nn.Linear(6, CLASSES, bias=False))


MODELS = {
    "MLP": lambda: mlp.build(SHAPE, CLASSES, (9, 8)),
    "logistic regression": lambda: mlp.build(SHAPE, CLASSES, ()),
    "without biases": biasless,
}


@pytest.fixture(params=MODELS)
def task(request: pytest.FixtureRequest) -> Task:
    torch.manual_seed(0)
    return Task(MODELS[request.param]().double())


def batch(shape: tuple[int, ...] = SHAPE, size: int = 11) -> Batch:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(size, *shape, generator=draw, dtype=torch.float64)
    return Batch(x, torch.arange(size) % CLASSES, None, None, None)


def same(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_the_whole_gradient(task: Task) -> None:
    assert task.dense is not None
    w = task.vector(task.model)
    same(task.value_and_grad(w, batch()), task.value_and_grad(w, batch(), PLAIN))


def test_the_gradient_of_parts(task: Task) -> None:
    w = task.vector(task.model)
    cuts = [block.start for block in task.blocks] + [task.size]
    for start in range(len(cuts)):
        for stop in range(start, len(cuts)):
            part = slice(cuts[start], cuts[stop])
            same(task.value_and_grad(w, batch(), part=part), task.value_and_grad(w, batch(), PLAIN, part=part))


def test_the_gradient_of_the_top_blocks(task: Task) -> None:
    w = task.vector(task.model)
    for top in range(1, len(task.blocks)):
        part, below = w[task.top(top)], task.batch_below(w, batch(), top)
        same(task.value_and_grad(part, below, top=top), task.value_and_grad(part, below, PLAIN, top=top))


def test_the_gradient_of_a_part_of_the_top_blocks() -> None:
    task = Task(MODELS["MLP"]().double())
    w = task.vector(task.model)
    part, below = w[task.top(2)], task.batch_below(w, batch(), 2)
    same(
        task.value_and_grad(part, below, part=task.head, top=2),
        task.value_and_grad(part, below, PLAIN, part=task.head, top=2),
    )


def test_a_part_that_cuts_a_parameter_is_refused(task: Task) -> None:
    with pytest.raises(ValueError, match="cuts through a parameter"):
        task.grad(task.vector(task.model), batch(), part=slice(task.size - 1, task.size))


def test_what_is_given_stays_as_it_is(task: Task) -> None:
    w, rows = task.vector(task.model), batch()
    before = w.clone(), rows.x.clone(), rows.y.clone()
    task.grad(w, rows)
    assert all(torch.equal(one, other) for one, other in zip((w, rows.x, rows.y), before, strict=True))


def test_what_is_not_finite_passes_as_in_autograd() -> None:
    task = Task(MODELS["MLP"]().double())
    w, rows = task.vector(task.model), batch()
    rows.x[3, 0, 0, 0] = float("inf")
    ours, theirs = task.grad(w, rows), task.grad(w, rows, PLAIN)
    assert not theirs.isfinite().all()
    assert torch.equal(ours.isfinite(), theirs.isfinite())


def test_a_dense_model_is_trained_as_by_a_plain_loop() -> None:
    """Compare with a plain training loop: nn.Module, autograd, torch.optim.SGD."""
    torch.manual_seed(0)
    model = mlp.build(SHAPE, CLASSES, (9, 8)).double()
    task = Task(model)
    w, rows, opt = task.vector(model), batch(), Sgd(0.5, 0.01)
    state = opt.init(w[None])[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for _ in range(5):
        w, state = opt.descend(task, w, state, rows, 0.1)
        optimizer.zero_grad()
        F.cross_entropy(model(rows.x), rows.y).backward()
        optimizer.step()
    torch.testing.assert_close(w, task.vector(model), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "model",
    [
        model_of(fc=nn.Sequential(nn.Linear(5, 4), nn.Tanh()), head=nn.Linear(4, 3)),
        model_of(fc=nn.Sequential(nn.Linear(5, 4), layers.Dropout(0.5)), head=nn.Linear(4, 3)),
        model_of(fc=nn.Sequential(nn.ReLU(), nn.Linear(5, 4)), head=nn.Linear(4, 3)),
        model_of(fc=nn.Sequential(nn.Linear(5, 4), nn.Flatten()), head=nn.Linear(4, 3)),
        cnn.build((1, 28, 28), 3),
    ],
    ids=["tanh", "dropout", "ReLU first", "flatten late", "cnn"],
)
def test_autograd_computes_what_has_other_layers(model: nn.Sequential) -> None:
    assert DenseGradient.of(model) is None


@pytest.mark.parametrize("at", ["fc1", "fc1.0", "head"])
@pytest.mark.parametrize("before", [True, False])
def test_hooks_run_in_all_passes(at: str, before: bool) -> None:
    torch.manual_seed(0)
    model = model_of(fc1=nn.Sequential(nn.Linear(5, 4), nn.ReLU()), head=nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 5).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    plain = model(x)
    module = model.get_submodule(at)
    if before:
        module.register_forward_pre_hook(lambda module, inputs: (inputs[0] / 10,))
    else:
        module.register_forward_hook(lambda module, inputs, output: output / 10)
    task = Task(model)
    w = task.vector(model)
    assert not torch.allclose(model(x), plain)
    torch.testing.assert_close(task.logits(w, x), model(x))
    F.cross_entropy(model(x), y).backward()
    grad = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(task.grad(w, Batch(x, y, None, None, None)), grad)


def test_a_block_that_begins_with_a_relu_is_computed_as_written() -> None:
    """In nn.Sequential(Flatten, Linear, ReLU, Linear) the top two blocks are the ReLU and the head."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    task, x, y = Task(model), torch.randn(6, 5).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    assert task.dense is not None
    rows = Batch(x, y, None, None, None)
    w = task.vector(model)
    whole, grad = task.value_and_grad(w, rows)
    for top in (1, 2):
        part = task.top(top)
        loss, own = task.value_and_grad(w[part], task.batch_below(w, rows, top), top=top)
        torch.testing.assert_close(loss, whole)
        torch.testing.assert_close(own, grad[part])
