"""The properties that every method has to have. A property is a function that raises AssertionError for a case.

`pflsweep check` prints the first line of its docstring, which is a statement that is true of every method.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflsweep.config.fields import rules_of
from pflsweep.conformance.case import (
    Case,
    advance,
    assert_same,
    everything,
    kept_states,
    models,
    packed,
    sizes,
    unpacked,
)
from pflsweep.conformance.fake_device import another_device
from pflsweep.conformance.fixtures import CLIENTS
from pflsweep.conformance.instrumentation import Poisoning, Pure, guard, guarded, memory_of, poisoned, steps_through
from pflsweep.engine.simulation import Simulation
from pflsweep.engine.stack import StackMember, run_stack
from pflsweep.methods.optimizer import Sgd
from pflsweep.ops.random import REMEDY, global_states
from pflsweep.ops.vmap import tree_map

Property = Callable[[Case], None]

BEFORE = 2  # rounds that are run before the round that a property examines
MOST = 5 / CLIENTS  # a participation that leaves one client out and makes chunks of 2 uneven
LONG = 30  # rounds of `hard_clients_are_survived`
ROUNDING = 1e-8  # relative difference between two devices after BEFORE rounds in double precision
WARM_UP = 8  # rounds after which every client has been sampled
DOUBLE = " (random.normal returns float64: convert it with .to(w.dtype))"
OVERWRITTEN = " (self.opt.update writes into work.w: is the old model read after it? Then clone it first)"


def any_chunking(case: Case) -> None:
    """any chunking of a cohort gives the same round"""
    _assert_any_chunking(case, {})


def any_chunking_with_noise(case: Case) -> None:
    """any chunking gives the same round of a model with dropout and batch norm"""
    _assert_any_chunking(replace(case, tolerance=max(case.tolerance, 1e-8)), {"images": True})


def _assert_any_chunking(case: Case, where: dict[str, Any]) -> None:
    """Compare a round in chunks of several sizes. where: arguments of `fixture`."""
    state = packed(advance(case.simulation(where=where, participation=MOST), BEFORE))
    rounds = {}
    for chunk in (1, 2, CLIENTS):
        sim = unpacked(case.simulation(where=where, participation=MOST, chunk=chunk), state)
        rounds[chunk] = everything(advance(sim, 1))
    for chunk in (2, CLIENTS):
        when = f"a round in chunks of {chunk} beside the same round client by client"
        assert_same(rounds[chunk], rounds[1], when, case.tolerance)


def per_client_lr_in_any_chunking(case: Case) -> None:
    """any chunking gives the same rounds when learning rates differ by client (supports_per_client_lr)"""
    method = case.simulation().verbs.method
    if method is None or not method.supports_per_client_lr:
        return
    runs = []
    for chunk in (1, 4):
        # Four rounds, after which the last turns of the clients differ
        sim = advance(case.simulation(lr_of="last_turn", lr_decay=0.5, chunk=chunk), 4)
        runs.append(everything(sim))
    assert_same(runs[1], runs[0], "chunks of 4 beside client by client, with train.lr_of=last_turn", case.tolerance)


def stacking_changes_nothing(case: Case) -> None:
    """trials that are stacked (trained at once) give the same rounds as each one alone"""
    apart, stacked = ([_trial(case, number, chunk) for number in range(3)] for chunk in (1, 2))
    ended, stack = run_stack([partial(_after_a_round, sim) for sim in stacked])
    for number, (got, sim) in enumerate(zip(ended, apart, strict=True)):
        if isinstance(got, BaseException):
            raise got
        assert_same(got, _after_a_round(sim), f"trial {number} of three", max(case.tolerance, 1e-9))
    assert not stack.refused, f"trials of other seeds and learning rates cannot be trained at once: {stack.refused}"


def _trial(case: Case, number: int, chunk: int) -> Simulation:
    """Return a simulation after some rounds. number: it determines the seed and the learning rate."""
    how: dict[str, Any] = {"where": {"seed": number}, "lr": 0.1 - 0.02 * number, "participation": MOST}
    return unpacked(case.simulation(**how, chunk=chunk), packed(advance(case.simulation(**how), BEFORE)))


def _after_a_round(sim: Simulation, member: StackMember | None = None) -> dict[str, Tensor]:
    """Run a round, in a stack where a member is given, and return what is known and evaluated after it."""
    if member is not None:
        member.join(sim)
    advance(sim, 1)
    return everything(sim)


def single_precision_is_kept(case: Case) -> None:
    """in float32, in which trials are trained, states and models keep their type"""
    for chunk in (1, 2):
        sim = case.simulation(where={"dtype": torch.float32}, participation=MOST, chunk=chunk)
        shape = _structure(sim.server)
        try:
            advance(sim, BEFORE)
            found = models(sim)
        except (RuntimeError, TypeError) as error:
            if not re.search("dtype|double|float64", str(error), re.IGNORECASE):
                raise
            raise AssertionError(f"chunks of {chunk}: {type(error).__name__}: {error}{DOUBLE}") from error
        assert _structure(sim.server) == shape, (
            f"the server's state was {shape} and is {_structure(sim.server)}{DOUBLE}"
        )
        for name, value in found.items():
            assert value.dtype == torch.float32, f"{name}: {value.dtype}{DOUBLE}"


def nothing_is_kept_elsewhere(case: Case) -> None:
    """the states of server and clients hold all that changes: neither the method, its class nor its module does"""
    alone = advance(case.simulation(), BEFORE)
    sim = case.simulation()
    method = sim.verbs.method
    before = memory_of(method)
    other = replace(case, make=partial(_with_another_value, case.make)).simulation()
    for _ in range(BEFORE):
        advance(other, 1)
        advance(sim, 1)
    after = memory_of(method)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    where = f"{', '.join(changed)} changed in training: a resumed, stacked or parallel trial would lose or mix it up"
    assert not changed, f"{where}. Keep it in the server's or a client's state, and what is derived in cached_property"
    got, wanted = map(everything, (sim, alone))
    assert_same(got, wanted, "beside another trial of the method in the same process")


def _with_another_value(make: Callable[..., Any], *args: Any) -> Any:
    """Return the method of a case with another value of its first hyperparameter that may have one."""
    method = make(*args)
    for name, rule in rules_of(type(method)).items():
        value = getattr(method, name)
        if type(value) is float and rule.allows(0.9 * value + 0.01):
            return replace(method, **{name: 0.9 * value + 0.01})
    return method


def padding_is_ignored(case: Case) -> None:
    """values in padded rows change nothing"""
    runs = []
    for garbage in (False, True):
        sim = advance(case.simulation(where={"garbage": garbage}, participation=MOST, chunk=CLIENTS), BEFORE)
        runs.append(everything(sim))
    assert_same(runs[1], runs[0], "with huge numbers in the padded rows (does a loss ignore batch.mask?)")


def nothing_is_learnt_from_test_rows(case: Case) -> None:
    """other test rows change no model and no state, unless the method says what it does with them"""
    method = case.simulation().verbs.method
    if method is not None and method.reads_test_rows:
        return
    runs = []
    for other in (False, True):
        sim = advance(case.simulation(where={"other_test": other}, participation=MOST), BEFORE)
        runs.append(everything(sim))
    assert_same(runs[1], runs[0], "with other test rows (does training or adaptation read data.test()?)")


def verbs_are_pure(case: Case) -> None:
    """no verb writes into what it is given"""
    plain = advance(case.simulation(participation=MOST), BEFORE)
    wanted = everything(plain)
    # Sgd writes into the work, and nothing else may. With Pure, which does not, the work may not change either.
    for optimiser, donated in ((Sgd, True), (Pure, False)):
        watch = partial(guarded, donated=donated)
        with steps_through(partial(guard, "step", donated)):
            sim = advance(case.simulation(watch=watch, optimiser=optimiser, participation=MOST), BEFORE)
            got = everything(sim)
        assert_same(got, wanted, f"under the optimiser {optimiser.__name__}{OVERWRITTEN}")


def old_work_is_dead(case: Case) -> None:
    """nothing reads the work that a step has replaced"""
    plain = advance(case.simulation(participation=MOST), BEFORE)
    with steps_through(poisoned):
        sim = advance(case.simulation(optimiser=Poisoning, participation=MOST), BEFORE)
        got = everything(sim)
    assert_same(got, everything(plain), f"with NaN left where the old work stood{OVERWRITTEN}")


def absent_clients_stay(case: Case) -> None:
    """the states of clients that are not sampled stay bitwise the same"""
    sim = case.simulation()
    steps = sim.run()
    for _ in range(BEFORE + 2):
        before = kept_states(sim)
        sampled = next(steps).ids
        absent = torch.tensor([i for i in range(CLIENTS) if i not in sampled.tolist()])
        for name in (n for n in before if not n.startswith("server")):
            after, when = kept_states(sim)[name][absent], f"clients {absent.tolist()}, absent in round {sim.round}"
            assert_same({name: after}, {name: before[name][absent]}, when)


def evaluation_changes_nothing(case: Case) -> None:
    """evaluation changes nothing: no state, no generator, no later round"""
    quiet = advance(case.simulation(), BEFORE)
    before, generators = kept_states(quiet), global_states()
    first, again = models(quiet), models(quiet)
    scores = quiet.evaluate("test")
    assert_same(kept_states(quiet), before, "after evaluation")
    assert_same(again, first, "evaluated twice")
    assert generators == global_states(), f"evaluation has drawn from a global generator: {REMEDY}"
    for view, score in quiet.evaluate("test").items():
        same = np.array_equal(score.loss, scores[view].loss, equal_nan=True)
        assert same, f"the {view} scores differ when they are asked for again"
    busy = advance(case.simulation(eval_every=1), BEFORE + 1)
    undisturbed = advance(case.simulation(), BEFORE + 1)
    assert_same(kept_states(busy), kept_states(undisturbed), "with an evaluation after each round")
    assert_same(kept_states(advance(quiet, 1)), kept_states(undisturbed), "a round after some evaluations")


def client_numbers_do_not_matter(case: Case) -> None:
    """relabelling the clients permutes the results"""
    order = [3, 0, 5, 1, 4, 2]
    plain, moved = case.simulation(), case.simulation(where={"order": order})
    for _ in range(BEFORE + 2):
        advance(plain, 1)
        advance(moved, 1)
        wanted = models(plain)
        wanted["personal models"] = wanted["personal models"][torch.tensor(order)]
        when = (
            f"round {plain.round} of relabelled clients (does `init` draw by position? setup.keys has each one's key)"
        )
        assert_same(models(moved), wanted, when, case.tolerance)


def another_device_changes_nothing(case: Case) -> None:
    """on another device, such as a GPU, tensors and numbers are as on a CPU, and its graphs can record the steps"""
    with another_device() as device:
        there = _trained_on(case, device)
    assert_same(there, _trained_on(case, "cpu"), "on another device")


def device_agrees_with_cpu(case: Case) -> None:
    """all tensors are on this device, and the numbers are the CPU's up to rounding"""
    there, here = _trained_on(case, case.device), _trained_on(case, "cpu")
    assert_same(there, here, f"on {case.device}", max(case.tolerance, ROUNDING))


