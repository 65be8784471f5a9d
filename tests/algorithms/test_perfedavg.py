from dataclasses import dataclass

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.perfedavg import PerFedAvg
from pflsweep.methods import stock
from tests.algorithms.helpers import (
    EVERYBODY,
    NETWORK,
    Quadratic,
    by_hand,
    close,
    network,
    opened,
    same_in_chunks,
    simulate,
)

TASK, _ = NETWORK
FO = {"form": "fo", "alpha": 0.05, "delta": 1e-3, "eval_lr": None}
HF = {**FO, "form": "hf"}


@dataclass(frozen=True, kw_only=True)
class SecondBatches(FedAvg):
    """FedAvg on the second batch of each of Per-FedAvg's pairs."""

    def fit(self, given, data, work):
        return stock.run(self.step, given, work, (second for _, second in data.batches(2, self.epochs)))


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_without_an_inner_step_it_is_fedavg_on_the_second_batches(chunk):
    settings = {"momentum": 0.9, "weight_decay": 0.01, "chunk": chunk, "rounds": 3, "participation": 0.6}
    run = simulate(PerFedAvg, {**FO, "alpha": 0.0}, **settings)
    assert torch.equal(run.w, simulate(SecondBatches, **settings).w)


def test_hessian_free_is_exact_on_a_quadratic():
    h = torch.tensor([[3.0, 1.0, 0.5], [1.0, 2.0, 0.0], [0.5, 0.0, 1.0]], dtype=torch.float64)
    samples = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    federation = by_hand([[(x.tolist(), 0) for x in samples]])
    start = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    # delta may be as large as a step: on a quadratic the difference is exact at any distance
    run = simulate(
        PerFedAvg, {**HF, "alpha": 0.2, "delta": 0.5}, rounds=1, epochs=1, batch=2, lr=0.1,
        federation=federation, network=(Quadratic(h.tolist()), start),
    )  # fmt: skip
    ((first, second, third),) = opened(run, [0]).data.batches(3, 1)
    inner = start - 0.2 * h @ (start - first.x[0].mean(0))
    g = h @ (inner - second.x[0].mean(0))
    assert len({b.x.sum().item() for b in (first, second, third)}) == 3
    close(run.w, start - 0.1 * (g - 0.2 * h @ g))


def test_hessian_free_uses_the_hessian_of_the_third_batch_where_the_step_began():
    task, w0 = network(hidden=())  # logistic regression is smooth
    run = simulate(PerFedAvg, {**HF, "alpha": 0.3, "delta": 1e-4}, network=(task, w0))
    given, data, work = opened(run, [3])
    first, second, third = (list(batch) for batch in next(data.batches(3, 1)))

    def loss(w, batch):
        return torch.nn.functional.cross_entropy(task.logits(w, batch[0][0]), batch[1][0])

    w, grad = work.w[0].clone(), torch.func.grad(loss)
    g = grad(w - 0.3 * grad(w, first), second)
    expected = w - 0.1 * (g - 0.3 * torch.func.jacrev(grad)(w, third) @ g)
    close(run.method.step(given, work, next(data.batches(3, 1))).w[0], expected, 1e-9)


def test_evaluation_takes_one_step_at_its_own_rate():
    still = simulate(PerFedAvg, {**FO, "eval_lr": 0.0})
    assert torch.equal(still.personal, still.w.expand(EVERYBODY, -1))
    default, named = (simulate(PerFedAvg, {**FO, "eval_lr": rate}) for rate in (None, 0.05))
    assert torch.equal(default.personal, named.personal)
    twice = simulate(PerFedAvg, {**FO, "eval_lr": 0.1})
    assert torch.equal(twice.w, default.w)  # evaluation changes nothing
    close(twice.personal - twice.w, 2 * (default.personal - default.w))


def test_a_model_each_way():
    assert simulate(PerFedAvg, FO).traffic == (TASK.size, TASK.size)


@pytest.mark.parametrize("hyper", [FO, HF])
def test_any_chunking_is_the_same_round(hyper):
    same_in_chunks(PerFedAvg, {**hyper, "delta": 1e-5}, momentum=0.9, weight_decay=0.01)


QUADRATIC = Quadratic([[2, 0], [0, 1]]), torch.zeros(2)
ALPHA = {"alpha": 0.25, "delta": 0.1, "eval_lr": None}


def test_first_order_by_hand():
    """H = diag(2, 1), m = (1, 2), alpha 0.25, beta 0.1; four equal samples in batches of one are two steps.

    w = (0, 0):       g(w) = (-2, -2),        inner (0.5, 0.5),      g = (-1, -1.5),      w = (0.1, 0.15)
    w = (0.1, 0.15):  g(w) = (-1.8, -1.85),   inner (0.55, 0.6125),  g = (-0.9, -1.3875), w = (0.19, 0.28875)
    evaluation:       g(w) = (-1.62, -1.71125), w = (0.19 + 0.405, 0.28875 + 0.4278125)
    """
    run = simulate(
        PerFedAvg, {"form": "fo", **ALPHA}, rounds=1, epochs=1, batch=1,
        federation=by_hand([[([1, 2], 0)] * 4]), network=QUADRATIC,
    )  # fmt: skip
    close(run.w, [0.19, 0.28875])
    close(run.personal, [[0.595, 0.7165625]])


def test_hessian_free_by_hand():
    """The same with six samples, three a step; I - alpha H = diag(0.5, 0.75).

    w = (0, 0):          inner (0.5, 0.5), g = (-1, -1.5), times diag: (-0.5, -1.125), w = (0.05, 0.1125)
    w = (0.05, 0.1125):  g(w) = (-1.9, -1.8875), inner (0.525, 0.584375), g = (-0.95, -1.415625)
                         times diag: (-0.475, -1.06171875), w = (0.0975, 0.218671875)
    """
    run = simulate(
        PerFedAvg, {"form": "hf", **ALPHA}, rounds=1, epochs=1, batch=1,
        federation=by_hand([[([1, 2], 0)] * 6]), network=QUADRATIC,
    )  # fmt: skip
    close(run.w, [0.0975, 0.218671875])
