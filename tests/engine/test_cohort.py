"""A cohort is trained in chunks as large as the memory allows, and put together again."""

from typing import Any

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedbabu import FedBABU
from pflsweep.commands.check import case_of
from pflsweep.conformance.case import advance, assert_same, known, models
from pflsweep.engine.cohort import Chunks, Gathered
from pflsweep.methods.protocol import Given, Turn, Verbs
from pflsweep.ops.vmap import leaves, own, select


def test_work_that_the_engine_owns_shares_no_memory() -> None:
    w = torch.zeros(3)
    work = own((w.expand(2, 3), torch.zeros(2), None))
    work[0][0] += 1
    assert not w.any()
    assert work[0].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_a_cohort_is_cut_and_put_together_again() -> None:
    whole, gathered = (torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([7, 8, 9])), Gathered(3)
    for cut in (slice(2, 3), slice(0, 2)):
        gathered.put(cut, select(whole, cut))
    assert all(torch.equal(a, b) for a, b in zip(leaves(gathered.tree), leaves(whole), strict=True))


def test_a_chunk_that_does_not_fit_into_memory_is_halved() -> None:
    """There is room for two clients at once: six are tried, then three, then two, and two from then on. Rounds equal
    those of any other chunking.
    """
    tried = []

    def cramped(verbs: Verbs) -> Verbs:
        def fit(given: Given, data: Any, work: Any) -> Any:
            tried.append(len(given.turn.ids))
            if tried[-1] > 2:
                raise torch.OutOfMemoryError
            return verbs.fit(given, data, work)

        return verbs._replace(fit=fit)

    of = case_of(FedAvg, {})
    roomy = advance(of.simulation(chunk=6, participation=1.0), 2)
    got = advance(of.simulation(chunk=6, participation=1.0, watch=cramped), 2)
    assert tried == [6, 3, 2, 2, 2, 2, 2, 2]
    assert_same({**models(got), **known(got)}, {**models(roomy), **known(roomy)}, "halved", 1e-10)


def test_personalised_models_that_do_not_fit_into_memory_are_made_in_halves() -> None:
    """All clients have a personal model, while a cohort has two clients."""
    tried = []

    def cramped(verbs: Verbs) -> Verbs:
        def personal(server: Any, client: Any, data: Any, turn: Turn) -> torch.Tensor:
            tried.append(len(turn.ids))
            if tried[-1] > 3:
                raise torch.OutOfMemoryError
            return verbs.personal(server, client, data, turn)

        return verbs._replace(personal=personal)

    of = case_of(FedBABU, {"finetune_epochs": 1, "finetune_lr": 0.01})
    roomy = advance(of.simulation(chunk=6, participation=1 / 3), 1)
    got = advance(of.simulation(chunk=6, participation=1 / 3, watch=cramped), 1)
    for _ in range(2):
        assert_same(models(got), models(roomy), "halved", 1e-10)
    assert tried == [6, 3, 3, 3, 3]


def test_one_client_that_does_not_fit_into_memory_ends_the_trial() -> None:
    def full(cut: slice) -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        list(Chunks(4).over(5, full))
