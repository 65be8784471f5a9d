"""Rounds: sampling, the content of a result, and that a run can be stopped and continued."""

import re
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from pflsweep.algorithms.as_run.pfedplat_fedfomo import PfedplatFedFomo
from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedrod import FedRoD
from pflsweep.algorithms.local import Local
from pflsweep.algorithms.splitgp import SplitGP
from pflsweep.conformance.case import Case, advance, assert_same, kept_states, models, packed, unpacked
from pflsweep.data.batching import Batching
from pflsweep.engine.evaluate import OWN
from pflsweep.engine.simulation import Simulation
from pflsweep.methods.optimizer import Sgd
from pflsweep.methods.protocol import Method
from pflsweep.util.errors import BadReturn
from tests.algorithms.helpers import ONE_AND_TWO, STILL, by_hand, close, simulate


def case(cls: type[Method] = FedAvg, hyper: dict[str, Any] | None = None) -> Case:
    return Case(lambda task, opt, epochs: cls(task=task, opt=opt, epochs=epochs, **(hyper or {})))


def cohorts(cls: type[Method] = FedAvg, seed: int = 0, **schedule: Any) -> list[list[int]]:
    sim = case(cls).simulation(where={"seed": seed}, **schedule)
    return [result.ids.tolist() for result in islice(sim.run(), 5)]


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 8, 9])
def test_estimates_count_the_batches_that_local_epochs_are_cut_into(rows: int, last_batch: str) -> None:
    batching = Batching(last_batch=last_batch)
    schedule = replace(case().simulation(epochs=3).schedule, batch=4, batching=batching)
    cut = batching.cut(np.arange(rows), 4)
    assert schedule.batches(rows) == 3 * len(cut)
    assert schedule.samples(rows) == 3 * sum(map(len, cut))


@pytest.mark.parametrize(
    ("participation", "size"), [(0.01, 1), (0.34, 2), (0.5, 3), (0.99, 5), (1.0, 6), (1 / 3, 2), (2 / 3, 4)]
)
def test_a_cohort_is_rounded_down_to_at_least_one(participation: float, size: int) -> None:
    assert case().simulation(participation=participation).cohort_size == size
    found = cohorts(participation=participation)
    assert all(len(set(ids)) == size for ids in found)


def test_cohorts_depend_on_the_seed_and_not_on_the_method() -> None:
    assert cohorts() == cohorts(Local)
    assert cohorts() != cohorts(seed=1)
    assert cohorts() == cohorts(chunk=6)
    assert len({tuple(ids) for ids in cohorts()}) > 1


def test_a_fixed_cohort_is_the_first_rounds_in_all_of_them() -> None:
    assert cohorts(sampling="fixed") == [cohorts()[0]] * 5
    assert cohorts(sampling="fixed", seed=1) != cohorts(sampling="fixed")


def test_the_first_round_may_train_all_clients() -> None:
    found = cohorts(first_round="all", participation=0.34)
    assert sorted(found[0]) == list(range(6))
    assert found[1:] == cohorts(participation=0.34)[1:], "the others are as ever"
    fixed = cohorts(first_round="all", sampling="fixed", participation=0.34)
    assert [len(ids) for ids in fixed] == [6, 2, 2, 2, 2]
    assert fixed[1:] == [cohorts(participation=0.34)[0]] * 4, "what the first round would have had without"


