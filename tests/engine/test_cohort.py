"""A cohort is trained in chunks as large as the memory allows, and put together again."""

import random as pythons
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedbabu import FedBABU
from pflsweep.commands.check import case_of
from pflsweep.conformance.case import advance, assert_same, kept_states, models
from pflsweep.engine.cohort import ChunkSize, Gathered
from pflsweep.engine.stack import StackMember, run_stack
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Turn, Verbs
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import leaves, own_copy, per_client, select
from pflsweep.util.errors import UserError


def test_work_that_the_engine_owns_shares_no_memory() -> None:
    w = torch.zeros(3)
    work = own_copy((w.expand(2, 3), torch.zeros(2), None))
    work[0][0] += 1
    assert not w.any()
    assert work[0].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_a_cohort_is_cut_and_put_together_again() -> None:
    whole, gathered = (torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([7, 8, 9])), Gathered(3)
    for cut in (slice(2, 3), slice(0, 2)):
        gathered.copy_in(cut, select(whole, cut))
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
    assert_same({**models(got), **kept_states(got)}, {**models(roomy), **kept_states(roomy)}, "halved", 1e-10)


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
        list(ChunkSize(4).over(5, full))


DRAWS: dict[str, Callable[[], Any]] = {
    "PyTorch": lambda: torch.rand(()),
    "NumPy": lambda: np.random.random(),  # noqa: NPY002
    "Python": pythons.random,
}


def drawing(draw: Callable[[], Any]) -> type[FedAvg]:
    class Drawing(FedAvg):
        @per_client
        def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
            w, opt = self.opt.descend(self.task, work.w, work.opt, batch, given.turn.lr)
            return stock.Work(w + 1e-3 * draw(), opt)

    return Drawing


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", DRAWS)
def test_a_step_that_draws_without_a_key_is_refused_with_the_remedy(name: str, workers: int, chunk: int) -> None:
    sim = replace(case_of(drawing(DRAWS[name]), {}), workers=workers).simulation(chunk=chunk)
    said = rf"Drawing.* draws from the global generator of {name}.*random\.uniform\(random\.own\(batch\.key\), shape\)"
    with pytest.raises(UserError, match=said):
        advance(sim, 1)


@pytest.mark.parametrize("name", ["PyTorch", "NumPy"])
def test_an_aggregation_that_begins_to_draw_in_a_later_round_is_refused(name: str) -> None:
    class DrawsInRound3(FedAvg):
        def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
            return stock.Server(turn.share @ up.w + (1e-3 * float(DRAWS[name]()) if turn.round == 3 else 0))

    sim = advance(case_of(DrawsInRound3, {}).simulation(), 2)
    with pytest.raises(UserError, match=rf"global generator of {name} \(or seeds it\) in `aggregate`"):
        advance(sim, 1)


def test_a_step_that_begins_to_draw_in_a_later_round_is_refused() -> None:
    class DrawsInRound3(FedAvg):
        @per_client
        def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
            w, opt = self.opt.descend(self.task, work.w, work.opt, batch, given.turn.lr)
            return stock.Work(w + (1e-3 * torch.rand(()) if given.turn.round == 3 else 0), opt)

    sim = advance(case_of(DrawsInRound3, {}).simulation(), 2)
    with pytest.raises(UserError, match="global generator of PyTorch"):
        advance(sim, 1)


