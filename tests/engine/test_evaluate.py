"""Scores: by hand on tables of known predictions, and compared with the models themselves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.algorithms.fedrod import FedRoD
from pflsweep.algorithms.local import Local
from pflsweep.config.options import Metrics
from pflsweep.conformance.case import Case, advance, assert_same, kept_states, packed, unpacked
from pflsweep.conformance.fixtures import fixture
from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.federation import Federation
from pflsweep.engine import evaluate
from pflsweep.engine.evaluate import OWN, Scores, cover, score, targets
from pflsweep.engine.simulation import Simulation
from pflsweep.methods.protocol import Method
from pflsweep.methods.task import Task
from pflsweep.models.blocks import model_of
from pflsweep.models.layers import BatchNorm2d

EVERYTHING = replace(OWN, subset=0.5, all=True, trained=True)
Y = [0, 0, 1, 1, 2, 2, 2, 2, 0]
TESTED = [[0, 1, 2], [3, 4], [5, 6, 7, 8]]  # test rows of three clients


def tiny(seed: int = 0) -> tuple[Task, Federation]:
    """Return a task whose inputs are one-hot classes, and whose models are matrices [3, 3] of logits for each class."""
    y = torch.tensor(Y)
    x, none = nn.functional.one_hot(y).float(), torch.zeros(1)
    dataset = Dataset("tiny", x, y, len(Y), 3, 1.0, none, none + 1, "tiny")
    rows = Rows([np.array(own) for own in TESTED], [np.array(own) for own in TESTED])
    task = Task(model_of(head=nn.Linear(3, 3, bias=False)))
    return task, Federation(dataset, rows, validation=0.0, seed=seed, device="cpu")


def answers(*classes: int) -> Tensor:
    """Return the model that predicts classes[k] for class k, with a logit of 1 and zeros."""
    return nn.functional.one_hot(torch.tensor(classes), 3).T.float().flatten()


def scored(models: list[Tensor], metrics: Metrics = EVERYTHING, large: int = 4) -> dict[str, Scores]:
    task, federation = tiny()
    return score(task, task.logits, enumerate(models), federation, targets(federation, "test", metrics), large)


def test_batch_norm_is_calibrated_on_all_classes_of_a_sorted_dataset() -> None:
    """Four batches of ten are drawn from 160 images that are their class, sorted in runs of 40."""
    y = torch.arange(4).repeat_interleave(40)
    dataset = Dataset("sorted", y.float().view(-1, 1, 1, 1), y, 160, 4, 1.0, torch.zeros(1), torch.ones(1), "sorted")
    rows = Rows([np.arange(160)], [np.arange(160)])
    federation = Federation(dataset, rows, validation=0.0, seed=0, device="cpu")
    model = model_of(body=nn.Sequential(BatchNorm2d(1), nn.Flatten()), head=nn.Linear(1, 4))
    task = Task(model)
    (total, mean, var) = evaluate._calibrate(task, task.vector(model), federation, 0, 10)[0]
    assert total == 40
    assert float(mean) == pytest.approx(1.5, abs=0.5)
    assert float(var) == pytest.approx(1.25, abs=0.5)


def test_batch_norm_is_calibrated_on_rows_that_follow_the_client_and_not_its_place() -> None:
    x, y = torch.arange(160.0).view(-1, 1, 1, 1), torch.arange(160) % 4
    dataset = Dataset("rows", x, y, 160, 4, 1.0, torch.zeros(1), torch.ones(1), "rows")
    own, found = np.split(np.arange(160), 2), []
    task = Task(model := model_of(body=nn.Sequential(BatchNorm2d(1), nn.Flatten()), head=nn.Linear(1, 4)))
    for order in ([0, 1], [1, 0]):
        rows = Rows([own[i] for i in order], [own[i] for i in order])
        federation = Federation(dataset, rows, validation=0.0, seed=0, device="cpu", stable_ids=order)
        found.append(evaluate._calibrate(task, task.vector(model), federation, order.index(1), 10)[0])
    assert found[0] == found[1]


def test_scores_by_hand() -> None:
    """One model is right, one always predicts 0, and one swaps 1 and 2."""
    found = scored([answers(0, 1, 2), answers(0, 0, 0), answers(0, 2, 1)])
    own, everything = found["own"], found["all"]
    assert own.n.tolist() == [3, 2, 4]
    assert own.correct.tolist() == [3, 0, 1]
    # F1 of class 0 (right), class 1 (predicted wrongly) and class 2 (missed)
    assert own.f1.tolist() == pytest.approx([1, 0, (1 + 0 + 0) / 3])
    assert everything.n.tolist() == [9, 9, 9]
    assert everything.correct.tolist() == [9, 3, 3]
    assert everything.f1.tolist() == pytest.approx([1, (2 * 3 / (3 + 9)) / 3, 1 / 3])
    right, wrong = np.log(np.e + 2) - 1, np.log(np.e + 2)
    assert own.loss.tolist() == pytest.approx([right, wrong, (right + 3 * wrong) / 4])
    assert everything.loss.tolist() == pytest.approx([right, (3 * right + 6 * wrong) / 9, (3 * right + 6 * wrong) / 9])
    assert own.accuracy.tolist() == pytest.approx([1, 0, 0.25])


def test_a_model_of_nan_is_right_about_nothing() -> None:
    """The largest of NaN is the first: it would be right about class 0."""
    own = scored([answers(0, 1, 2) * torch.nan, answers(0, 1, 2), answers(0, 1, 2)])["own"]
    assert own.correct.tolist() == [0, 2, 4]
    assert own.f1[0] == 0
    assert np.isnan(own.loss[0])


def test_a_prediction_that_is_none_is_no_prediction_of_class_0() -> None:
    """Class 0 is found whole, and class 1 missed once: F1 of 1 and of 2 / 3."""
    n, correct, _, f1 = evaluate._tally(np.array([0, 1, 1]), np.array([0, -1, 1]), np.zeros(3), 3)
    assert (n, correct) == (3, 2)
    assert f1 == pytest.approx((1 + 2 / 3) / 2)


def test_macro_f1_is_scikit_learns() -> None:
    draw = np.random.default_rng(0)
    for classes in (2, 5, 11):
        y, seen = draw.integers(classes, size=(2, 40))
        found = evaluate._tally(y, seen, np.zeros(40), 20)[3]
        assert found == pytest.approx(f1_score(y, seen, average="macro"))


def test_the_subset_is_a_clients_own_rows_and_those_of_some_others() -> None:
    _, federation = tiny()
    # The number of others is ceil(2 share)
    for share, others in ((0.1, 1), (0.5, 1), (0.6, 2), (1.0, 2)):
        found = targets(federation, "test", replace(OWN, subset=share))["subset"]
        for i, rows in enumerate(found):
            whole = [j for j, own in enumerate(TESTED) if set(own) <= set(rows.tolist())]
            assert i in whole
            assert len(whole) == others + 1
            assert sorted(row for j in whole for row in TESTED[j]) == rows.tolist()


def test_half_of_the_others_are_as_many_as_on_fedpgs_platform() -> None:
    """The number is N // 2, for even and odd N."""
    for clients in (6, 5):
        federation = fixture(even=True).federation.subset(np.arange(clients))
        own = federation.rows["test"]
        for rows in targets(federation, "test", EVERYTHING)["subset"]:
            assert len(rows) == (clients // 2 + 1) * len(own[0])


def test_a_share_of_the_others_in_hundredths_is_exact() -> None:
    """0.28 of 25 other clients is a little more than 7 in binary."""
    x, none = torch.zeros(26, 1), torch.zeros(1)
    dataset = Dataset("rows", x, torch.zeros(26, dtype=torch.int64), 26, 2, 1.0, none, none + 1, "rows")
    rows = Rows(np.split(np.arange(26), 26), np.split(np.arange(26), 26))
    federation = Federation(dataset, rows, validation=0.0, seed=0, device="cpu")
    found = targets(federation, "test", replace(OWN, subset=0.28))["subset"]
    assert {len(rows) for rows in found} == {1 + 7}


def test_the_subset_may_be_as_large_as_the_clients_own() -> None:
    _, federation = tiny()
    union, own = (
        targets(federation, "test", replace(OWN, subset=1.0, subset_size=size))["subset"] for size in ("union", "own")
    )
    for i, rows in enumerate(own):
        assert len(rows) == len(TESTED[i])
        assert set(rows.tolist()) <= set(union[i].tolist())
    assert any(set(rows.tolist()) != set(TESTED[i]) for i, rows in enumerate(own))


def test_everybodys_rows_may_be_drawn_to_the_size_of_the_clients_own() -> None:
    """G-acc on FedPG's platform: each client's model is scored on its own draw, without replacement, from all test
    rows.
    """
    _, federation = tiny()
    drawn = replace(EVERYTHING, all_size="own")
    everybody = set(range(len(Y)))
    found = [targets(federation, "test", drawn)["all"] for _ in range(2)]
    assert [rows.tolist() for rows in found[0]] == [rows.tolist() for rows in found[1]], "once"
    for own, rows in zip(TESTED, found[0], strict=True):
        assert len(set(rows.tolist())) == len(own)
        assert set(rows.tolist()) <= everybody
    many = [targets(tiny(seed)[1], "test", drawn)["all"][0] for seed in range(40)]
    assert set(np.concatenate(many).tolist()) == everybody, "any of them"


def test_scores_on_own_draws_are_those_of_their_rows() -> None:
    sim = advance(case(Local).simulation(), 2)
    union, own = asked(sim).evaluate(), asked(sim, replace(EVERYTHING, all_size="own")).evaluate()
    assert own["personal_all"].n.tolist() == own["personal"].n.tolist()
    assert own["personal"].correct.tolist() == union["personal"].correct.tolist()
    rows = targets(sim.federation, "test", sim.metrics)["all"]
    for i, w in enumerate(sim.personal_models()):
        x, y = sim.federation.gather(torch.from_numpy(rows[i]))
        assert own["personal_all"].correct[i] == int((sim.task.logits(w, x).argmax(1) == y).sum())


@pytest.mark.parametrize("target", ["subset", "all"])
def test_what_is_drawn_to_score_on_is_drawn_once_by_key(target: str) -> None:
    order, metrics = [3, 0, 5, 1, 4, 2], replace(EVERYTHING, all_size="own")
    plain, moved = fixture().federation, fixture(order=order).federation
    first, again, of_moved = (targets(f, "test", metrics)[target] for f in (plain, plain, moved))
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in first]
    assert [rows.tolist() for rows in of_moved] == [first[i].tolist() for i in order]
    other = targets(fixture(seed=1).federation, "test", metrics)[target]
    assert [rows.tolist() for rows in other] != [rows.tolist() for rows in first]


