"""A model as one flat vector is the plain model: same logits, same gradients, and its parts are slices."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.conformance.fixtures import CLASSES, fixture
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Batch, Private, Task, by_class, cross_entropy, mean_over
from pflsweep.models.blocks import model_of
from pflsweep.models.layers import context
from pflsweep.ops.vmap import per_client

TOP = (1, 2, 3)


@pytest.fixture
def model() -> nn.Sequential:
    return fixture().model


@pytest.fixture
def task(model: nn.Sequential) -> Task:
    return Task(model)


def batch(size: int = 7, mask: Tensor | None = None) -> Batch:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(size, 5, generator=draw, dtype=torch.float64)
    return Batch(x, torch.arange(size) % CLASSES, mask, None, None)


def plain_gradient(model: nn.Sequential, rows: Batch) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(rows.x), rows.y)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def test_vector_and_state_dict_are_opposites(model: nn.Sequential, task: Task) -> None:
    w = torch.randn(task.size, dtype=torch.float64)
    model.load_state_dict(task.state_dict(w))
    assert torch.equal(task.vector(model), w)
    assert list(task.state_dict(w)) == list(model.state_dict())
    torch.testing.assert_close(task.logits(w, batch().x), model(batch().x), rtol=1e-13, atol=1e-13)


def test_a_state_dict_shares_no_memory(task: Task) -> None:
    w = torch.zeros(task.size, dtype=torch.float64)
    for value in task.state_dict(w).values():
        value.fill_(1)
    assert not w.any()


def test_blocks_are_contiguous_and_the_head_is_last(task: Task) -> None:
    assert task.blocks[0].start == 0
    assert [b.start for b in task.blocks[1:]] == [b.stop for b in task.blocks[:-1]]
    assert (task.blocks[-1].stop, task.head) == (task.size, task.blocks[-1])
    assert (task.extractor, task.classes) == (slice(0, task.head.start), CLASSES)
    assert task.head.stop - task.head.start == 5 * CLASSES + CLASSES
    assert task.top(1) == task.head
    assert task.top(3) == slice(0, task.size)
    assert task.top(0) == slice(task.size, task.size)


def test_a_model_ends_in_one_linear_layer() -> None:
    with pytest.raises(TypeError, match=r"its head, one nn\.Linear; here it is ReLU"):
        Task(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def test_a_model_may_be_of_a_class_of_its_own() -> None:
    class Own(nn.Sequential):
        def __init__(self, width: int) -> None:
            super().__init__(nn.Linear(2, width), nn.Linear(width, 2))

    assert Task(Own(3)).blocks == Task(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))).blocks


def test_the_gradient_is_that_of_the_plain_model(model: nn.Sequential, task: Task) -> None:
    w = task.vector(model)
    wanted = torch.cat([g.reshape(-1) for g in plain_gradient(model, batch()).values()])
    value, grad = task.value_and_grad(w, batch())
    torch.testing.assert_close(grad, wanted, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(task.grad(w, batch()), wanted, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(value, F.cross_entropy(model(batch().x), batch().y).detach())
    torch.testing.assert_close(task.loss(w, batch()), value)
    assert not grad.requires_grad
    assert torch.equal(w, task.vector(model)), "pure"


def test_the_gradient_of_a_part_is_its_slice(model: nn.Sequential, task: Task) -> None:
    w = task.vector(model)
    whole = task.grad(w, batch())
    for part in (task.head, task.extractor, task.top(2), task.blocks[1], slice(0, task.size)):
        torch.testing.assert_close(task.grad(w, batch(), part=part), whole[part], rtol=1e-13, atol=1e-15)


def test_the_gradient_of_another_loss(model: nn.Sequential, task: Task) -> None:
    w = task.vector(model)
    double = task.grad(w, batch(), lambda logits, b: 2 * cross_entropy(logits, b))
    torch.testing.assert_close(double, 2 * task.grad(w, batch()), rtol=1e-13, atol=1e-15)


def test_lifted_gradients_are_those_of_each_client(model: nn.Sequential, task: Task) -> None:
    class Holder:
        @per_client
        def grad(self, w: Tensor, rows: Batch) -> Tensor:
            return task.grad(w, rows, part=task.head)

    models = torch.stack([task.vector(model) + k for k in range(3)])
    one = batch()
    rows = Batch(torch.stack([one.x, one.x + 1, one.x - 1]), torch.stack([one.y] * 3), None, None, None)
    for k, grad in enumerate(Holder().grad(models, rows)):
        alone = task.grad(models[k], Batch(rows.x[k], one.y, None, None, None))[task.head]
        torch.testing.assert_close(grad, alone, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("top", TOP)
def test_lower_and_upper_make_the_whole(model: nn.Sequential, task: Task, top: int) -> None:
    w, x = task.vector(model), batch().x
    below = task.activations_below(w, x, top)
    torch.testing.assert_close(task.logits_from(w[task.top(top)], below, top), task.logits(w, x), rtol=0, atol=0)
    torch.testing.assert_close(task.activations_below(w[: task.top(top).start], x, top), below, rtol=0, atol=0)


def test_features_and_classify_make_the_whole(model: nn.Sequential, task: Task) -> None:
    w, x = task.vector(model), batch().x
    z = task.features(w, x)
    assert z.shape == (7, 5)
    assert torch.equal(task.features(w[task.extractor], x), z)
    assert torch.equal(task.classify(w[task.head], z), task.logits(w, x))


@pytest.mark.parametrize("top", TOP)
def test_training_the_top_alone_sees_the_same_loss(model: nn.Sequential, task: Task, top: int) -> None:
    w, part = task.vector(model), task.top(top)
    value, grad = task.value_and_grad(w[part], task.batch_below(w, batch(), top), top=top)
    torch.testing.assert_close(value, task.loss(w, batch()))
    torch.testing.assert_close(grad, task.grad(w, batch())[part], rtol=1e-12, atol=1e-14)


def test_a_masked_loss_is_that_of_the_samples(model: nn.Sequential, task: Task) -> None:
    w, padded = task.vector(model), batch(7, torch.tensor([1, 1, 1, 1, 0, 0, 0]).bool())
    padded.x[4:] = 1e6
    few = Batch(padded.x[:4], padded.y[:4], None, None, None)
    torch.testing.assert_close(task.loss(w, padded), task.loss(w, few))
    torch.testing.assert_close(task.grad(w, padded), task.grad(w, few), rtol=1e-12, atol=1e-14)


def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient(model: nn.Sequential, task: Task) -> None:
    value, grad = task.value_and_grad(task.vector(model), batch(3, torch.zeros(3, dtype=torch.bool)))
    assert float(value) == 0
    assert not grad.any()


def test_nothing_below_the_head_has_an_empty_gradient() -> None:
    """Logistic regression has nothing below its head, which methods may train by itself."""
    model = model_of(head=nn.Linear(5, CLASSES, dtype=torch.float64))
    task = Task(model)
    w = task.vector(model)
    value, grad = task.value_and_grad(w, batch(), part=task.extractor)
    assert (float(value), grad.shape) == (float(task.loss(w, batch())), (0,))

    rows = batch()

    class Both:
        @per_client
        def grad(self, w: Tensor, x: Tensor) -> Tensor:
            return task.grad(w, rows._replace(x=x), part=task.extractor)

    assert Both().grad(torch.stack([w, w]), torch.stack([rows.x, rows.x])).shape == (2, 0)


def test_mean_over_leaves_out_the_padding() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0], [float("nan"), 9.0]])
    assert mean_over(values, batch(3, torch.tensor([1, 1, 0]).bool())).tolist() == [2.0, 4.0]
    assert mean_over(values[:2], batch(2)).tolist() == [2.0, 4.0]


def test_values_of_a_whole_batch_are_refused_in_a_loss_of_one_row() -> None:
    """As in DP-SGD, where they would be broadcast and mix the rows' gradients."""
    with pytest.raises(ValueError, match="mean_over: 3 values for 1 rows"):
        mean_over(torch.ones(3), batch(1))


