"""Options for the clients of any partition: others' targets, clients that are held out, unequal participation."""

import numpy as np
import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.config.compose import Config, compose
from pflsweep.config.schema import check
from pflsweep.conformance.case import Case
from pflsweep.conformance.fixtures import CLIENTS, fixture
from pflsweep.data.federation import Federation
from pflsweep.data.loader import ClientData
from pflsweep.data.participation import draw_cohort, participation_probabilities
from pflsweep.engine.simulation import Simulation
from pflsweep.trial.build import build_federation
from pflsweep.trial.metadata import digest_of
from pflsweep.util.errors import UserError

ORDER = [4, 2, 0, 5, 1, 3]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# Out-of-local targets


def test_targets_change_hands_and_training_rows_do_not():
    own = fixture(even=True).federation
    other = own.permuted(0)
    assert sorted(other.targets) == list(range(CLIENTS))
    assert other.targets != own.targets == list(range(CLIENTS))
    assert same(other.rows["train"], own.rows["train"])
    assert same(other.rows["test"], [own.rows["test"][j] for j in other.targets])
    assert torch.equal(other.class_counts, own.class_counts)


def test_validation_rows_go_with_the_test_rows():
    config = compose(["data.validation=0.2", "data.targets=permuted"])
    other, own = build_federation(config)[0], build_federation(compose(["data.validation=0.2"]))[0]
    for split in ("validation", "test"):
        assert same(other.rows[split], [own.rows[split][j] for j in other.targets])