def test_a_client_may_keep_the_rate_of_its_last_turn() -> None:
    """f = 1/2 (w - m)^2 from w = 0, m = 4 for A with one step, -4 for B with two; lr 0.5, halved in each round.

    Round 1, A for the first time: 0.5, w = 2          Round 2, B for the first time: 0.5, w = -2, then -3
    Round 3, A after round 1: 0.25, w = 2.5            Round 4, A after round 3: 0.0625, which is the round's, 2.59375
    """
    together = by_hand(ONE_AND_TWO)
    together.cohorts = np.array([[0], [1], [0], [0]])
    how: dict[str, Any] = {"epochs": 1, "batch": 1, "lr": 0.5, "lr_decay": 0.5, "participation": 0.5, "rounds": 4}
    run = simulate(Local, lr_of="last_turn", federation=together, network=STILL, **how)
    close(run.personal, [[2.59375, 7], [-3, 7]])
    assert [result.lr for result in run.results] == [0.5, 0.25, 0.125, 0.0625], "what is logged is the round's"
    usual = simulate(Local, federation=together, network=STILL, **how)  # B at 0.25: -1, then -1.75; A 0.125, 0.0625
    close(usual.personal, [[2 + 0.125 * 2 + 0.0625 * 1.75, 7], [-1.75, 7]])


@pytest.mark.parametrize(("clients", "counted"), [("all", 6), ("trained", 3)])
def test_scores_may_leave_out_clients_without_a_turn(clients: str, counted: int) -> None:
    sim = case(Local).simulation(participation=0.5, sampling="fixed")
    sim.metrics = replace(OWN, clients=clients)
    trained = next(sim.run()).ids.numpy()
    scores = sim.evaluate("train")["personal"]
    assert (scores.n > 0).sum() == counted
    assert (scores.n[trained] > 0).all()
    assert np.isnan(scores.loss[scores.n == 0]).all()


def test_cohorts_follow_the_keys() -> None:
    order = [3, 0, 5, 1, 4, 2]
    moved = [
        [order[i] for i in result.ids.tolist()] for result in islice(case().simulation(where={"order": order}).run(), 5)
    ]
    assert moved == cohorts()


def test_a_result_says_what_happened() -> None:
    sim = case().simulation(participation=1.0, eval_every=2, rounds=3, lr=0.5, lr_decay=0.5)
    results = list(sim.run())
    assert [r.round for r in results] == [1, 2, 3]
    assert [r.lr for r in results] == [0.5, 0.25, 0.125]
    assert {r.images for r in results} == {2 * (11 + 1 + 7 + 6 + 10 + 5)}
    assert [sorted(r.scores) for r in results] == [[], ["global", "personal"], ["global", "personal"]]
    assert list(sim.run()) == []


def test_aggregation_weights_are_shares_or_uniform() -> None:
    for weights, wanted in (("share", [11 / 40, 1 / 40, 7 / 40]), ("uniform", [1 / 3] * 3)):
        turn = case().simulation(weights=weights)._turn(torch.tensor([0, 1, 2]))
        total = 1 if weights == "uniform" else 40 / 19
        assert turn.share.tolist() == pytest.approx([share * total for share in wanted])
        assert float(turn.share.sum()) == pytest.approx(1)


def test_a_turn_knows_when_the_last_one_was() -> None:
    sim = case().simulation()
    first, second = (set(result.ids.tolist()) for result in islice(sim.run(), 2))
    wanted = [2 if i in second else 1 if i in first else -1 for i in range(6)]
    assert sim.last.tolist() == wanted
    assert sim._turn(torch.arange(6)).last.tolist() == wanted


@pytest.mark.parametrize("cls", [FedAvg, Local])
def test_a_run_can_be_stopped_and_continued(cls: type[Method]) -> None:
    whole = advance(case(cls).simulation(), 5)
    first = advance(case(cls).simulation(), 2)
    second = advance(unpacked(case(cls).simulation(), packed(first)), 3)
    assert_same({**kept_states(second), **models(second)}, {**kept_states(whole), **models(whole)}, "continued")
    assert second.round == whole.round == 5


def stale(sim: Simulation) -> Simulation:
    sim.metrics = replace(OWN, personal="stale")
    return sim


class Rounds(NamedTuple):
    w: torch.Tensor
    rounds: int


