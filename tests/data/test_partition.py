"""Partitions are disjoint, exhaustive, reproducible, and have the right classes and sizes; bad options are errors."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hydra.utils import get_method
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pflsweep.data.dataset import Dataset, Rows
from pflsweep.data.datasets import digits
from pflsweep.data.partition import dirichlet, domain, iid, natural, pathological, quantity, shards
from pflsweep.data.partition.apart import require_apart
from pflsweep.data.partition.stats import emd, label_counts, summary
from pflsweep.util.errors import UserError

CONF = Path(__file__).parents[2] / "conf/partition"
fast = settings(max_examples=25, deadline=None, derandomize=True)


def fake(samples: int = 1000, classes: int = 10, owners: int | None = None, balanced: bool = True) -> Dataset:
    """Return labels without images, of which four fifths are the training split."""
    rng = np.random.default_rng(0)
    y = np.arange(samples) % classes if balanced else rng.integers(0, classes, samples)
    owner = None if owners is None else rng.integers(0, owners, samples)
    one = torch.ones(1)
    y = torch.from_numpy(y).long()
    return Dataset("fake", torch.zeros(samples, 1), y, samples * 4 // 5, classes, 1.0, one, one, "", owner)


DATA = fake()
Y = DATA.y.numpy()


def sizes(parts: list[np.ndarray]) -> np.ndarray:
    """Return the number of samples of each client, [N]."""
    return np.array([len(own) for own in parts])


def classes_per_client(parts: list[np.ndarray], y: np.ndarray, classes: int) -> np.ndarray:
    """Return the number of classes of each client, [N]."""
    return (label_counts(parts, y, classes) > 0).sum(1)


def whole(rows: Rows) -> list[np.ndarray]:
    """Return each client's training and test rows together."""
    return [np.concatenate(pair) for pair in zip(rows.train, rows.test, strict=True)]


def dealt(rows: Rows) -> np.ndarray:
    return np.concatenate([*rows.train, *rows.test])


def check(rows: Rows, clients: int) -> None:
    """Assert what holds for every partition."""
    assert len(rows.train) == len(rows.test) == clients
    for own in (*rows.train, *rows.test):
        assert own.dtype == np.int64
        assert len(own) >= 1
        assert np.all(np.diff(own) > 0)
    everything = dealt(rows)
    assert len(np.unique(everything)) == len(everything)