def case(cls: type[Method] = FedAvg, **hyper: Any) -> Case:
    return Case(lambda task, opt, epochs: cls(task=task, opt=opt, epochs=epochs, **hyper))


def asked(sim: Simulation, metrics: Metrics = EVERYTHING) -> Simulation:
    sim.metrics = metrics
    return sim


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("together", [1, 4, 16])
def test_sharing_batches_changes_no_score(images: bool, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Personal models and a global one are scored together; with batch norm each client has its own statistics."""
    monkeypatch.setattr(evaluate, "TOGETHER", together)
    sim = advance(case(FedRoD, init_personal="copy").simulation(where={"images": images}), 2)
    plain, shared = sim.evaluate(), asked(sim).evaluate()
    for view in ("personal", "global"):
        for one, other in zip(shared[view], plain[view], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)
    found = targets(sim.federation, "test", EVERYTHING)
    for target in ("subset", "all"):
        for i, w in enumerate(sim.personal_models()):
            only = {"own": [found[target][i]] * sim.federation.clients}
            alone = score(sim.task, sim.verbs.logits, [(i, w)], sim.federation, only, 8)["own"]
            together_ = shared[f"personal_{target}"]
            got, wanted = ([column[i] for column in scores] for scores in (together_, alone))
            assert got == pytest.approx(wanted, rel=1e-9)


def test_one_pass_serves_all_targets_and_one_model_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    task, federation = tiny()
    passed = []

    def counted(w: Tensor, x: Tensor) -> Tensor:
        passed.append(len(x))
        return task.logits(w, x)

    found = targets(federation, "test", EVERYTHING)
    assert all(cover(found)(i) is found["all"][0] for i in range(3))
    w = answers(0, 1, 2)
    score(task, counted, ((i, w) for i in range(3)), federation, found, 4)
    assert sum(passed) == len(Y), "the same model for three clients is scored once"
    passed.clear()
    score(task, counted, ((i, w + i) for i in range(3)), federation, found, 4)
    assert sum(passed) == 3 * len(Y)
    passed.clear()
    score(task, counted, ((i, w) for i in range(3)), federation, targets(federation, "test", OWN), 4)
    assert sum(passed) == len(Y)


@pytest.mark.parametrize(("most", "reads"), [(1, 3), (10, 2), (10**6, 1)])
def test_predictions_of_many_clients_are_read_from_a_device_at_once(
    most: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read waits until the device has computed all before it. The three clients' models are scored on 9 rows each."""
    models = [answers(0, 1, 2), answers(0, 0, 0), answers(0, 2, 1)]
    monkeypatch.setattr(evaluate, "TOGETHER", 1)
    expected, read, on_cpu = scored(models), [], evaluate._on_cpu

    def watched(passes: list) -> list:
        read.append(len(passes))
        return on_cpu(passes)

    monkeypatch.setattr(evaluate, "READ", most)
    monkeypatch.setattr(evaluate, "_on_cpu", watched)
    for name, scores in scored(models).items():
        np.testing.assert_array_equal(scores, expected[name])
    assert sum(read) == 3
    assert len([size for size in read if size]) == reads


def test_validation_rows_do_not_part_clients_with_one_model() -> None:
    """Rows that all share take one pass a model, and validation rows one a client. The last client has none."""
    task, federation = tiny()
    found = targets(federation, "test", EVERYTHING) | {
        "validation": [np.array([5, 6]), np.array([0]), np.array([], int)]
    }
    models = [answers(0, 1, 2), answers(0, 0, 0), answers(0, 2, 1)]
    apart = {name: score(task, task.logits, enumerate(models), federation, {name: found[name]}, 4) for name in found}
    seen = score(task, task.logits, enumerate(models), federation, found, 4)
    for name, scores in seen.items():
        np.testing.assert_allclose(scores, apart[name][name], rtol=1e-6)
    assert seen["validation"].correct.tolist() == [2, 1, 0]
    passed = []

    def counted(w: Tensor, x: Tensor) -> Tensor:
        passed.append(len(x))
        return task.logits(w, x)

    score(task, counted, ((i, models[0]) for i in range(3)), federation, found, 4)
    assert sum(passed) == len(Y) + 3


def test_training_rows_may_be_scored_in_place_of_test_rows() -> None:
    sim = advance(asked(case().simulation(eval_every=1), replace(OWN, rows="train")), 1)
    scores = next(sim.run()).scores
    plain = sim.evaluate("train")
    assert np.array_equal(scores["personal"].n, sim.federation.sizes.numpy())
    assert np.array_equal(scores["personal"].loss, plain["personal"].loss)
    assert not np.array_equal(scores["personal"].loss, sim.evaluate("test")["personal"].loss)


def test_malicious_clients_count_nowhere() -> None:
    sim = advance(asked(case().simulation(participation=1.0)), 1)
    honest = sim.evaluate()
    bad = torch.tensor([True, False, False, False, False, False])
    sim.verbs = sim.verbs._replace(malicious=bad)
    for name, scores in sim.evaluate().items():
        assert scores.n[0] == 0
        assert all(np.isnan(column[0]) for column in (scores.accuracy, scores.loss, scores.f1))
        np.testing.assert_array_equal(scores.correct[1:], honest[name].correct[1:])


def test_trained_models_are_those_before_aggregation() -> None:
    sim = asked(case().simulation(participation=1.0))
    before = sim.global_model()
    advance(sim, 1)
    assert sim.trained is not None
    share = sim.federation.sizes.double() / sim.federation.sizes.sum()
    # FedAvg's global model is the mean of the trained ones
    torch.testing.assert_close(share @ sim.trained, sim.global_model())
    assert not any(torch.equal(w, before) for w in sim.trained)
    scores = sim.evaluate()
    for i, w in enumerate(sim.trained):
        x, y = sim.federation.gather(torch.from_numpy(sim.federation.rows["test"][i]))
        assert scores["trained"].correct[i] == (sim.task.logits(w, x).argmax(1) == y).sum()
    assert {"trained", "trained_subset", "trained_all"} <= set(scores)


def test_a_client_without_a_turn_is_scored_as_it_is_personalised() -> None:
    sim = advance(asked(case().simulation()), 1)
    away = (sim.last < 0).numpy()
    assert 0 < away.sum() < 6
    scores = sim.evaluate("train")
    same = scores["trained"].loss == scores["personal"].loss
    assert same.tolist() == away.tolist()


def test_methods_that_send_no_model_have_no_trained_view() -> None:
    sim = advance(asked(case(Local).simulation()), 1)
    assert not any(name.startswith(("trained", "global")) for name in sim.evaluate())


def test_trained_models_are_part_of_the_state() -> None:
    whole = advance(asked(case().simulation()), 4)
    second = advance(unpacked(asked(case().simulation()), packed(advance(asked(case().simulation()), 2))), 2)
    assert second.trained is not None
    assert torch.equal(second.trained, whole.trained)
    assert_same(kept_states(second), kept_states(whole), "continued")
