"""The latent partition, on real digits with a small embedder: its training, its cache, and its clients."""

import importlib
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from pflsweep.config.compose import compose
from pflsweep.config.schema import check
from pflsweep.data.federation import Federation
from pflsweep.data.partition import embedding, latent
from pflsweep.data.partition.stats import emd
from pflsweep.trial.build import build_federation
from pflsweep.util.errors import UserError
from tests.data.loading import picture

FIVE = ["partition=latent", "model@partition.embedder=mlp", "partition.embedder.hidden=[64,32]", "device=cpu"]
QUICK = [f"partition.training.{key}" for key in ("epochs=8", "lr=0.05", "augment=none")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def federation(root: Path, *overrides: str) -> Federation:
    config = compose([*FIVE, *QUICK, "partition.components=16", f"data.root={root}", *overrides])
    check(config)
    return build_federation(config)[0]


def test_clusters_differ_in_classes_and_clients_of_one_do_not(root):
    found = federation(root)
    assert found.group.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    assert found.accuracy > 0.85
    counts = found.counts("train")
    together = np.stack([counts[found.group == k].sum(0) for k in range(5)])
    within = np.mean([emd(counts[found.group == k]).mean() for k in range(5)])
    assert emd(together).min() > 0.8, "each cluster has classes of its own"
    assert within < 0.35, "its clients are alike"
    train, test = (counts / counts.sum(1, keepdims=True) for counts in (counts, found.counts("test")))
    assert np.abs(train - test).sum(1).mean() < 0.5, "tested on what it trains on"


def test_every_row_is_dealt_once_and_the_splits_are_kept(root):
    found = federation(root)
    train, test = (np.concatenate(found.rows[split]) for split in ("train", "test"))
    cut = found.dataset.train
    assert np.array_equal(np.sort(train), np.arange(cut))
    assert np.array_equal(np.sort(test), np.arange(cut, len(found.dataset.y)))
    # Each cluster is dealt evenly
    for k in range(5):
        assert np.ptp(found.sizes.numpy()[found.group == k]) <= 1


@pytest.mark.parametrize(("clients", "clusters"), [(7, 3), (10, 10), (4, 2)])
def test_clients_spread_evenly_over_clusters(root, clients, clusters):
    found = federation(root, f"partition.clients={clients}", f"partition.clusters={clusters}")
    counts = np.bincount(found.group)
    assert len(counts) == clusters
    assert np.ptp(counts) <= 1


def test_a_row_in_another_cluster_moves_few_others() -> None:
    """On another machine K-means may round differently."""
    found = np.random.default_rng(0).integers(2, size=1000)
    other = found.copy()
    other[500] = 1 - other[500]
    group = np.repeat([0, 1], 3)
    parts, again = (latent._dealt(each, 0, group, np.random.default_rng(1)) for each in (found, other))
    moved = sum(len(np.setdiff1d(a, b)) for a, b in zip(parts, again, strict=True))
    assert 1 <= moved <= 6
    assert sorted(np.concatenate(again)) == list(range(1000))


def test_clients_of_a_cluster_share_its_rows_at_random() -> None:
    """A dataset may be sorted by class."""
    for part in latent._dealt(np.zeros(1000, int), 0, np.zeros(2, int), np.random.default_rng(1)):
        assert part.min() < 100 < 900 < part.max()


def test_clusters_do_not_depend_on_threads() -> None:
    z = np.random.default_rng(0).normal(size=(6000, 64)).astype(np.float32)
    found = []
    for threads in (1, 3):
        with threadpool_limits(threads):
            found.append(latent.cluster(z, 5, 2, np.random.default_rng(2)))
            assert {pool["num_threads"] for pool in threadpool_info()} == {threads}, "afterwards as before"
    assert np.array_equal(*found)


def test_a_seed_deals_anew_but_does_not_train_anew(root):
    first, again, other = federation(root), federation(root), federation(root, "seed=1")
    same = [np.array_equal(a, b) for a, b in zip(first.rows["train"], again.rows["train"], strict=True)]
    assert all(same)
    assert not all(np.array_equal(a, b) for a, b in zip(first.rows["train"], other.rows["train"], strict=True))
    assert first.checksum == again.checksum == other.checksum != first.dataset.checksum
    assert len(list((root / "prepared").glob("digits-embedding-*.bin"))) == 1


def test_an_embedder_of_ones_own_that_was_edited_is_another(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "def net(shape, classes):\n    return None\n"
    (tmp_path / "own_embedder.py").write_text(source)
    from own_embedder import net  # type: ignore[import-not-found]

    before = embedding._described(net)
    assert before == embedding._described(net)
    (tmp_path / "own_embedder.py").write_text(f"{source}# another\n")
    importlib.reload(sys.modules["own_embedder"])
    assert before != embedding._described(net)


def test_what_is_kept_is_checked_and_what_is_learnt_can_be_repeated(tmp_path):
    first = federation(tmp_path)
    (kept,) = (tmp_path / "prepared").glob("*.bin")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-5] + b"\xff" + whole[-4:])
    # The embedder is trained again
    again = federation(tmp_path)
    assert kept.read_bytes() == whole
    assert again.checksum == first.checksum
    changed = federation(tmp_path, "partition.training.seed=1")
    assert changed.checksum != first.checksum
    assert len(list((tmp_path / "prepared").glob("*.bin"))) == 2


