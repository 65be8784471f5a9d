"""PFLlib's Per-FedAvg and FedPHP: numbers worked out by hand, and the description written out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from pflsweep.algorithms.as_run.pfllib_fedphp import PfllibFedPHP
from pflsweep.algorithms.as_run.pfllib_perfedavg import PfllibPerFedAvg
from pflsweep.data.batching import Batching
from pflsweep.data.dataset import Rows
from pflsweep.data.federation import Federation
from tests.algorithms.as_run.written_out import (
    NAMES,
    SHARE,
    W0,
    answers,
    batches,
    entropy,
    joined,
    model,
    moved,
    named,
)
from tests.algorithms.helpers import EVERYBODY, STILL, by_hand, close, simulate

HAND: dict[str, Any] = {"rounds": 1, "network": STILL, "epochs": 1, "batch": 1, "lr": 0.25}


def of_one_client(test_rows: int) -> Federation:
    """Return one client with four training rows of m = 4, and up to three test rows of m = -4."""
    dataset = by_hand([[([4, 0], 0)] * 4 + [([-4, 0], 0)] * 3]).dataset
    rows = Rows([np.arange(4)], [4 + np.arange(test_rows)])
    return Federation(dataset, rows, validation=0.0, seed=0, device="cpu", dtype=torch.float64)


@pytest.mark.parametrize(
    ("test_rows", "personal"), [(3, -0.48056411743164063), (1, 0.6925811767578125), (0, 2.25677490234375)]
)
def test_perfedavg_by_hand(test_rows: int, personal: float) -> None:
    """f = 1/2 (w - m)^2, lr 0.25, m = 4 in four training rows and -4 in the test rows, batches of one, from w = 0.

    A step: w - 4 becomes (1 - 0.25 * 0.75) (w - 4) = 0.8125 (w - 4); two passes of two steps: w = 4 - 4 * 0.8125^4.
    Before it is scored: w + 4 = 6.25677490234375, times 0.75 for each of at most two test rows.
    """
    run = simulate(PfllibPerFedAvg, {"adapt_on": "test"}, federation=of_one_client(test_rows), **HAND)
    close(run.w, [2.25677490234375, 7])
    close(run.personal, [[personal, 7]])


@pytest.mark.parametrize("batching", [Batching(last_batch="drop"), Batching(steps=1), Batching()])
def test_perfedavg_takes_two_steps_before_it_is_scored_also_on_a_partial_batch(batching: Batching) -> None:
    """As above, from a model that does not train: w + 4 = 4, times 0.75 for each of two batches, of 2 and 1 rows."""
    run = simulate(
        PfllibPerFedAvg, {"adapt_on": "test"}, rounds=0, federation=of_one_client(3), network=STILL, batch=2, lr=0.25,
        batching=batching,
    )  # fmt: skip
    close(run.personal, [[4 * 0.75**2 - 4, 7]])


def test_perfedavg_adapts_on_training_rows_where_the_loader_ignores_the_split() -> None:
    """As above, but w - 4 = -1.74322509765625 is taken times 0.75 for each of two training rows."""
    run = simulate(PfllibPerFedAvg, {"adapt_on": "train"}, federation=of_one_client(3), **HAND)
    close(run.personal, [[4 - 1.74322509765625 * 0.75**2, 7]])


def features(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(model()[:-1], {name: parameters[name] for name in NAMES[:-2]}, (x,))


def discrepancy(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the mean over pairs of rows of k(x, x') + k(y, y') - 2 k(x, y')."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = ((a[:, None] - b[None]) ** 2).sum(2)
        return sum(torch.exp(-0.5 * squares / width) for width in (10, 15, 20, 50)).mean()

    return kernel(ours, ours) + kernel(theirs, theirs) - 2 * kernel(ours, theirs)


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
def test_fedphp_trains_from_a_mix_that_the_global_model_teaches(chunk: int) -> None:
    strength, mu, total = 0.6, 0.9, 3
    server, own = W0, W0.repeat(EVERYBODY, 1)
    for round in range(1, total + 1):
        share = mu * (round - 1) / total
        for i in range(EVERYBODY):
            w, sent = named(share * own[i] + (1 - share) * server), named(server)
            for x, y in batches(i, round, 2):
                taught = features(sent, x)

                def loss(p: dict[str, Tensor], x: Tensor = x, y: Tensor = y, taught: Tensor = taught) -> Tensor:
                    return (1 - strength) * entropy(answers(p, x), y) + strength * discrepancy(features(p, x), taught)

                w = moved(w, loss, NAMES)
            own[i] = joined(w)
        server = SHARE @ own
    run = simulate(PfllibFedPHP, {"strength": strength, "mu": mu}, rounds=total, chunk=chunk)
    close(run.w, server)
    close(run.clients.w, own)
    close(run.personal, mu * own + (1 - mu) * server)


def test_fedphp_scores_absent_clients_by_the_mix_of_the_round() -> None:
    run = simulate(PfllibFedPHP, {"strength": 0.1, "mu": 0.6}, rounds=3, participation=0.4)
    close(run.personal, 0.6 * run.clients.w + 0.4 * run.w)