def _trained_on(case: Case, device: str) -> dict[str, Tensor]:
    """Return states, models and losses after some rounds on a device, on the CPU."""
    sim = advance(case.simulation(where={"device": device}, participation=MOST, chunk=CLIENTS), BEFORE)
    losses = {f"{view} loss": torch.from_numpy(score.loss) for view, score in sim.evaluate().items()}
    return {name: tensor.cpu() for name, tensor in {**everything(sim), **losses}.items()}


def traffic_is_exact(case: Case) -> None:
    """a round communicates as many floats as are declared, or where none are, as many as with other cohorts"""
    sim, other = (case.simulation(where={"seed": seed}) for seed in (0, 1))
    # A method may ask back as often as the answers require, so that rounds differ.
    if case.traffic is None and inspect.isgeneratorfunction(sim.verbs.aggregate):
        return
    sent = _floats_of_rounds(sim)
    wanted = [case.traffic(sizes(sim))] * len(sent) if case.traffic else _floats_of_rounds(other)
    assert sent == wanted, f"{sent} floats for each client in each round instead of {wanted}"


def _floats_of_rounds(sim: Simulation) -> list[float]:
    """Return the floats that are sent up and down for a client in each of three rounds after the warm-up."""
    advance(sim, WARM_UP)
    return [r.traffic.floats_down + r.traffic.floats_up for r in islice(sim.run(), 3)]