class CountsRounds(FedAvg):
    """Method that counts in a number of the server's state, which a checkpoint would not keep."""

    def init(self, w: torch.Tensor, setup: Any) -> Rounds:
        return Rounds(w, 0)

    def aggregate(self, server: Any, up: Any, turn: Any) -> Rounds:
        return Rounds(turn.share @ up.w, server.rounds + 1)


def test_what_changes_in_the_servers_state_has_to_be_a_tensor() -> None:
    said = r"`aggregate` of CountsRounds returned a server state with \[1\] where it had \[0\], in rounds: "
    with pytest.raises(BadReturn, match=said):
        advance(case(CountsRounds).simulation(), 1)


@pytest.mark.parametrize(
    "verb", ["init", "init_client", "send", "start", "fit", "finish", "aggregate", "personal", "show"]
)
def test_a_verb_without_a_return_is_named_with_the_line_where_it_is_written(verb: str) -> None:
    def forgets(self: FedAvg, *_: Any) -> None: ...

    cls = type("Forgets", (FedAvg,), {verb: forgets})
    said = "has to return a pair:" if verb == "finish" else "returned None: it must be"
    line = forgets.__code__.co_firstlineno
    with pytest.raises(BadReturn, match=rf"^`{verb}` of Forgets {said} .*\({re.escape(__file__)}, line {line}\)$"):
        advance(case(cls).simulation(), 1).evaluate()


@pytest.mark.parametrize("verb", ["personal", "global_model"])
def test_models_of_another_length_are_refused_before_they_are_scored(verb: str) -> None:
    cls = type("Heads", (FedAvg,), {verb: lambda self, *given: getattr(FedAvg, verb)(self, *given)[..., :10]})
    with pytest.raises(BadReturn, match=rf"^`{verb}` of Heads returned \[.*10\]: it must be .*\d\d\]"):
        advance(case(cls).simulation(), 1).evaluate()


def test_stale_personal_models_are_those_of_before_aggregation() -> None:
    """FedRoD's personal model is its head on the shared model that was sent in the client's last turn, not the newest
    one.
    """
    sim = stale(case(FedRoD, {"init_personal": "copy"}).simulation())
    # The models from before training
    wanted = list(case(FedRoD, {"init_personal": "copy"}).simulation().personal_models())
    for _ in range(4):
        server = sim.server
        result = next(sim.run())
        data = sim._data(result.ids, sim.round, "evaluate")
        fresh = sim.verbs.personal(server, sim.clients.get(result.ids), data, sim._turn(result.ids))
        for i, w in zip(result.ids.tolist(), fresh, strict=True):
            wanted[i] = w
        assert_same(dict(enumerate(sim.personal_models())), dict(enumerate(wanted)), "stale models")
    current = advance(case(FedRoD, {"init_personal": "copy"}).simulation(), 4)
    assert any(not torch.equal(a, b) for a, b in zip(current.personal_models(), wanted, strict=True))
    assert_same(kept_states(sim), kept_states(current), "what is scored changes no training")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (Case(lambda task, _, epochs: PfedplatFedFomo(task=task, opt=Sgd(0.0, 0.0), epochs=epochs, every=1)), "models"),
        (case(SplitGP, {"form": "platform", "gamma": 0.3, "keep": None, "threshold": 0.2}), "own"),
    ],
)
def test_stale_personal_models_on_the_server_are_those_of_after_the_turn(given: Case, name: str) -> None:
    sim = stale(given.simulation())
    before = torch.stack(list(sim.personal_models()))
    ids = next(sim.run()).ids
    kept, rows = torch.stack(list(sim.personal_models())), getattr(sim.server, name)
    size = rows.shape[1]
    assert torch.equal(kept[ids, :size], rows[ids])
    assert not (kept[ids, :size] == before[ids, :size]).all(1).any(), "each has trained"
    # SplitGP's general exit is shared: it stays as received
    assert torch.equal(kept[ids, size:], before[ids, size:])
    absent = [i for i in range(len(kept)) if i not in ids.tolist()]
    assert absent
    assert torch.equal(kept[absent], before[absent])


