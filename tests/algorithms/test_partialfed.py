from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.local import Local
from pflsweep.algorithms.partialfed import Client, PartialFed
from pflsweep.methods import stock
from pflsweep.methods.protocol import hyper
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from tests.algorithms.helpers import (
    EVERYBODY,
    NETWORK,
    Quadratic,
    by_hand,
    close,
    make,
    opened,
    same_in_chunks,
    simulate,
)

TASK, W0 = NETWORK
HYPER = {"strategy_lr": 5.0, "first_tau": 5.0, "last_tau": 0.5}
STILL = {**HYPER, "strategy_lr": 0.0}


class OnHalfB:
    """FedAvg on the second of each two batches."""

    step: Any
    epochs: int

    def fit(self, given, data, work):
        return stock.run(self.step, given, work, (halves[1] for halves in data.batches(2, self.epochs)))


@dataclass(frozen=True, kw_only=True)
class FedAvgOnHalfB(OnHalfB, FedAvg):
    pass


@dataclass(frozen=True, kw_only=True)
class LocalOnHalfB(OnHalfB, Local):
    pass


@dataclass(frozen=True, kw_only=True)
class Biased(PartialFed):
    """PartialFed whose clients have preferences from the beginning: each layer's logit of "global"."""

    preferences: tuple = hyper("a layer each")

    def init_client(self, w, setup):
        to_global = w.new_tensor(self.preferences)
        return Client(w, torch.stack([to_global, torch.zeros_like(to_global)], 1), setup.rounds)


def biased(*preferences: float) -> dict:
    return {**STILL, "preferences": preferences}


MODES = {"participation": 0.6, "momentum": 0.9, "weight_decay": 0.01}


def test_all_global_is_fedavg_on_the_halves_b():
    ours, theirs = simulate(PartialFed, STILL, rounds=3, **MODES), simulate(FedAvgOnHalfB, rounds=3, **MODES)
    assert torch.equal(ours.w, theirs.w)


def test_all_own_is_local_on_the_halves_b():
    ours = simulate(Biased, biased(-1, -1), rounds=3, **MODES)
    theirs = simulate(LocalOnHalfB, rounds=3, **MODES)
    assert torch.equal(ours.clients.w, theirs.clients.w)


def test_an_own_head_under_a_global_extractor():
    """Training starts from the chosen sources, and the whole of W_i is uploaded and kept."""
    run = simulate(Biased, biased(1, -1), rounds=2)
    given, data, work = opened(run, [3])
    used = torch.cat([run.w[TASK.extractor], run.clients.w[3, TASK.head]])
    halves = next(data.batches(2, 1))
    after = run.method.step(given, work, halves)
    b = Batch(halves[1].x[0], halves[1].y[0], None, None, halves[1].key[0])
    trained = used - 0.1 * TASK.grad(used, b)
    close(after.w[0], torch.cat([trained[TASK.extractor], run.w[TASK.head]]))
    close(after.own[0], torch.cat([run.clients.w[3, TASK.extractor], trained[TASK.head]]))
    up, client = run.method.finish(given, data, after)
    close((up.w[0], client.w[0]), (trained, trained))


def test_layers_that_change_their_source_go_on_where_they_stood():
    """theta' is kept during the turn: a second step on it starts where the first has ended."""
    method = make(PartialFed, STILL)
    given, data, work = opened(simulate(PartialFed, STILL), [3])
    first, second = list(data.batches(2, 1))[:2]
    flipped = torch.tensor([[[-1.0, 0.0]] * 2], dtype=torch.float64)
    once = method.step(given, work._replace(w=work.w.clone()), first)
    elsewhere = method.step(given, once._replace(strategy=flipped), second)
    close(elsewhere.w, once.w)
    again = method.step(given, elsewhere._replace(strategy=torch.zeros_like(flipped)), second)
    close(again.w, method.step(given, once, second).w)


def noise_of(key: torch.Tensor, layers: int) -> torch.Tensor:
    uniform = random.uniform(random.own(key), (layers, 2)).double()
    return -torch.log(-torch.log(uniform))


@pytest.mark.parametrize("tau", [5.0, 0.5])
def test_the_strategys_gradient_is_that_of_a_straight_through_gumbel_softmax(tau):
    method = make(PartialFed, HYPER)
    data = simulate(PartialFed, HYPER).simulation._data(torch.tensor([3]), 1, "train")
    halves = next(data.batches(2, 1))
    a = Batch(halves[0].x[0], halves[0].y[0], None, None, halves[0].key[0])
    torch.manual_seed(0)
    shared, own = torch.randn_like(W0), torch.randn_like(W0)
    strategy = torch.tensor([[0.3, -0.2], [-0.5, 0.4]], dtype=torch.float64, requires_grad=True)
    soft = ((strategy + noise_of(a.key, 2)) / tau).softmax(1)
    hard = nn.functional.one_hot(soft.argmax(1), 2).double()
    z = (hard + soft - soft.detach())[:, :1]
    layers = [z[k] * shared[block] + (1 - z[k]) * own[block] for k, block in enumerate(TASK.blocks)]
    (slope,) = torch.autograd.grad(TASK.loss(torch.cat(layers), a), strategy)
    got = method.slope(strategy.detach(), shared, own, a, tau)
    assert got.abs().max() > 1e-3
    close(got, slope)


