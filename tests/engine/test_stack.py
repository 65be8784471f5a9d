"""Trials that train as one cohort: each as if by itself, whatever its floats, and whatever happens to the others."""

import gc
import weakref
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedprox import FedProx
from pflsweep.commands.check import case_of
from pflsweep.conformance.case import Case, advance, assert_same, kept_states, models
from pflsweep.engine import stack as stacking
from pflsweep.engine.simulation import Simulation
from pflsweep.engine.stack import Stack, StackMember, run_stack
from pflsweep.methods import stock
from pflsweep.methods.protocol import Verbs
from pflsweep.ops.vmap import per_client
from tests.conformance.test_methods import OWN, TABLE, YAMLS, case

# Floats that decide what is computed, or on which rows
APART = {
    ("fedphp", "strength"): "reads the value of a tensor",
    ("partialfed", "strategy_lr"): "reads the value of a tensor",
    ("fedfomo", "validation"): "read where all clients are trained at once",
    ("fedfomo_ma", "validation"): "read where all clients are trained at once",
    ("as_run/fedfomo_fedfomo", "validation"): "read where all clients are trained at once",
    ("as_run/fedfomo_fedfomo_ma", "validation"): "read where all clients are trained at once",
    ("as_run/pfllib_fedfomo", "validation"): "read where all clients are trained at once",
    ("as_run/pgfed_fedfomo", "validation"): "read where all clients are trained at once",
    ("knnper", "validation"): "read where all clients are trained at once",
    ("fedavg_data", "share"): "read where all clients are trained at once",
}
FLOATS = [
    (name, key)
    for name, row in TABLE.items()
    if name not in OWN and row.ala is None and not row.plugs and name in YAMLS
    for key, value in {**YAMLS[name], **row.values}.items()
    if isinstance(value, float)
]


def seen(sim: Simulation, member: StackMember | None = None) -> dict[str, torch.Tensor]:
    """Train two rounds more, and return all that is known of a simulation, and how much it has trained on."""
    if member is not None:
        member.join(sim)
    images = torch.tensor([result.images for result in islice(sim.run(), 2)])
    return {**kept_states(sim), **models(sim), "images": images}


def require_as_by_itself(cases: list[Case], *trials: dict[str, Any]) -> Stack:
    """Assert that each case's trial ends among the others as it does alone."""
    apart = [of.simulation(**how) for of, how in zip(cases, trials, strict=True)]
    together = [of.simulation(**how) for of, how in zip(cases, trials, strict=True)]
    ended, stack = run_stack([partial(seen, sim) for sim in together])
    for k, (got, sim) in enumerate(zip(ended, apart, strict=True)):
        if isinstance(got, BaseException):
            raise got
        assert_same(got, seen(sim), f"trial {k}", 1e-9)
    return stack