def state_is_complete(case: Case) -> None:
    """a checkpoint holds all that the next rounds need"""
    sim = case.simulation()
    shape = _structure(sim.server)
    advance(sim, BEFORE)
    assert _structure(sim.server) == shape, (
        f"the server's state was {shape} at first and is {_structure(sim.server)} in round {sim.round}: what "
        "changes in it has to be a tensor that is there from the beginning"
    )
    assert _structure(tree_map(torch.clone, sim.server)) == shape, "tree_map does not rebuild the server"
    other = unpacked(case.simulation(), packed(sim))
    assert_same(kept_states(other), kept_states(sim), "after loading a checkpoint")
    assert_same(models(other), models(sim), "evaluated after loading a checkpoint")
    for _ in range(2):
        advance(sim, 1)
        advance(other, 1)
    got, wanted = map(everything, (other, sim))
    assert_same(got, wanted, "two rounds after loading a checkpoint")


def more_rounds_go_on(case: Case) -> None:
    """rounds do not depend on how many there will be, unless the method says so with resumable = False"""
    verbs = case.simulation().verbs
    if not all(part.resumable for part in (verbs.method, *verbs.plugins) if part is not None):
        return
    runs = []
    for rounds in (BEFORE + 1, LONG):
        sim = advance(case.simulation(rounds=rounds), BEFORE + 1)
        runs.append(everything(sim))
    when = f"of {LONG} rounds instead of {BEFORE + 1} (does it read turn.rounds? Then set resumable = False)"
    assert_same(runs[1], runs[0], when)


