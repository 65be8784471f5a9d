"""New clients: what they start from, and that each trains alone, on its own rows, by plain SGD."""

import pytest
import torch

from pflsweep.conformance.fixtures import fixture
from pflsweep.data.batching import Batching
from pflsweep.data.loader import ClientData
from pflsweep.engine.finetune import fine_tune
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.task import Task
from pflsweep.ops.vmap import squeeze_client

RUN = {"batch": 4, "large": 8, "lr": 0.1}


def setting(order: list[int] | None = None):
    made = fixture(order=order)
    task = Task(made.model)
    return task, made.federation, task.vector(made.model)


def test_the_first_score_is_the_models_own():
    task, new, w = setting()
    (seen,) = fine_tune(task, new, w, Sgd(0.9, 0.0), epochs=0, **RUN)
    for i, rows in enumerate(new.rows["test"]):
        x, y = new.gather(torch.from_numpy(rows))
        assert seen.correct[i] == (task.logits(w, x).argmax(1) == y).sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_epoch_is_plain_sgd_on_the_clients_own_rows(momentum):
    task, new, w = setting()
    before = w.clone()
    first, *_, last = fine_tune(task, new, w, Sgd(momentum, 1e-3), epochs=3, **RUN)
    assert torch.equal(w, before), "the model that it is given stays as it is"
    assert last.loss[0] != first.loss[0]
    tuned = w.clone().requires_grad_()
    plain = torch.optim.SGD([tuned], lr=0.1, momentum=momentum, weight_decay=1e-3)
    for epoch in range(3):
        for step in ClientData.of(new, [0], epoch, batch=4, large=8, purpose="newcomers").train(1):
            plain.zero_grad()
            torch.nn.functional.cross_entropy(task.logits(tuned, step.x[0]), step.y[0]).backward()
            plain.step()
    x, y = new.gather(torch.from_numpy(new.rows["test"][0]))
    expected = torch.nn.functional.cross_entropy(task.logits(tuned.detach(), x), y)
    assert last.loss[0] == pytest.approx(float(expected), rel=1e-9)


def test_batches_are_cut_as_in_local_training():
    """A partial last batch that is dropped is not trained on."""
    task, new, w = setting()
    size = len(new.rows["train"][0]) - 1
    run = {**RUN, "batch": size}
    dropped, kept = (
        list(fine_tune(task, new.subset([0]), w, Sgd(0.0, 0.0), epochs=1, batching=Batching(last_batch=each), **run))[
            -1
        ]
        for each in ("drop", "keep")
    )
    assert dropped.loss[0] != kept.loss[0]
    tuned = w.clone()
    (step,) = ClientData.of(
        new, [0], 0, batch=size, large=8, purpose="newcomers", batching=Batching(last_batch="drop")
    ).train(1)
    Sgd(0.0, 0.0).update(tuned, w.new_zeros(0), task.grad(tuned, squeeze_client(step)), 0.1)
    x, y = new.gather(torch.from_numpy(new.rows["test"][0]))
    expected = torch.nn.functional.cross_entropy(task.logits(tuned, x), y)
    assert dropped.loss[0] == pytest.approx(float(expected), rel=1e-9)


def test_a_client_is_tuned_alike_whoever_is_beside_it():
    task, new, w = setting()
    together = list(fine_tune(task, new, w, Sgd(0.9, 0.0), epochs=2, **RUN))
    alone = list(fine_tune(task, new.subset([2]), w, Sgd(0.9, 0.0), epochs=2, **RUN))
    assert [s.loss[2] for s in together] == [s.loss[0] for s in alone]