def prox(mu: float) -> Case:
    return case_of(FedProx, {"mu": mu})


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many trials each common `fit` had."""
    counts: list[int] = []
    fit_together = stacking._fit_together

    def counted(fits: list[Any]) -> None:
        counts.append(len(fits))
        fit_together(fits)

    monkeypatch.setattr(stacking, "_fit_together", counted)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key"), FLOATS)
def test_any_float_of_a_method_is_each_trials_own(name: str, key: str) -> None:
    value = {**YAMLS[name], **TABLE[name].values}[key]
    cases = [case(name, {key: own}) for own in (value, value * 0.75)]
    stack = require_as_by_itself(cases, {"chunk": 2}, {"chunk": 2, "where": {"seed": 1}})
    assert APART.get((name, key), "") in stack.refused
    assert bool(stack.refused) == ((name, key) in APART)


def test_every_refusal_is_tried() -> None:
    assert set(APART) <= set(FLOATS)


def test_a_strength_may_be_zero_in_one_trial(fits: list[int]) -> None:
    require_as_by_itself([prox(0.0), prox(0.5)], {}, {})
    assert fits == [2] * 6


class Counted(NamedTuple):
    steps: torch.Tensor  # [C] int64
    w: torch.Tensor
    opt: torch.Tensor


class Counting(FedAvg):
    """FedAvg whose work has a field of whole numbers."""

    def start(self, given: Any, data: Any) -> Counted:
        w = given.down.w
        return Counted(w.new_zeros(len(w), dtype=torch.int64), w, self.opt.init(w))


def test_a_rate_is_a_float_though_the_first_leaf_is_a_count(fits: list[int]) -> None:
    cases = [case_of(Counting, {}), case_of(Counting, {})]
    require_as_by_itself(cases, {"lr": 0.1}, {"lr": 0.3})
    assert set(fits) == {2}


@dataclass(frozen=True, kw_only=True)
class Derives(FedProx):
    """FedProx that computes a value from its strength once, before any trial trains."""

    @cached_property
    def half(self) -> Any:
        return self.mu / 2

    def init(self, w: Any, setup: Any) -> stock.Server:
        assert self.half == self.mu / 2
        return stock.Server(w)

    @per_client
    def step(self, given: Any, work: stock.Work, batch: Any) -> stock.Work:
        g = stock.proximal_gradient(self.task.grad(work.w, batch), self.half, work.w, given.down.w)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


def test_what_a_method_derives_from_a_float_is_each_trials_own(fits: list[int]) -> None:
    require_as_by_itself([case_of(Derives, {"mu": 1.0}), case_of(Derives, {"mu": 8.0})], {}, {})
    assert set(fits) == {2}


def test_trials_that_differ_in_more_are_trained_one_by_one() -> None:
    stack = require_as_by_itself([case("fedrep", {"head_epochs": 1}), case("fedrep", {"head_epochs": 2})], {}, {})
    assert "head_epochs is 1 and 2" in stack.refused


def test_trials_in_other_rounds_take_turns(fits: list[int]) -> None:
    """One trial begins a round later; the other two go together."""
    late = advance(prox(0.1).simulation(), 1)
    sims = [prox(0.1).simulation(), late, prox(0.2).simulation()]
    ended, stack = run_stack([partial(seen, sim) for sim in sims])
    wanted = [seen(prox(0.1).simulation()), seen(advance(prox(0.1).simulation(), 1)), seen(prox(0.2).simulation())]
    for got, own in zip(ended, wanted, strict=True):
        assert isinstance(got, dict)
        assert_same(got, own, "beside trials in other rounds", 1e-9)
    assert not stack.refused
    assert set(fits) == {2}


def test_one_that_fails_or_ends_leaves_the_others_as_they_are(fits: list[int]) -> None:
    def fails(sim: Simulation, member: StackMember) -> None:
        seen(sim, member)
        raise ZeroDivisionError("a watch")

    longer = prox(0.2).simulation()

    def goes_on(member: StackMember) -> dict[str, torch.Tensor]:
        seen(longer, member)
        return seen(longer)

    ended, _ = run_stack([partial(fails, prox(0.1).simulation()), goes_on])
    assert isinstance(ended[0], ZeroDivisionError)
    alone = prox(0.2).simulation()
    seen(alone)
    assert isinstance(ended[1], dict)
    assert_same(ended[1], seen(alone), "beside one that failed", 1e-9)
    assert fits == [2] * 6


def test_what_a_fit_raises_is_its_own_trials() -> None:
    class Breaks(FedProx):
        def fit(self, given: Any, data: Any, work: Any) -> Any:
            if self.mu == 0.3:
                raise ZeroDivisionError("a bug")
            return super().fit(given, data, work)

    sims = [case_of(Breaks, {"mu": mu}).simulation() for mu in (0.3, 0.2)]
    ended, _ = run_stack([partial(seen, sim) for sim in sims])
    assert isinstance(ended[0], ZeroDivisionError)
    assert isinstance(ended[1], dict)
    assert_same(ended[1], seen(prox(0.2).simulation()), "beside one with a bug", 1e-9)


def test_memory_for_fewer_trials_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    fit_together = stacking._fit_together

    def small(fits: list[Any]) -> None:
        tried.append(len(fits))
        if len(fits) > 2:
            raise torch.OutOfMemoryError("a small GPU")
        fit_together(fits)

    monkeypatch.setattr(stacking, "_fit_together", small)
    cases = [prox(mu) for mu in (0.1, 0.2, 0.3, 0.4, 0.5)]
    stack = require_as_by_itself(cases, *[{"chunk": 3}] * 5)
    assert not stack.refused
    assert tried[:3] == [5, 2, 2], "two and two, and the fifth by itself"
    assert set(tried[1:]) == {2}, "it is not tried again with more"


def test_private_training_stays_each_trials_own(fits: list[int]) -> None:
    require_as_by_itself([case("fedavg private"), case("fedavg private")], {}, {"where": {"seed": 1}})
    assert fits == []


def test_a_float_outside_each_is_no_number() -> None:
    """A method that would mix one trial's numbers into another's clients raises an error."""

    class Reads(FedProx):
        def fit(self, given: Any, data: Any, work: Any) -> Any:
            return super().fit(given, data, work) if self.mu < 1 else work

    cases = [case_of(Reads, {"mu": mu}) for mu in (0.1, 0.2)]
    stack = require_as_by_itself(cases, {}, {})
    assert stack.refused.startswith("TypeError: mu differs among stacked trials, and is read where all clients")


def test_verbs_know_what_they_are_of() -> None:
    sim = case("fedavg ala").simulation()
    assert [type(part).__name__ for part in sim.verbs.plugins] == ["Ala"]
    assert isinstance(sim.verbs, Verbs)
    assert type(sim.verbs.method).__name__ == "FedAvg"


@pytest.mark.slow
def test_other_precisions_stay_apart() -> None:
    sims = [prox(mu).simulation() for mu in (0.1, 0.2)]
    sims[1].task.precision = "bf16"
    _, stack = run_stack([partial(seen, sim) for sim in sims])
    assert stack.refused == "NotStackable: the trials' gradients are computed in different precisions"


def test_an_error_in_meeting_leaves_nobody_untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("in between")

    monkeypatch.setattr(stacking, "_joinable", fails)
    ended, _ = run_stack([partial(seen, prox(mu).simulation()) for mu in (0.1, 0.2)])
    assert [type(each) for each in ended] == [ZeroDivisionError] * 2
    assert "in between" in ended[0].__notes__[0], "with its traceback"


def test_what_failed_or_ended_is_forgotten_while_others_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is freed without the garbage collector, since it is short at that moment."""
    alive: list[weakref.ref] = []
    fit_together = stacking._fit_together

    def small(fits: list[Any]) -> None:
        room = torch.zeros(1)
        alive.append(weakref.ref(room))
        if len(fits) > 1:
            raise torch.OutOfMemoryError("a small GPU")
        fit_together(fits)

    def ends(member: StackMember) -> None:
        sim = prox(0.1).simulation()
        alive.append(weakref.ref(sim))
        member.join(sim)
        next(sim.run())
        raise ZeroDivisionError("it ends")

    still: list[int] = []

    def goes_on(sim: Simulation, member: StackMember) -> None:
        member.join(sim)
        for _ in range(3):
            next(sim.run())
            still.append(sum(each() is not None for each in alive))

    monkeypatch.setattr(stacking, "_fit_together", small)
    gc.collect()
    gc.disable()
    try:
        ended, _ = run_stack([ends, partial(goes_on, prox(0.2).simulation())])
    finally:
        gc.enable()
    assert isinstance(ended[0], ZeroDivisionError)
    assert len(alive) == 2, "one that was too large, and the trial that ended"
    assert still[-1] == 0