def test_a_shuffle_is_reproducible_and_another_one_is_another():
    drawn = [tuple(fixture().federation.permuted(shuffle).targets) for shuffle in (0, 0, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) >= 4


def test_targets_follow_the_client_and_not_its_place():
    plain, moved = fixture().federation.permuted(3), fixture(order=ORDER).federation.permuted(3)
    by_key = {int(plain.stable_ids[i]): int(plain.stable_ids[j]) for i, j in enumerate(plain.targets)}
    assert by_key == {int(moved.stable_ids[i]): int(moved.stable_ids[j]) for i, j in enumerate(moved.targets)}


@pytest.mark.parametrize("ids", [[0], [2, 3, 5]])
def test_a_methods_holdout_is_the_targets_and_nobody_trains_on_it(ids):
    own, other = fixture().federation, fixture().federation.permuted(1)

    def parts(federation: Federation, ids: list[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        rest, held = ClientData.of(federation, ids, 1, batch=4, large=8).holdout(0.2)
        return rest._chunk.rows["train"], held._chunk.rows["train"]

    rest, held = parts(other, ids)
    assert same(rest, parts(own, ids)[0])
    assert same(held, parts(own, [other.targets[i] for i in ids])[1])
    # Client 1 has a single sample
    everybody = np.concatenate(parts(other, [i for i in range(CLIENTS) if i != 1])[0])
    assert not set(np.concatenate(held)) & set(everybody) - set(own.rows["train"][1])


# New clients


def test_new_clients_are_apart_and_keep_their_rows_and_keys():
    whole = fixture().federation
    federation, new = whole.split_new_clients(2)
    assert (federation.clients, new.clients) == (4, 2)
    keys = federation.stable_ids.tolist() + new.stable_ids.tolist()
    assert sorted(keys) == whole.stable_ids.tolist()
    for part in (federation, new):
        places = [whole.stable_ids.tolist().index(key) for key in part.stable_ids.tolist()]
        for split in whole.rows:
            assert same(part.rows[split], [whole.rows[split][i] for i in places])
        assert torch.equal(part.sizes, whole.sizes[places])
        assert torch.equal(part.class_counts, whole.class_counts[places])
        assert torch.equal(part.draw_keys, whole.draw_keys[places])


def test_who_is_new_depends_on_the_seed_and_on_keys_alone():
    def new(**options) -> set[int]:
        return set(fixture(**options).federation.split_new_clients(2)[1].stable_ids.tolist())

    assert new() == new() == new(order=ORDER)
    assert len({frozenset(new(seed=seed)) for seed in range(8)}) > 3


def test_without_new_clients_nothing_changes():
    whole = fixture().federation
    federation, new = whole.split_new_clients(0)
    assert federation is whole
    assert new is None


def test_somebody_has_to_train():
    with pytest.raises(UserError, match=r"data.new is 6: it must be below the 6 clients"):
        fixture().federation.split_new_clients(6)


# Non-uniform participation


@pytest.mark.parametrize("alpha", [1e-5, 1e-300, 5e-324])
def test_with_a_tiny_alpha_one_client_has_nearly_all_places(alpha):
    """All gamma draws are 0 then, which made all clients equal."""
    first = set()
    for seed in range(20):
        federation = fixture(seed=seed).federation
        chances = participation_probabilities(federation, "dirichlet", alpha)
        assert chances.max() > 0.99
        first.add(int(federation.stable_ids[chances.argmax()]))
    assert len(first) > 3


def sampled(sim: Simulation) -> torch.Tensor:
    return draw_cohort(sim.federation, sim.cohort_size, sim.round, sim.schedule.sampling)


def cohorts(sim: Simulation, rounds: int = 400) -> np.ndarray:
    """Return how often each client is drawn, [N], by the order of keys."""
    counts = torch.zeros(CLIENTS)
    for sim.round in range(1, rounds + 1):
        ids = sampled(sim)
        assert len(set(ids.tolist())) == sim.cohort_size
        counts[ids] += 1
    return counts[sim.federation.stable_ids.argsort()].numpy()


def plainly(order: list[int] | None = None) -> Simulation:
    """Train like FedAvg, written out."""
    made = Case(lambda task, opt, epochs: FedAvg(task=task, opt=opt, epochs=epochs))
    return made.simulation(where={"order": order})


def simulation(kind: str, alpha: float = 1.0, order: list[int] | None = None) -> Simulation:
    sim = plainly(order)
    sim.federation.participation_probabilities = participation_probabilities(sim.federation, kind, alpha)
    return sim


def test_uniform_cohorts_are_as_ever():
    sim, plain = simulation("uniform"), plainly()
    sim.round = plain.round = 3
    assert torch.equal(sampled(sim), sampled(plain))


def test_larger_clients_are_sampled_more_often():
    sim = simulation("size")
    assert sim.federation.participation_probabilities == pytest.approx(
        sim.federation.sizes.numpy() / sim.federation.sizes.sum().item()
    )
    seen = cohorts(sim)
    assert seen[1] == seen.min() < 0.5 * seen[0], "the client of one sample"


def test_a_smaller_alpha_favours_fewer():
    few, many = (cohorts(simulation("dirichlet", alpha)) for alpha in (0.05, 1000.0))
    assert few.std() > 5 * many.std()
    assert few.sum() == many.sum()


@pytest.mark.parametrize("kind", ["size", "dirichlet"])
def test_chances_follow_the_client_and_not_its_place(kind):
    plain, moved = simulation(kind), simulation(kind, order=ORDER)
    by_key = dict(zip(plain.federation.stable_ids.tolist(), plain.federation.participation_probabilities, strict=True))
    for key, chance in zip(
        moved.federation.stable_ids.tolist(), moved.federation.participation_probabilities, strict=True
    ):
        assert chance == pytest.approx(by_key[key])
    for plain.round in range(1, 20):
        moved.round = plain.round
        drawn = (set(sim.federation.stable_ids[sampled(sim)].tolist()) for sim in (plain, moved))
        assert len(set(map(frozenset, drawn))) == 1


def test_a_tiny_alpha_can_still_fill_a_cohort():
    assert cohorts(simulation("dirichlet", 1e-4), 20).sum() > 0


# Config

YOUNG = ("data.targets", "data.shuffle", "data.new", "data.new_epochs", "train.sampling", "train.sampling_alpha")


def test_the_defaults_leave_older_records_their_identity():
    def known(*overrides: str, without: tuple[str, ...] = ()) -> str:
        config = compose(list(overrides))
        for key in without:
            group, _, name = key.partition(".")
            del config.values[group][name]
        return digest_of(config, True, [])

    assert known() == known(without=YOUNG)
    together = [("data.targets=permuted",), ("data.targets=permuted", "data.shuffle=1"), ("data.new=2",)]
    together += [("train.sampling=size",), ("train.sampling=dirichlet",)]
    together += [("train.sampling=dirichlet", "train.sampling_alpha=2.0"), ("data.new=2", "data.new_epochs=3")]
    assert len({known(), *(known(*changes) for changes in together)}) == len(together) + 1


BAD = [
    ("data.targets=permutd", r"data.targets is 'permutd': it must be one of own, permuted. Did you mean 'permuted'"),
    ("data.new=-1", r"data.new is -1: it must be a whole number at least 0"),
    ("data.new=20", r"data.new is 20: it must be below the 20 clients"),
    ("train.sampling=beta", r"train.sampling is 'beta': it must be one of uniform, size, dirichlet"),
    ("train.sampling_alpha=0", r"train.sampling_alpha is 0: it must be a number above 0"),
]


def built(config: Config) -> Federation:
    check(config)
    return build_federation(config)[0]


@pytest.mark.parametrize(("override", "message"), BAD)
def test_bad_options_are_named(override, message):
    config = compose([override])
    with pytest.raises(UserError, match=message):
        built(config)
