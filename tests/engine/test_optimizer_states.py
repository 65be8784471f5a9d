"""Momentum that clients keep from turn to turn, by hand. tests/conformance/test_methods.py tests all methods."""

import pytest
import torch

from pflsweep.algorithms.ditto import Ditto
from pflsweep.algorithms.local import Local
from pflsweep.algorithms.scaffold import Scaffold
from tests.algorithms.helpers import EVERYBODY, STILL, by_hand, close, simulate


@pytest.mark.parametrize("chunk", [1, EVERYBODY])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_many_short_turns_are_one_long_one(weight_decay: float, chunk: int) -> None:
    """Local on full batches: with kept momentum, rounds equal epochs."""
    settings = {"batch": 20, "momentum": 0.9, "weight_decay": weight_decay, "chunk": chunk}
    long = simulate(Local, rounds=1, epochs=4, **settings)
    for epochs in (1, 2):
        kept = simulate(Local, rounds=4 // epochs, epochs=epochs, optimiser_state="kept", **settings)
        fresh = simulate(Local, rounds=4 // epochs, epochs=epochs, **settings)
        close(kept.personal, long.personal, 1e-12)
        apart = (fresh.personal - long.personal).norm(dim=1)
        assert bool((apart > 0.1).all())


def test_every_model_of_a_client_keeps_its_own_by_hand() -> None:
    """Ditto on f = 1/2 (w - 4)^2; lr 0.5, lambda 0.5, momentum 0.5, one step on w a round and two on v, from 0.

    Round 1, w^t = 0.  w: g = -4, b = -4, w = 2
                       v: g = -4, c = -4, v = 2;  g = -2 + 2/2 = -1, c = -2 - 1 = -3, v = 3.5
    Round 2, w^t = 2.  w: g = -2, b = -2 - 2 = -4, w = 4
                       v: g = -0.5 + 1.5/2 = 0.25, c = -1.5 + 0.25 = -1.25, v = 4.125
                          g = 0.125 + 2.125/2 = 1.1875, c = -0.625 + 1.1875 = 0.5625, v = 3.84375
    """
    settings = {"epochs": 1, "batch": 1, "lr": 0.5, "momentum": 0.5, "network": STILL}
    hyper = {"lam": 0.5, "own_epochs": 2}
    run = simulate(Ditto, hyper, federation=by_hand([[([4, 0], 0)]]), optimiser_state="kept", **settings)
    close(run.w, [4, 7])
    close(run.personal[0], [3.84375, 7])
    optimisers = run.simulation.optimisers
    assert optimisers is not None
    b, c = optimisers.get(torch.tensor([0]))
    close(b[0], [-4, 0])
    close(c[0], [0.5625, 0])


@pytest.mark.parametrize("method", [Local, Scaffold])
def test_without_momentum_nothing_is_kept(method: type) -> None:
    hyper = {"global_lr": 1.0} if method is Scaffold else {}
    kept, fresh = (simulate(method, hyper, optimiser_state=how) for how in ("kept", "fresh"))
    assert torch.equal(kept.personal, fresh.personal)
    optimisers = kept.simulation.optimisers
    assert optimisers is not None
    assert [state.numel() for state in optimisers.get(torch.arange(EVERYBODY))] == [0]
    assert fresh.simulation.optimisers is None
    # A checkpoint serves both
    kept.simulation.load(fresh.simulation.state())