def test_sums_by_class_leave_out_the_padding() -> None:
    x, y = torch.tensor([[1.0], [2], [4], [torch.inf]]), torch.tensor([0, 2, 0, 2])
    rows = Batch(x, y, torch.tensor([True, True, True, False]), None, None)
    sums, share = by_class(x, rows, CLASSES)
    torch.testing.assert_close(sums, torch.tensor([[5 / 3], [0], [2 / 3]]))
    torch.testing.assert_close(share, torch.tensor([2 / 3, 0, 1 / 3]))
    whole = by_class(x[:3], Batch(x[:3], y[:3], None, None, None), CLASSES)
    torch.testing.assert_close((sums, share), whole)


def scaled(task: Task) -> Any:
    """Return a loss with one number more than the model's parameters, by which features are multiplied."""

    def loss(w: Tensor, batch: Batch) -> Tensor:
        z = task.trained_features(w, batch)
        return cross_entropy(task.classify(w[task.head], w[task.size] * z), batch)

    return loss


def test_a_gradient_goes_beyond_the_model(model: nn.Sequential, task: Task) -> None:
    w, rows = task.vector(model), batch()
    value, g = task.value_and_grad_of(scaled(task), torch.cat([w, w.new_ones(1)]), rows)
    plain, expected = task.value_and_grad(w, rows)
    torch.testing.assert_close((value, g[:-1]), (plain, expected))
    lifted = task.value_and_grad_of(scaled(task), torch.cat([w, w.new_full((1,), 1 + 1e-6)]), rows)[0]
    assert (lifted - value) / 1e-6 == pytest.approx(float(g[-1]), rel=1e-4)