def test_the_noise_of_these_tests_follows_the_softmax():
    logits, count = torch.tensor([[1.0, 0.0]], dtype=torch.float64), 4000
    keys = random.fold(torch.tensor(7), torch.arange(count))
    wins = sum(bool((logits + noise_of(key, 1))[0].argmax() == 0) for key in keys)
    assert abs(wins / count - torch.sigmoid(torch.tensor(1.0)).item()) < 0.02


def test_temperature_falls_from_round_to_round():
    method = make(PartialFed, HYPER)
    assert method.tau(1, 1) == 5.0
    taus = [method.tau(round, 5) for round in range(1, 6)]
    assert taus == sorted(taus, reverse=True)
    close(torch.tensor(taus), torch.tensor([5.0, 5 * 0.1**0.25, 5 * 0.1**0.5, 5 * 0.1**0.75, 0.5]), 1e-6)


def test_strategy_and_weights_see_no_sample_in_common():
    """Without a strategy the weights do not depend on the halves A; the strategy's step does not depend on B."""
    method = make(PartialFed, HYPER)
    given, data, work = opened(simulate(PartialFed, HYPER), [3])
    a, b = next(data.batches(2, 1))
    other = a._replace(x=a.x + 1)
    start = work._replace(strategy=torch.tensor([[[9.0, 0.0]] * 2], dtype=torch.float64))  # far from any change
    first, second = method.step(given, start, (a, b)), method.step(given, start, (other, b))
    assert torch.equal(first.w, second.w)
    assert not torch.equal(first.strategy, second.strategy)
    assert torch.equal(method.step(given, start, (a, other)).strategy, first.strategy)


def test_strategies_are_carried_from_turn_to_turn_and_come_to_differ():
    early, run = (simulate(PartialFed, HYPER, rounds=rounds, participation=0.6) for rounds in (1, 4))
    never = early.simulation.last < 0
    assert never.any()
    assert (early.clients.strategy[never] == 0).all()
    strategy = run.clients.strategy
    close(strategy.sum(2), torch.zeros(EVERYBODY, 2, dtype=torch.float64))
    assert (strategy[..., 0] < 0).any()
    assert (strategy[..., 0] > 0).any()
    work = opened(run, [3]).work
    assert torch.equal(work.strategy[0], strategy[3])


def test_who_never_took_part_has_the_global_model():
    run = simulate(PartialFed, HYPER, participation=0.4)
    never = run.simulation.last < 0
    close(run.personal[never], run.w.expand(int(never.sum()), -1))
    close(run.personal[~never], run.clients.w[~never])


def test_a_model_each_way():
    assert simulate(PartialFed, HYPER).traffic == (TASK.size, TASK.size)


def test_any_chunking_is_the_same_round():
    same_in_chunks(PartialFed, HYPER, momentum=0.9)
    one, all_ = (simulate(PartialFed, HYPER, rounds=4, participation=0.6, chunk=k) for k in (1, EVERYBODY))
    close(all_.clients, one.clients)


SAMPLES = [[([4, 4], 0)] * 2, [([-2, 0], 0)] * 2]
QUADRATIC = Quadratic([[1, 0], [0, 1]]), torch.tensor([0.0, 0.0])  # two layers, of a number each


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand(chunk):
    """f = 1/2 |w - m|^2 with m = (4, 4) for A, (-2, 0) for B; one step a round, lr 0.5, from 0; the first layer global,
    the second own, tied to no one.

    Round 1.  A: W = (0, 0) - 1/2 (-4, -4) = (2, 2).  B: W = (-1, 0).  theta = (0.5, 1)
    Round 2.  A: W = (0.5, 2), g = (-3.5, -2); (2.25, 3).  B: W = (0.5, 0), g = (2.5, 0); (-0.75, 0)
              theta = (0.75, 1.5)
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": QUADRATIC}
    run = simulate(Biased, biased(0, -1), rounds=2, chunk=chunk, **settings)
    close(run.clients.w, [[2.25, 3], [-0.75, 0]])
    close(run.w, [0.75, 1.5])


@pytest.mark.parametrize("chunk", [1, 2])
def test_by_hand_the_strategy(chunk):
    """As above, with all layers global. Round 1: theta' = w_i, no slope; A: W = (2, 2), B: W = (-1, 0).

    Round 2, theta = (0.5, 1): the slope of a layer's logit of "global" is (W - m) (theta - w_i) s (1 - s) / tau at the
    sampled W, s the softened choice of "global"; that of "own" is its opposite.
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "federation": by_hand(SAMPLES), "network": QUADRATIC}
    first = simulate(PartialFed, HYPER, rounds=1, chunk=chunk, **settings)
    assert (first.clients.strategy == 0).all()
    close(first.clients.w, [[2, 2], [-1, 0]])
    hyper = {"strategy_lr": 1.0, "first_tau": 2.0, "last_tau": 2.0}
    run = simulate(PartialFed, hyper, chunk=chunk, **settings)
    middles, own, shared = ([4, 4], [-2, 0]), ([2, 2], [-1, 0]), [0.5, 1]
    for client in (0, 1):
        data = run.simulation._data(torch.tensor([client]), 2, "train")
        noisy = noise_of(next(data.batches(2, 1))[0].key[0], 2)
        for layer in (0, 1):
            to_global = noisy[layer, 0] >= noisy[layer, 1]
            w = shared[layer] if to_global else own[client][layer]
            soft = torch.sigmoid((noisy[layer, 0] - noisy[layer, 1]) / 2)
            slope = (w - middles[client][layer]) * (shared[layer] - own[client][layer]) * soft * (1 - soft) / 2
            close(run.clients.strategy[client, layer], torch.stack([-slope, slope]))