def test_a_weak_embedder_is_said_loudly_and_recorded(root, caplog):
    with caplog.at_level(logging.WARNING):
        found = federation(root, "partition.expected=0.999")
    assert "THE EMBEDDER OF digits REACHES 8" in caplog.text
    assert "BELOW THE 100% OF partition.expected" in caplog.text
    assert found.statistics()["embedder_accuracy"] == found.accuracy
    caplog.clear()
    federation(root)
    assert "EMBEDDER OF" not in caplog.text


BAD = [
    ("partition.clusters=1", r"partition.clusters is 1: it must be 2 to 1797"),
    ("partition.clients=4", r"partition.clients is 4: each of the 5 clusters needs a client"),
    ("partition.components=33", r"partition.components is 33: .* it must be 1 to 32"),
    ("partition.starts=0", r"partition.starts is 0"),
    ("partition.training.epochs=0", r"partition.training.epochs is 0: it must be greater than 0"),
    ("partition.training.lr=-1", r"partition.training.lr is -1"),
    ("partition.training.momentum=1", r"partition.training.momentum is 1"),
    ("partition.training.augment=mixup", r"partition.training.augment is 'mixup': for digits it must be none or"),
    ("partition.training.epoch=3", r"Unknown config key 'partition.training.epoch'. Did you mean"),
    ("partition.embedder.hidden=[]", r"partition.embedder: the model has no linear layer below its head"),
    ("partition.embedder.hidden=[-1]", r"partition.embedder.hidden is"),
]


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*_: object) -> None:
        raise AssertionError("it trains before it checks")

    monkeypatch.setattr(embedding, "_trained", trained)


@pytest.mark.parametrize(("override", "message"), BAD)
def test_bad_options_are_named(root, untrained, override, message):
    with pytest.raises(UserError, match=message):
        federation(root, override)


def test_a_model_that_refuses_the_data_is_named_by_the_embedders_key(root, untrained):
    config = compose(["partition=latent", "device=cpu", f"data.root={root}", "partition.training.augment=none"])
    message = r"^model@partition.embedder=vgg11 needs images of at least 32x32 .* Use model@partition.embedder=mlp\.$"
    with pytest.raises(UserError, match=message):
        build_federation(config)


def test_a_hidden_layer_that_gives_no_vector_is_refused_before_training(root, untrained):
    """The last linear layer below ConvNeXt's head is inside a block, applied at each place of the image."""
    config = compose([
        "partition=latent", "model@partition.embedder=torchvision", "partition.embedder.name=convnext_tiny",
        "device=cpu", "partition.components=4", "partition.training.augment=none", f"data.root={root}",
        "dataset=folder", "dataset.size=32", f"dataset.path={root / 'pictures'}",
    ])  # fmt: skip
    for k, place in enumerate(("train/a", "train/b", "test/a", "test/b")):
        (root / "pictures" / place).mkdir(parents=True)
        for i in range(5):
            (root / "pictures" / place / f"{i}.png").write_bytes(picture(5 * k + i, (32, 32), kind="PNG"))
    with pytest.raises(UserError, match=r"^partition.embedder: .* shape \[2, 1, 1, 768\] for 2 rows\. Choose a model"):
        build_federation(config)


def test_a_dataset_without_a_test_split_is_refused(root, untrained, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x_train=rng.random((60, 5)), y_train=np.arange(60) % 3)
    with pytest.raises(UserError, match=r"partition=latent keeps the dataset's own test split, and npz has none"):
        federation(root, "dataset=npz", f"dataset.path={tmp_path / 'mine.npz'}")


def test_the_papers_embedder_gives_4096_numbers_a_row():
    import torch

    from pflsweep.data.partition.embedding import hidden_layer

    config = compose(["dataset=cifar10", "partition=latent"])
    node = {key: value for key, value in config.values["partition"]["embedder"].items() if key != "_target_"}
    from pflsweep.models import vgg11

    with torch.device("meta"):
        model = vgg11.build((3, 32, 32), 10, **node)
    layer = hidden_layer(model)
    assert (layer.in_features, layer.out_features) == (4096, 4096)
    assert layer is model.fc2[0]