@pytest.mark.parametrize(
    "of",
    [
        lambda w: w if float(w.norm()) > 1 else 2 * w,
        lambda w: w if w.norm() > 1 else 2 * w,
        lambda w: w * w[w > 0].sum(),
    ],
)
def test_a_step_that_reads_a_value_is_refused_with_what_to_write(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class ReadsAValue(FedAvg):
        @per_client
        def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
            w, opt = self.opt.descend(self.task, work.w, work.opt, batch, given.turn.lr)
            return stock.Work(of(w), opt)

    with pytest.raises(UserError, match=r"ReadsAValue\.step reads the value of a tensor.*use torch\.where"):
        advance(case_of(ReadsAValue, {}).simulation(chunk=3), 1)


class Counted(NamedTuple):
    """The state of a client: its model, and the steps that it has taken in all rounds."""

    w: torch.Tensor  # [P]
    steps: torch.Tensor  # []


class CountingWork(NamedTuple):
    w: torch.Tensor  # [C, P]
    opt: Any
    steps: torch.Tensor  # [C]


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_method_may_say_which_clients_have_a_batch(chunk: int) -> None:
    """Each client takes a step for each two of its samples, at most 4, of two epochs; then it keeps its model."""

    class StepsBySize(FedAvg):
        def init_client(self, w: torch.Tensor, setup: Any) -> Counted:
            return Counted(w, w.new_zeros(()))

        def start(self, given: Given, data: Any) -> CountingWork:
            return CountingWork(given.down.w.clone(), self.opt.init(given.down.w), given.client.steps)

        @per_client
        def step(self, given: Given, work: CountingWork, batch: Batch) -> CountingWork:
            w, opt = self.opt.descend(self.task, work.w, work.opt, batch, given.turn.lr)
            return CountingWork(w, opt, work.steps + 1)

        def finish(self, given: Given, data: Any, work: CountingWork) -> tuple[stock.Up, Counted]:
            return stock.Up(work.w), Counted(work.w, work.steps)

        def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
            steps = limit(given.turn.n)
            for k, batch in enumerate(data.train(2)):
                live = k < steps if batch.live is None else batch.live & (k < steps)
                work = stock.run(self.step, given, work, [batch._replace(live=live)])
            return work

    def limit(n: torch.Tensor) -> torch.Tensor:
        return (n // 2).clamp(max=4)

    found = advance(case_of(StepsBySize, {}).simulation(chunk=chunk, participation=1.0), 2)
    sizes = found.federation.sizes
    batches = 2 * -(-sizes // found.schedule.batch)  # of two epochs
    taken = found.clients.get(torch.arange(len(sizes))).steps
    assert taken.tolist() == (2 * torch.minimum(limit(sizes), batches)).tolist()
    assert len(set(taken.tolist())) > 1, "clients stop at different steps"
    other = advance(case_of(StepsBySize, {}).simulation(chunk=1, participation=1.0), 2)
    assert_same(models(found), models(other), "chunks", 1e-9)


def test_a_step_that_seeds_a_generator_is_refused() -> None:
    def draw() -> torch.Tensor:
        torch.manual_seed(3)
        return torch.rand(())

    with pytest.raises(UserError, match="global generator of PyTorch"):
        advance(case_of(drawing(draw), {}).simulation(), 1)


def test_each_trial_of_a_stack_that_draws_is_refused() -> None:
    def one(member: StackMember) -> None:
        sim = case_of(drawing(DRAWS["NumPy"]), {}).simulation()
        member.join(sim)
        advance(sim, 1)

    ended, _ = run_stack([one, one])
    assert ["global generator of NumPy" in str(error) for error in ended] == [True, True]


def test_what_another_thread_draws_is_no_fault_of_the_method() -> None:
    """A library's thread draws from Python's generator, and another trial's initialises its model with PyTorch's."""
    began, trained = threading.Event(), threading.Event()

    def other() -> None:
        pythons.random()
        with random.seeded_for(0, "model"):
            torch.rand(3)
            began.set()
            trained.wait()

    thread = threading.Thread(target=other)

    def draw() -> float:
        if not began.is_set():
            thread.start()
            began.wait()
        return 0.0

    sims = [case_of(drawing(how), {}).simulation() for how in (draw, lambda: 0.0)]
    try:
        advance(sims[0], 2)
    finally:
        trained.set()
        thread.join()
    assert_same(kept_states(sims[0]), kept_states(advance(sims[1], 2)), "with another thread that draws")


def test_a_step_that_draws_by_its_key_is_trained() -> None:
    class Keyed(FedAvg):
        @per_client
        def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
            assert batch.key is not None
            noise = random.uniform(random.fold(batch.key, 1), work.w.shape).to(work.w)
            return stock.Work(work.w + 1e-3 * noise, work.opt)

    assert advance(case_of(Keyed, {}).simulation(), 2).round == 2