def test_a_gradient_beyond_the_model_is_never_private(model: nn.Sequential, task: Task) -> None:
    private = Private(torch.tensor(7.0), torch.tensor(0), 1.0, 0.0, [])
    w = torch.cat([task.vector(model), torch.ones(1, dtype=torch.float64)])
    with pytest.raises(ValueError, match="dp_incompatible_reason"):
        task.value_and_grad_of(scaled(task), w, batch()._replace(private=private))


def test_dropout_is_noise_of_the_key_and_of_training_alone() -> None:
    model = fixture(images=True).model
    task = Task(model)
    w, x = task.vector(model), torch.randn(6, 1, 6, 6, dtype=torch.float64)
    rows = Batch(x, torch.zeros(6, dtype=torch.int64), None, None, torch.tensor(5))
    assert task.calibrated
    assert torch.equal(task.loss(w, rows), task.loss(w, rows))
    assert not torch.equal(task.loss(w, rows), task.loss(w, rows._replace(key=torch.tensor(6))))
    # Without a key there is no dropout
    with context():
        quiet = cross_entropy(task.logits(w, x), rows)
    assert torch.equal(task.loss(w, rows._replace(key=None)), quiet)


def test_a_loss_may_see_features(model: nn.Sequential, task: Task) -> None:
    """The mean square of the features is added to the loss: its gradient is the sum of both."""
    w = task.vector(model)

    def square(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits, batch) + mean_over(z.square().sum(1), batch)

    value, grad = task.value_and_grad(w, batch(), square, features=True)
    free = w.clone().requires_grad_()
    with context(key=batch().key, mask=batch().mask):
        z = task.features(free, batch().x)
        wanted = cross_entropy(task.classify(free[task.head], z), batch()) + z.square().sum(1).mean()
    wanted.backward()
    torch.testing.assert_close(value, wanted.detach())
    torch.testing.assert_close(grad, free.grad)


@pytest.mark.parametrize("clients", [1, 3])
def test_a_parameter_that_the_loss_does_not_reach_has_gradient_0(task: Task, clients: int) -> None:
    class Lifted:
        @per_client
        def features_alone(self, w: Tensor, rows: Batch) -> Tensor:
            def loss(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
                return mean_over(z.square().sum(1), batch)

            return task.value_and_grad(w, rows, loss, features=True)[1]

        @per_client
        def beyond_the_model(self, w: Tensor, rows: Batch) -> Tensor:
            def loss(w: Tensor, rows: Batch) -> Tensor:
                return task.trained_features(w, rows).square().sum()

            return task.value_and_grad_of(loss, w, rows)[1]

    w = task.vector(task.model).repeat(clients, 1)
    one = batch()
    rows = one._replace(x=one.x.repeat(clients, 1, 1), y=one.y.repeat(clients, 1))
    for grads in (Lifted().features_alone(w, rows), Lifted().beyond_the_model(w, rows)):
        assert (grads[:, task.head] == 0).all()
        assert (grads[:, task.extractor] != 0).any(1).all()


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 1e-3), (0.9, 1e-3)])
def test_a_step_by_parameter_is_one_along_the_whole_gradient(task: Task, momentum: float, weight_decay: float) -> None:
    opt, w = Sgd(momentum, weight_decay), task.vector(task.model)
    ours, theirs = (w.clone(), opt.init(w[None])[0]), (w.clone(), opt.init(w[None])[0])
    for size in (7, 3):
        ours = opt.descend(task, *ours, batch(size), 0.1)
        theirs = opt.update(*theirs, task.grad(theirs[0], batch(size)), 0.1)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert not torch.equal(ours[0], w)


def test_a_slice_of_the_whole_model_is_the_whole_model() -> None:
    """Whatever slice object a method names it by, in chunks of several clients as for one."""
    w, state, g = torch.randn(3, 3, 4).unbind()
    opt = Sgd(0.9, 0.1)
    wanted = torch.func.vmap(lambda w, state, g: opt.update(w, state, g, 0.1))(w, state, g)
    got = torch.func.vmap(lambda w, state, g: opt.update(w, state, g, 0.1, slice(None)))(w, state, g)
    assert [tensor.tolist() for tensor in got] == [tensor.tolist() for tensor in wanted]