SCHEMES = {
    "iid": partial(iid.split, clients=20, test_fraction=0.25),
    "by_class": partial(dirichlet.by_class, clients=20, alpha=0.3, least=10, tries=1000, test_fraction=0.25),
    "by_client": partial(dirichlet.by_client, clients=20, alpha=0.3),
    "pathological": partial(
        pathological.split, clients=20, classes_per_client=2, balanced=False, least=10, test_fraction=0.25
    ),
    "balanced": partial(
        pathological.split, clients=20, classes_per_client=2, balanced=True, least=10, test_fraction=0.25
    ),
    "shards": partial(shards.split, clients=20, shards_per_client=2),
    "classes": partial(shards.by_class, clients=20, classes_per_client=2),
    "natural": partial(natural.split, clients=None, least=10, test_fraction=0.25),
    "domain": partial(domain.split, clients=20, alpha=1.0, least=10, tries=1000, test_fraction=0.25),
    "quantity": partial(quantity.split, clients=20, alpha=1.0, least=10, tries=1000, test_fraction=0.25),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
@fast
@given(seed=st.integers(0, 2**32))
def test_a_partition_is_a_function_of_its_seed(name, seed):
    data = fake(owners=4 if name == "domain" else 20)
    rows, again, other = (SCHEMES[name](data, s) for s in (seed, seed, seed + 1))
    check(rows, 20)
    assert all(np.array_equal(a, b) for a, b in zip([*rows.train, *rows.test], [*again.train, *again.test]))  # noqa: B905
    assert not all(np.array_equal(a, b) for a, b in zip(rows.train, other.train, strict=True))
    assert len(dealt(rows)) == 1000
    # These keep the dataset's own split
    if name in ("by_client", "shards", "classes"):
        assert max(own.max() for own in rows.train) < data.train <= min(own.min() for own in rows.test)
    else:
        for train, test in zip(rows.train, rows.test, strict=True):
            assert len(train) == (len(train) + len(test)) * 3 // 4


def test_a_partition_touches_no_global_generator():
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    for name, scheme in SCHEMES.items():
        scheme(fake(owners=4 if name == "domain" else 20), 0)
    assert before[0] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(before[1], torch.get_rng_state())


@fast
@given(clients=st.integers(1, 60), seed=st.integers(0, 99))
def test_iid_deals_equal_parts(clients, seed):
    rows = iid.split(DATA, seed, clients, 0.25)
    check(rows, clients)
    assert len(dealt(rows)) == 1000
    assert np.ptp(sizes(rows.train) + sizes(rows.test)) <= 1


def test_a_printed_fraction_is_the_one_that_was_meant():
    """0.166667 of 60 rows is a sixth: 10 rows, not 11."""
    assert set(sizes(iid.split(fake(600), 0, 10, 0.166667).test)) == {10}


@fast
@given(
    clients=st.integers(1, 12),
    alpha=st.sampled_from([0.3, 1.0, 100.0]),
    least=st.integers(1, 15),
    seed=st.integers(0, 99),
)
def test_by_class_respects_the_minimum(clients, alpha, least, seed):
    rows = dirichlet.by_class(DATA, seed, clients, alpha, least, 1000, 0.25)
    check(rows, clients)
    assert len(dealt(rows)) == 1000
    both = sizes(rows.train) + sizes(rows.test)
    assert both.min() >= least
    # A client above its even share gets no further class, so none exceeds it by more than a class
    assert both.max() < 1000 / clients + 100


@pytest.mark.parametrize("seed", range(5))
def test_a_client_that_holds_its_even_share_gets_no_further_class(seed):
    """With this alpha a class goes to one client, which then has half of all rows."""
    rng = np.random.default_rng(seed)
    parts = dirichlet.skewed([np.arange(5), np.arange(5, 10)], 2, 1e-3, 1, 1, rng, "ten rows")
    assert sizes(parts).tolist() == [5, 5]


def test_alpha_says_how_uneven():
    def classes(split, alpha):
        rows = split(fake(4000), 0, clients=10, alpha=alpha)
        counts = label_counts(rows.train, fake(4000).y.numpy(), 10)
        return (counts / counts.sum(1, keepdims=True)).max(1).mean()

    by_class = partial(dirichlet.by_class, least=1, tries=1000, test_fraction=0.25)
    for split in (by_class, dirichlet.by_client):
        assert classes(split, 0.05) > 0.5 > 0.4 > classes(split, 0.5) > 0.2 > classes(split, 1000.0)


def test_with_a_tiny_alpha_a_class_goes_to_one_of_the_clients_that_have_room():
    """Most gamma draws are 0 then, and classes are dealt evenly if nothing is done about it."""
    for seed in range(20):
        parts = whole(dirichlet.by_class(DATA, seed, 5, 1e-4, 1, 100, 0.25))
        largest = label_counts(parts, Y, 10).max(0)
        assert (largest > 90).all(), f"of 100 rows a class, seed {seed}"


def test_a_tiny_alpha_still_deals_everything():
    rows = dirichlet.by_class(DATA, 0, 3, 1e-4, 1, 1000, 0.25)
    check(rows, 3)
    assert len(dealt(rows)) == 1000
    check(dirichlet.by_client(DATA, 0, 20, 1e-4), 20)


# The mass that is left of a client's classes is a subnormal number here
@pytest.mark.parametrize(("clients", "alpha", "seed"), [(20, 0.005, 1), (5, 0.002, 43), (3, 0.001, 1)])
def test_by_client_deals_everything_when_the_mass_of_a_client_underflows(clients, alpha, seed):
    rows = dirichlet.by_client(DATA, seed, clients, alpha)
    check(rows, clients)
    assert set(sizes(rows.train)) == {800 // clients}


@fast
@given(clients=st.integers(1, 100), alpha=st.sampled_from([0.01, 0.3, 10.0]), seed=st.integers(0, 99))
def test_by_client_deals_equal_sizes(clients, alpha, seed):
    rows = dirichlet.by_client(DATA, seed, clients, alpha)
    check(rows, clients)
    assert set(sizes(rows.train)) == {800 // clients}
    assert set(sizes(rows.test)) == {200 // clients}


def test_by_client_tests_on_what_it_trains_on():
    data = fake(20_000)
    rows = dirichlet.by_client(data, 0, 10, 0.3)
    train, test = (label_counts(part, data.y.numpy(), 10) for part in (rows.train, rows.test))
    gap = np.abs(train / train.sum(1, keepdims=True) - test / test.sum(1, keepdims=True)).sum(1)
    assert gap.mean() < 0.25  # two unrelated draws of Dir(.3) are about 1.4 apart


def test_by_client_draws_evenly_from_the_classes_that_are_left():
    """Its own class has one row. Of 100 clients half draw next from a class of 5 rows, and half from one of 45."""
    rows = np.split(np.arange(51), [1, 6])
    second = [dirichlet._deal(rows, np.array([[1.0, 0, 0]]), np.random.default_rng(seed))[0][1] for seed in range(100)]
    assert 30 < sum(1 <= row <= 5 for row in second) < 70


@fast
@given(
    clients=st.sampled_from([5, 10, 20, 50]),
    k=st.sampled_from([2, 4, 10]),
    balanced=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pathological_gives_each_client_its_classes(clients, k, balanced, seed):
    # Numbers of clients that divide evenly into groups
    assume(clients % (clients * k // 10) == 0)
    rows = pathological.split(DATA, seed, clients, k, balanced, 10, 0.25)
    check(rows, clients)
    assert len(dealt(rows)) == 1000
    both = whole(rows)
    assert set(classes_per_client(both, Y, 10)) == {k}
    per_class = label_counts(both, Y, 10)
    held = per_class[per_class > 0]
    if balanced:
        assert np.ptp(sizes(both)) <= k * (clients * k // 10)  # the last holder takes what does not divide
        assert held.min() >= 100 // (clients * k // 10)
    else:
        assert held.min() >= max(1, int(100 / (clients * k / 10) / 10))


@pytest.mark.parametrize("balanced", [True, False])
def test_pathological_leaves_out_classes_without_rows(balanced):
    some = DATA._replace(y=torch.where(DATA.y == 3, 4, DATA.y))
    parts = whole(pathological.split(some, 0, 9, 3, balanced, 1, 0.25))
    assert (classes_per_client(parts, some.y.numpy(), 10) == 3).all()
    assert len(np.concatenate(parts)) == len(some.y)
    with pytest.raises(UserError, match="it cannot exceed the 9 classes of fake that have rows"):
        pathological.split(some, 0, 9, 10, balanced, 1, 0.25)


def test_pathological_groups_share_their_classes():
    rows = pathological.split(fake(7000), 0, 100, 2, True, 40, 0.142857)
    counts = label_counts(rows.train, fake(7000).y.numpy(), 10) > 0
    for group in range(5):
        own = counts[20 * group : 20 * group + 20]
        assert np.array_equal(own, np.tile([k // 2 == group for k in range(10)], (20, 1)))
    assert set(sizes(rows.train)) == {60}  # 6 : 1
    assert set(sizes(rows.test)) == {10}


def test_pathological_says_which_classes_it_cannot_place(caplog):
    rows = pathological.split(DATA, 0, 3, 2, True, 10, 0.25)
    check(rows, 3)
    assert len(dealt(rows)) == 600
    assert "leaves classes [6, 7, 8, 9] unused" in caplog.text


def test_pathological_says_who_has_fewer_classes(caplog):
    check(pathological.split(DATA, 0, 5, 4, True, 10, 0.25), 5)
    assert "leaves clients [4] with fewer than 4 classes" in caplog.text


@fast
@given(clients=st.integers(1, 40), shards_per_client=st.integers(1, 4), seed=st.integers(0, 99))
def test_shards(clients, shards_per_client, seed):
    assume(clients * shards_per_client <= 100)
    rows = shards.split(DATA, seed, clients, shards_per_client)
    check(rows, clients)
    assert np.array_equal(np.sort(np.concatenate(rows.train)), np.arange(800))
    assert np.ptp(sizes(rows.train)) <= shards_per_client
    if clients * shards_per_client >= 10:
        # a shard is at most as large as a class, so it touches two of them at most
        assert classes_per_client(rows.train, Y, 10).max() <= 2 * shards_per_client
    tested, trained = (label_counts(part, Y, 10) > 0 for part in (rows.test, rows.train))
    assert not np.any(tested & ~trained)
    assert len(np.concatenate(rows.test)) == 200


def test_shards_of_pure_classes_give_at_most_that_many():
    data = fake(samples=1250)  # 100 training samples a class ...
    data = data._replace(y=torch.cat([torch.arange(1000) % 10, torch.arange(250) % 10]))
    rows = shards.split(data, 0, 50, 2)  # ... in 10 shards each
    assert classes_per_client(rows.train, data.y.numpy(), 10).max() <= 2
    assert set(sizes(rows.train)) == {20}


def test_a_class_that_nobody_trains_on_is_tested_by_nobody():
    y = torch.cat([torch.arange(800) % 9, torch.arange(200) % 10])
    rows = shards.split(DATA._replace(y=y), 0, 20, 2)
    check(rows, 20)
    assert set(y[np.concatenate(rows.test)].tolist()) == set(range(9))


@fast
@given(clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_natural_clients_are_owners(clients, seed):
    data = fake(owners=12)
    rows = natural.split(data, seed, clients, 10, 0.25)
    check(rows, clients)
    both = whole(rows)
    owners = [np.unique(data.owner[own]) for own in both]
    assert all(len(owner) == 1 for owner in owners)
    assert len(np.unique(owners)) == clients
    assert all(len(own) == (data.owner == owner).sum() for own, owner in zip(both, owners, strict=True))


def test_training_and_test_rows_are_apart(caplog):
    first, second, third = np.split(np.arange(30), 3)
    require_apart(DATA, Rows([first], [second]))
    with pytest.raises(UserError, match="client 1 trains on 2 of its 3 test rows, such as row 12"):
        require_apart(DATA, Rows([first, second], [third, np.array([12, 13, 25])]))
    assert not caplog.records
    require_apart(DATA, Rows([first, second], [third, first]))
    assert "10 rows, such as row 0, are test rows of one client and training rows of another" in caplog.text


@pytest.mark.parametrize(("distance", "apart"), [(2, False), (3, True)])
def test_a_row_shares_text_with_as_many_before_and_after_it_as_overlap(distance, apart):
    texts = DATA._replace(overlap=2, owner=np.zeros(1000, np.int64))
    for train in (12 - distance, 12 + distance):
        rows = Rows([np.array([train])], [np.array([12])])
        if apart:
            require_apart(texts, rows)
        else:
            with pytest.raises(UserError, match="1 test rows, such as row 12, are windows of text that overlap"):
                require_apart(texts, rows)


def test_validation_rows_that_are_seen_elsewhere_are_warned_of(caplog):
    first, second, third = np.split(np.arange(30), 3)
    require_apart(DATA, Rows([first], [second], validation=[third]))
    assert not caplog.records
    require_apart(DATA, Rows([first[1:]], [second], validation=[np.array([0, 5, 12])]))
    assert "1 validation rows, such as row 5, are training rows" in caplog.text
    assert "1 validation rows, such as row 12, are test rows" in caplog.text


def test_natural_leaves_small_owners_out():
    owner = np.repeat([7, 8, 9], [500, 495, 5])
    rows = natural.split(DATA._replace(owner=owner), 0, None, 10, 0.25)
    check(rows, 2)
    assert len(dealt(rows)) == 995
    check(natural.split(DATA._replace(owner=owner), 0, None, 495, 0.25), 2)


def test_natural_keeps_the_datasets_own_split():
    data = fake(owners=12)
    rows = natural.split(data, 0, None, 10, None)
    check(rows, 12)
    assert len(dealt(rows)) == 1000
    assert max(own.max() for own in rows.train) < data.train <= min(own.min() for own in rows.test)
    with pytest.raises(UserError, match="own test split, and fake has none"):
        natural.split(data._replace(train=1000), 0, None, 10, None)


@fast
@given(alpha=st.sampled_from([0.1, 1.0, 10.0]), seed=st.integers(0, 99))
def test_domain_clients_have_one_domain_each(alpha, seed):
    data = fake(2000, owners=4)._replace(owners=("art", "clipart", "product", "real"))
    rows = domain.split(data, seed, 12, alpha, 30, 1000, 0.15)
    check(rows, 12)
    assert len(dealt(rows)) == 2000
    assert rows.group.tolist() == [name for name in data.owners for _ in range(3)]
    for own, test, name in zip(whole(rows), rows.test, rows.group, strict=True):
        assert len(own) >= 30
        assert {data.owners[k] for k in data.owner[own]} == {name}
        assert abs(len(test) - 0.15 * len(own)) < 1


def test_a_small_alpha_skews_within_a_domain():
    data = fake(8000, owners=4)

    def spread(alpha):
        counts = label_counts(domain.split(data, 0, 20, alpha, 40, 1000, 0.15).train, data.y.numpy(), 10)
        return np.mean([emd(counts[k : k + 5]).mean() for k in range(0, 20, 5)])

    assert spread(0.1) > 1 > 0.4 > spread(100.0)


def test_domains_are_cut_in_proportions_of_their_own():
    data = fake(2000)._replace(owner=np.arange(2000) // 10 % 2)
    counts = label_counts(whole(domain.split(data, 0, 6, 1.0, 30, 1000, 0.15)), data.y.numpy(), 10)
    assert counts[:3].sum() == counts[3:].sum() == 1000
    assert not np.array_equal(counts[:3], counts[3:])


@fast
@given(clients=st.integers(1, 20), alpha=st.sampled_from([0.5, 2.0]), least=st.integers(2, 12), seed=st.integers(0, 99))
def test_quantity_skews_sizes_and_not_classes(clients, alpha, least, seed):
    rows = quantity.split(DATA, seed, clients, alpha, least, 10_000, 0.25)
    check(rows, clients)
    assert len(dealt(rows)) == 1000
    assert sizes(whole(rows)).min() >= least


def test_quantity_alpha_says_how_uneven():
    data = fake(20_000)
    uneven, even = (quantity.split(data, 0, 10, alpha, 100, 10_000, 0.25) for alpha in (0.5, 1000.0))
    assert sizes(uneven.train).std() > 8 * sizes(even.train).std()
    assert emd(label_counts(uneven.train, data.y.numpy(), 10)).max() < 0.35, "classes are alike"


@fast
@given(clients=st.sampled_from([5, 15, 40]), k=st.sampled_from([2, 4]), seed=st.integers(0, 99))
def test_classes_are_never_mixed_in_a_piece(clients, k, seed):
    data = fake(997, 10, balanced=False)
    rows = shards.by_class(data, seed, clients, k)
    check(rows, clients)
    y = data.y.numpy()
    assert classes_per_client(rows.train, y, 10).max() <= k
    assert len(np.concatenate(rows.train)) == data.train
    tested, trained = (label_counts(part, y, 10) > 0 for part in (rows.test, rows.train))
    assert not np.any(tested & ~trained)


def test_statistics_by_hand():
    parts, y = [np.array([0, 1, 2]), np.array([4])], np.array([0, 1, 1, 0, 2])
    counts = label_counts(parts, y, 3)
    assert counts.tolist() == [[1, 2, 0], [0, 0, 1]]
    # All clients': 1/4, 1/2, 1/4; client 0: 1/3, 2/3, 0
    assert emd(counts) == pytest.approx([1 / 12 + 1 / 6 + 1 / 4, 1 / 4 + 1 / 2 + 3 / 4])
    assert summary(counts) == {
        "clients": 2, "size_mean": 2, "size_std": 1, "size_min": 1, "size_max": 3,
        "classes_mean": 1.5, "classes_min": 1, "classes_max": 2, "emd": 1.0, "emd_code": 2.0,
    }  # fmt: skip


def test_clients_of_one_class_each_are_as_far_as_can_be():
    for classes in (2, 5, 100):
        assert emd(3 * np.eye(classes)) == pytest.approx([2 - 2 / classes] * classes)
        assert emd(np.ones((4, classes))) == pytest.approx([0] * 4)


def test_an_uneven_dataset_is_fine():
    data = fake(997, 10, owners=5, balanced=False)
    for name, scheme in SCHEMES.items():
        rows = scheme(data, 0)
        check(rows, 5 if name == "natural" else 20)


BAD = [
    ("dirichlet", {"alpha": 0}, r"partition.alpha is 0: it must be greater than 0"),
    ("dirichlet", {"alpha": -1.0}, r"partition.alpha is -1.0"),
    ("dirichlet", {"alpha": float("nan")}, r"partition.alpha is nan"),
    ("dirichlet", {"clients": 0}, r"partition.clients is 0: it must be at least 1"),
    ("dirichlet", {"clients": 1001}, r"partition.clients is 1001: there are only 1000 samples"),
    ("dirichlet", {"least": 51}, r"partition.least is 51: it must be 1 to 50"),
    (
        "dirichlet",
        {"alpha": 0.01, "tries": 20},
        r"partition.least is 40, but in 20 draws .* Use fewer clients",
    ),
    ("dirichlet", {"least": 1, "test_fraction": 1.0}, r"partition.test_fraction is 1.0"),
    ("dirichlet_client", {"alpha": 0}, r"partition.alpha is 0"),
    ("dirichlet_client", {"clients": 201}, r"partition.clients is 201: there are only 200 test samples"),
    ("iid", {"clients": -3}, r"partition.clients is -3"),
    ("iid", {"clients": 1000}, r"client 0 of 1000 is left without training data"),
    ("iid", {"clients": 1, "test_fraction": 0.9999}, r"client 0 of 1 is left .* partition.test_fraction nearer to 0.5"),
    (
        "pathological",
        {"classes_per_client": 11},
        r"partition.classes_per_client is 11: .* 10 classes of fake",
    ),
    ("pathological", {"classes_per_client": 0}, r"partition.classes_per_client is 0"),
    ("pathological", {"least": 900}, r"partition.least is 900: .*smaller least"),
    ("pathological", {"clients": 60, "least": 80}, r"least / 10 must be below 8, the whole samples .* 12 clients"),
    ("pathological", {"clients": 300, "least": 1}, r"partition.least is 1|without training data"),
    ("shards", {"shards_per_client": 0}, r"partition.shards_per_client is 0"),
    ("shards", {"shards_per_client": 41}, r"820 shards of only 800 training samples"),
    ("shards", {"clients": 400}, r"without test data.*, or a less uneven partition\.$"),
    ("natural", {}, r"partition=natural needs a dataset with clients of its own, which fake has not"),
    ("domain", {}, r"partition=domain needs a dataset with domains of its own, which fake has not"),
    ("classes", {"clients": 7}, r"partition.classes_per_client is 2: times partition.clients=7 it must be a multiple"),
    ("quantity", {"alpha": 0}, r"partition.alpha is 0"),
    ("quantity", {"least": 51}, r"partition.least is 51: it must be 1 to 50"),
    ("quantity", {"alpha": 0.01, "tries": 5}, r"partition.least is 10, but in 5 draws"),
    ("quantity", {"tries": 0}, r"partition.tries is 0"),
]


def from_yaml(name: str, dataset: Dataset, **changes) -> Rows:
    config = {**yaml.safe_load((CONF / f"{name}.yaml").read_text()), "seed": 0, **changes}
    return get_method(config.pop("_target_"))(dataset, **config)


@pytest.mark.parametrize(("name", "changes", "message"), BAD)
def test_bad_options_are_named(name, changes, message):
    with pytest.raises(UserError, match=message):
        from_yaml(name, DATA, **changes)


@pytest.mark.parametrize("name", ["shards", "classes", "dirichlet_client"])
def test_a_split_that_is_kept_has_to_be_there(name):
    with pytest.raises(
        UserError, match=rf"partition={name} keeps the dataset's own test split, and fake has none: use"
    ):
        from_yaml(name, DATA._replace(train=1000))
    with pytest.raises(UserError, match=r"and data.limit=7 leaves none of it: use a larger limit, or a partition"):
        from_yaml(name, DATA._replace(train=1000, limit=7))
    for other in ("dirichlet", "iid", "pathological", "quantity"):
        from_yaml(other, fake(20_000)._replace(train=20_000))


@pytest.mark.parametrize("clients", [0, 13])
def test_natural_clients_out_of_range(clients):
    with pytest.raises(UserError, match=rf"partition.clients is {clients}: it must be 1 to 12"):
        from_yaml("natural", fake(owners=12), clients=clients)
    with pytest.raises(UserError, match=r"partition.least is 999: fake has 12 clients"):
        from_yaml("natural", fake(owners=12), least=999)


def test_every_yaml_says_what_it_is_and_has_clients():
    for path in CONF.glob("*.yaml"):
        assert path.read_text().startswith("# ")
        config = yaml.safe_load(path.read_text())
        # The file gives the number of clients: see test_partition_file.py
        if path.stem == "from_file":
            continue
        assert "clients" in config
        # It trains an embedder: see test_partition_latent.py
        if path.stem != "latent":
            rows = from_yaml(path.stem, fake(20_000, owners=4 if path.stem == "domain" else 20))
            check(rows, config["clients"] or 20)


def test_domains_need_clients_of_their_own():
    with pytest.raises(UserError, match=r"partition.clients is 10: fake has 4 domains, .* use a multiple of 4"):
        from_yaml("domain", fake(owners=4), clients=10)
    with pytest.raises(UserError, match=r"partition.least is 133: it must be 1 to 4[0-9]"):
        from_yaml("domain", fake(owners=4))


@pytest.mark.parametrize("seed", range(5))
def test_the_default_partition_works_on_digits(seed):
    config = yaml.safe_load((CONF.parent / "dataset/digits.yaml").read_text())
    config.pop("_target_")
    data = digits.load(root=Path(), download=False, **config)
    rows = from_yaml("dirichlet", data, seed=seed)
    check(rows, 20)
    assert (sizes(rows.train) + sizes(rows.test)).min() >= 40