def hard_clients_are_survived(case: Case) -> None:
    """thirty rounds with difficult clients give no NaN and a lower training loss"""
    for participation in (0.5, 1.0):
        sim = case.simulation(participation=participation)
        before = _losses(sim)
        advance(sim, LONG)
        for name, value in everything(sim).items():
            if "state" not in name:  # a state may mark what is missing with an infinity
                assert bool(value.isfinite().all()), f"{name}: NaN or infinite after {LONG} rounds"
            assert not bool(value.isnan().any()), f"{name}: NaN after {LONG} rounds (infinity may mark what is unknown)"
        for view, loss in _losses(sim).items():
            if view not in before:  # FedFomo, for example, has a global model only after the first uploads
                continue
            change = f"went from {before[view]:.3f} to {loss:.3f} at participation {participation}"
            assert loss < before[view], f"the {view} training loss {change}"


def numbers_follow_the_seed(case: Case) -> None:
    """the same seed gives the same numbers, another seed others"""
    generators = global_states()
    first, again, other = (_seeded(case, seed) for seed in (0, 0, 1))
    assert generators == global_states(), f"training has drawn from a global generator (or seeded one): {REMEDY}"
    assert_same(again, first, "the same seed again")
    assert not torch.equal(other["personal models"], first["personal models"]), "another seed changes nothing"


def _seeded(case: Case, seed: int) -> dict[str, Tensor]:
    """Return states and models after some rounds with a seed."""
    sim = advance(case.simulation(where={"seed": seed}), BEFORE + 1)
    return everything(sim)


def _losses(sim: Simulation) -> dict[str, float]:
    """Return by view the mean training loss over the samples of all clients that are evaluated."""
    scores = {view: (s.loss[s.n > 0], s.n[s.n > 0]) for view, s in sim.evaluate("train").items()}
    return {view: float(np.average(loss, weights=n)) for view, (loss, n) in scores.items()}


def _structure(tree: Any) -> Any:
    """Return the structure of a tree: the types of its tuples and tensors, and its other leaves themselves."""
    if isinstance(tree, Tensor):
        return str(tree.dtype)
    if isinstance(tree, tuple):
        return type(tree).__name__, [_structure(part) for part in tree]
    if isinstance(tree, dict):
        return {name: _structure(part) for name, part in tree.items()}
    return tree


PROPERTIES: tuple[Property, ...] = (
    # First, since unseeded draws make most of the others fail too
    numbers_follow_the_seed,
    any_chunking,
    any_chunking_with_noise,
    per_client_lr_in_any_chunking,
    stacking_changes_nothing,
    single_precision_is_kept,
    nothing_is_kept_elsewhere,
    padding_is_ignored,
    nothing_is_learnt_from_test_rows,
    verbs_are_pure,
    old_work_is_dead,
    absent_clients_stay,
    evaluation_changes_nothing,
    client_numbers_do_not_matter,
    another_device_changes_nothing,
    traffic_is_exact,
    state_is_complete,
    more_rounds_go_on,
    hard_clients_are_survived,
)
# For a real device, which replaces the fake one.
ON_A_DEVICE: tuple[Property, ...] = (
    device_agrees_with_cpu,
    *(each for each in PROPERTIES if each is not another_device_changes_nothing),
)