def test_scores_of_stale_models_can_be_stopped_and_continued() -> None:
    whole = advance(stale(case(FedRoD, {"init_personal": "copy"}).simulation()), 4)
    half = advance(stale(case(FedRoD, {"init_personal": "copy"}).simulation()), 2)
    rest = advance(unpacked(stale(case(FedRoD, {"init_personal": "copy"}).simulation()), packed(half)), 2)
    assert_same(dict(enumerate(rest.personal_models())), dict(enumerate(whole.personal_models())), "continued")


def test_stale_models_are_scored_alike_wherever_they_lie_in_memory() -> None:
    sim = advance(stale(case(FedRoD, {"init_personal": "copy"}).simulation()), 2)
    for i, model in enumerate(sim.personal_models(torch.arange(3))):
        (alone,) = sim.personal_models(torch.tensor([i]))
        assert torch.equal(model, alone)
        # Memory of its own, at an address that does not depend on the other models
        assert model.storage_offset() == alone.storage_offset() == 0
        assert model.untyped_storage().nbytes() == model.nbytes


def test_a_state_in_memory_does_not_move_on() -> None:
    sim = advance(case(Local).simulation(), 2)
    state = sim.state()
    wanted = {**kept_states(sim), **models(sim)}
    advance(sim, 2)
    other = case(Local).simulation()
    other.load(state)
    assert_same({**kept_states(other), **models(other)}, wanted, "a state that was kept")
    advance(other, 1)
    again = case(Local).simulation()
    again.load(state)
    assert_same({**kept_states(again), **models(again)}, wanted, "a state that was loaded before")


def test_scores_are_those_of_the_models() -> None:
    sim = advance(case(Local).simulation(), 2)
    scores = sim.evaluate("test")
    assert list(scores) == ["personal"], "Local has no global model"
    personal = scores["personal"]
    assert personal.n.tolist() == [4, 4, 4, 4, 0, 4]
    assert np.isnan(personal.accuracy[4])
    assert np.isnan(personal.loss[4])
    for i, w in enumerate(sim.personal_models()):
        rows = torch.from_numpy(sim.federation.rows["test"][i])
        if len(rows):
            x, y = sim.federation.gather(rows)
            logits = sim.task.logits(w, x)
            assert personal.correct[i] == int((logits.argmax(1) == y).sum())
            assert personal.loss[i] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, y)))


class Contrary(FedAvg):
    """A method whose personal model is the global one with other `logits`."""

    def logits(self, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return -self.task.logits(w, x)


def test_a_method_with_logits_of_its_own_is_scored_with_them() -> None:
    scores = advance(case(Contrary).simulation(), 2).evaluate("train")
    assert not np.isclose(scores["personal"].loss, scores["global"].loss).any()


def test_every_client_is_scored_with_the_global_model_on_its_own_rows() -> None:
    sim = advance(case().simulation(), 2)
    scores = sim.evaluate("train")
    assert scores["global"].n.tolist() == sim.federation.sizes.tolist()
    assert np.array_equal(scores["personal"].loss, scores["global"].loss), "FedAvg's personal model is global"
    assert len(set(scores["global"].loss)) == 6


def test_personal_models_are_scored_themselves_beside_a_global_one() -> None:
    """FedRoD has both: scores of the global model must not be reused for personal ones."""
    sim = advance(case(FedRoD, {"init_personal": "copy"}).simulation(), 2)
    scores = sim.evaluate("train")
    for i, w in enumerate(sim.personal_models()):
        x, y = sim.federation.gather(torch.from_numpy(sim.federation.rows["train"][i]))
        loss = torch.nn.functional.cross_entropy(sim.task.logits(w, x), y)
        assert scores["personal"].loss[i] == pytest.approx(float(loss))
        assert scores["personal"].loss[i] != scores["global"].loss[i]
