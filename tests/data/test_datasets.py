"""Loaders: original layouts, damaged and missing files, and where data are looked for."""

import errno
import fcntl
import gzip
import hashlib
import pickle
import tarfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from http.client import IncompleteRead
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pytest
import torch
import yaml

from pflsweep.config.compose import compose
from pflsweep.data.datasets import cifar, files, mnist
from pflsweep.data.datasets.pack import checksum
from pflsweep.ops.torchvision_compat import torchvision
from pflsweep.trial.build import build_dataset
from pflsweep.util.errors import UserError
from tests.data.loading import CONF, chosen, forbid, from_yaml, idx, serve

# Where data are looked for


def test_root_is_the_config_then_the_environment_then_the_cache(monkeypatch):
    monkeypatch.setenv("PFLSWEEP_DATA", "/environment")
    assert files.find_root("/config") == Path("/config")
    assert files.find_root(None) == Path("/environment")
    monkeypatch.delenv("PFLSWEEP_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert files.find_root(None) == Path("/cache/pflsweep")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert files.find_root(None) == Path("/home/me/.cache/pflsweep")
    assert files.find_root("~/data") == Path("/home/me/data")


def test_every_yaml_says_what_it_is():
    for path in CONF.glob("*.yaml"):
        assert path.read_text().startswith("# ")
        assert yaml.safe_load(path.read_text())["name"] == path.stem


# Data that need no files


def test_digits():
    data = from_yaml("digits")
    assert data.x.shape == (1797, 1, 8, 8)
    assert data.x.dtype == torch.uint8
    assert data.train == 1797 - 359
    assert data.x.max() * data.scale == 1
    assert data.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.shape == (1, 8, 8)
    assert data.checksum == from_yaml("digits").checksum
    assert data.checksum != from_yaml("digits", split_seed=1).checksum
    from sklearn.datasets import load_digits

    theirs = load_digits()
    rows = zip(theirs.images.astype(np.uint8), theirs.target, strict=True)
    assert sorted((bytes(x), int(y)) for x, y in rows) == sorted(
        (bytes(x.numpy()), int(y)) for x, y in zip(data.x, data.y, strict=True)
    )


def test_digits_where_sklearn_keeps_them_elsewhere(monkeypatch):
    from sklearn import datasets

    known, theirs, asked = from_yaml("digits").checksum, datasets.load_digits, []
    monkeypatch.setattr(Path, "exists", lambda path: path.name != "digits.csv.gz")
    monkeypatch.setattr(datasets, "load_digits", lambda: asked.append(1) or theirs())
    assert from_yaml("digits").checksum == known
    assert asked


def test_synthetic_clients():
    data = from_yaml("synthetic")
    assert data.owner is not None
    sizes = np.bincount(data.owner)
    assert len(sizes) == 30
    assert sizes.min() >= 50
    assert data.x.shape == (sizes.sum(), 60)
    assert data.x.dtype == torch.float32
    train = np.bincount(data.owner[: data.train])
    assert np.array_equal(sizes - train, np.round(0.1 * sizes))
    assert torch.equal(data.x, from_yaml("synthetic").x)
    # More clients do not change a client's data
    more = from_yaml("synthetic", clients=31)
    assert torch.equal(data.x[data.owner == 3], more.x[more.owner == 3])


def test_synthetic_beta_moves_the_inputs_apart():
    def spread(beta: float) -> float:
        data = from_yaml("synthetic", beta=beta)
        centres = [data.x[data.owner == k].mean() for k in range(30)]
        return float(torch.stack(centres).std())

    assert spread(3.0) > 4 * spread(0.0)


# Files in the original layout, small


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """Write a folder with 6 + 4 images as MNIST, and tell the loader their MD5s. Two files are unpacked, two packed."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (10, 28, 28), np.uint8), rng.integers(0, 10, 10, np.uint8)
    contents = dict(
        zip(
            mnist.SOURCES["mnist"].files,
            map(idx, (images[:6], labels[:6], images[6:], labels[6:])),
            strict=True,
        )
    )
    raw = tmp_path / "MNIST/raw"
    raw.mkdir(parents=True)
    for number, (name, content) in enumerate(contents.items()):
        if number % 2:
            (raw / name).write_bytes(content)
        else:
            (raw / f"{name}.gz").write_bytes(gzip.compress(content))
    md5s = {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setitem(mnist.SOURCES, "mnist", mnist.Source("MNIST", md5s))
    return tmp_path, raw, images, labels


def test_mnist_packed_or_not(small_mnist):
    root, _, images, labels = small_mnist
    data = from_yaml("mnist", root)
    assert np.array_equal(data.x.numpy()[:, 0], images)
    assert np.array_equal(data.y.numpy(), labels)
    assert data.train == 6
    assert data.mean.shape == (1, 1, 1)


@pytest.mark.parametrize("how", ["cut", "garbled", "wrong", "empty"])
def test_a_damaged_file_is_named(small_mnist, how):
    root, raw, *_ = small_mnist
    path = raw / "train-images-idx3-ubyte.gz"
    good = path.read_bytes()
    middle = len(good) // 2
    bad = {
        "cut": good[:middle],
        "garbled": good[:middle] + bytes(20) + good[middle + 20 :],
        "wrong": gzip.compress(b"something else"),
        "empty": b"",
    }
    path.write_bytes(bad[how])
    with pytest.raises(UserError, match="train-images-idx3-ubyte is damaged") as error:
        from_yaml("mnist", root)
    assert str(raw) in str(error.value)
    assert "data.download=true" in str(error.value)
    assert "PFLSWEEP_DATA" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_good_packed_file_beside_a_damaged_one_is_enough(small_mnist):
    root, raw, images, _ = small_mnist
    (raw / "train-images-idx3-ubyte").write_bytes(b"cut short")
    assert np.array_equal(from_yaml("mnist", root).x.numpy()[:, 0], images)


def test_missing_files_are_named(small_mnist, tmp_path):
    root, raw, *_ = small_mnist
    (raw / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte is missing.* Looked in"):
        from_yaml("mnist", root)
    with pytest.raises(UserError, match=rf"dataset=fmnist: not found in {tmp_path}/FashionMNIST/raw\. Either"):
        from_yaml("fmnist", tmp_path)


def test_only_what_is_missing_is_downloaded(small_mnist, monkeypatch):
    root, raw, images, _ = small_mnist
    path = raw / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    path.unlink()
    official, asked = torchvision().datasets.MNIST, []

    def download_url(url, root, filename, md5):
        asked.append(url)
        if official.mirrors[0] in url:
            raise OSError("this mirror is down")
        (Path(root) / filename).write_bytes(content)

    monkeypatch.setattr("torchvision.datasets.utils.download_url", download_url)
    assert np.array_equal(from_yaml("mnist", root, download=True).x.numpy()[:, 0], images)
    assert asked == [mirror + path.name for mirror in official.mirrors]


def test_what_is_damaged_is_downloaded_as_the_error_says(small_mnist, monkeypatch):
    root, raw, images, _ = small_mnist
    path = raw / "train-images-idx3-ubyte.gz"
    asked = serve(monkeypatch, {path.name: path.read_bytes()})
    path.write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"fetch what is missing or damaged \(data.download=true\)"):
        from_yaml("mnist", root)
    assert np.array_equal(from_yaml("mnist", root, download=True).x.numpy()[:, 0], images)
    assert len(asked) == 1


def test_two_trials_at_once_download_one_after_the_other(small_mnist, monkeypatch):
    """Once the second read what the first had half written, and wrote into it."""
    root, raw, images, _ = small_mnist
    contents = {path.name: path.read_bytes() for path in raw.glob("*.gz")}
    for name in contents:
        (raw / name).unlink()
    asked = []

    def download_url(url, root, filename, md5):
        asked.append(filename)
        half = len(contents[filename]) // 2
        with open(Path(root) / filename, "wb") as file:
            file.write(contents[filename][:half])
            file.flush()
            time.sleep(0.1)
            file.write(contents[filename][half:])

    monkeypatch.setattr(torchvision().datasets.utils, "download_url", download_url)
    config = compose(["dataset=mnist", f"data.root={root}", "data.download=true"])
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(build_dataset, config) for _ in range(2)]
    assert all(np.array_equal(one.result().x.numpy()[:, 0], images) for one in both)
    assert sorted(asked) == sorted(contents), "each file once"


def test_nothing_waits_for_a_folder_that_cannot_be_locked(small_mnist, monkeypatch):
    root, _, images, _ = small_mnist

    def no_locks(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    config = compose(["dataset=mnist", f"data.root={root}", "data.download=true"])
    assert np.array_equal(build_dataset(config).x.numpy()[:, 0], images)


@pytest.mark.parametrize(
    "error", [OSError("Network is unreachable"), IncompleteRead(b""), BadZipFile("no zip"), zlib.error("Error -3")]
)
def test_a_failed_download_is_said(tmp_path, monkeypatch, error):
    def no_network(*args, **kwargs):
        raise error

    monkeypatch.setattr("urllib.request.urlopen", no_network)
    for name in ("mnist", "cifar100"):
        with pytest.raises(UserError, match=rf"dataset={name}: the download into .* failed.*data\.root"):
            from_yaml(name, tmp_path, download=True)


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "MNIST").write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"the download into .* failed"):
        from_yaml("mnist", tmp_path, download=True)


@pytest.fixture(params=["cifar10", "cifar100"])
def small_cifar(request, tmp_path, monkeypatch):
    """Write a folder with 5 images a file in CIFAR's layout, and tell torchvision their MD5s."""
    name = request.param
    official = getattr(torchvision().datasets, cifar.SOURCES[name][0])
    rng, images, labels = np.random.default_rng(0), [], []
    folder = tmp_path / official.base_folder
    folder.mkdir()

    def write(file: str, content: object) -> list[str]:
        (folder / file).write_bytes(pickle.dumps(content))
        return [file, hashlib.md5((folder / file).read_bytes()).hexdigest()]

    def batch(file: str) -> list[str]:
        images.append(rng.integers(0, 256, (5, 3072), np.uint8))
        labels.append(rng.integers(0, 10, 5))
        return write(file, {"data": images[-1], official_labels: labels[-1].tolist()})

    official_labels = "labels" if name == "cifar10" else "fine_labels"
    monkeypatch.setattr(official, "train_list", [batch(file) for file, _ in official.train_list])
    monkeypatch.setattr(official, "test_list", [batch(file) for file, _ in official.test_list])
    meta, md5 = write(official.meta["filename"], {official.meta["key"]: [str(k) for k in range(10)]})
    monkeypatch.setattr(official, "meta", {**official.meta, "filename": meta, "md5": md5})
    return name, tmp_path, folder, np.concatenate(images), np.concatenate(labels)


def test_cifar(small_cifar):
    name, root, _, images, labels = small_cifar
    data = from_yaml(name, root)
    assert np.array_equal(data.x.numpy(), images.reshape(-1, 3, 32, 32))
    assert data.x.is_contiguous()
    assert np.array_equal(data.y.numpy(), labels)
    assert data.train == len(labels) - 5
    assert data.mean.shape == (3, 1, 1)
    assert data.classes == int(name.removeprefix("cifar"))


def test_the_second_start_needs_neither_torchvision_nor_pickles(small_cifar, monkeypatch):
    """Both take seconds, so the second start reads what the first one has kept."""
    name, root, *_ = small_cifar
    first = from_yaml(name, root)
    monkeypatch.setattr(cifar, "torchvision", None)
    second = from_yaml(name, root)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)
    assert second.x.dtype == torch.uint8
    assert (first.train, first.checksum) == (second.train, second.checksum)


def test_a_damaged_or_missing_cifar_file_is_named_and_never_unpickled(small_cifar):
    name, root, folder, *_ = small_cifar
    file = next(path for path in sorted(folder.iterdir()) if path.name.startswith(("test", "data_batch_1")))
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=f"dataset={name}: {file.name} is damaged. Looked in {folder}"):
        from_yaml(name, root)
    file.unlink()
    with pytest.raises(UserError, match=f"dataset={name}: {file.name} is missing"):
        from_yaml(name, root)
    with pytest.raises(UserError, match=f"dataset={name}: not found in {root}/elsewhere"):
        from_yaml(name, root / "elsewhere")


def test_a_damaged_cifar_file_is_downloaded(small_cifar, monkeypatch, tmp_path_factory):
    name, root, folder, images, _ = small_cifar
    official = getattr(torchvision().datasets, cifar.SOURCES[name][0])
    archive = tmp_path_factory.mktemp("served") / official.filename
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(folder, folder.name)
    asked = serve(monkeypatch, {archive.name: archive.read_bytes()})
    (folder / official.test_list[0][0]).write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"is damaged. .*fetch what is missing or damaged \(data.download=true\)"):
        from_yaml(name, root)
    data = from_yaml(name, root, download=True)
    assert np.array_equal(data.x.numpy(), images.reshape(-1, 3, 32, 32))
    assert asked == [official.url]


# Unreadable files

KEPT = [
    ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
    ("fmnist", "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz"),
    ("cifar10", "cifar-10-batches-py/data_batch_3"),
    ("cifar100", "cifar-100-python/meta"),
    ("agnews", "ag_news_csv/train.csv"),
    ("agnews_subset", "ag_news_csv/test.csv"),
    ("tiny_imagenet", "tiny-imagenet-200.zip"),
    ("tiny_imagenet", "tiny-imagenet-200/wnids.txt"),
    ("organamnist", "organamnist.npz"),
    ("svhn", "SVHN/train_32x32.mat"),
    ("emnist", "EMNIST/raw/emnist-balanced-test-labels-idx1-ubyte.gz"),
    ("stl10", "stl10_binary/test_y.bin"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), KEPT)
@pytest.mark.parametrize("download", ["true", "false"])
def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch, name, file, download):
    asked = serve(monkeypatch, {})
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    forbid(monkeypatch, path)
    with pytest.raises(UserError) as error:
        chosen(name, tmp_path, f"data.download={download}")
    said = str(error.value)
    assert said.startswith(f"dataset={name}: {path} cannot be read (Permission denied). Make it readable")
    assert "data.root=FOLDER" in said
    assert "\n" not in said
    assert not asked, "another download would not help"


@pytest.mark.parametrize("name", ["cifar10", "agnews", "tiny_imagenet"])
def test_a_folder_that_may_not_be_listed_is_named(tmp_path, monkeypatch, name):
    folders = {"cifar10": "cifar-10-batches-py", "agnews": "ag_news_csv", "tiny_imagenet": "tiny-imagenet-200"}
    folder = tmp_path / folders[name]
    folder.mkdir()
    forbid(monkeypatch, folder)
    with pytest.raises(UserError, match=rf"^dataset={name}: {folder} cannot be read \(Permission denied\)"):
        chosen(name, tmp_path)


def test_a_folder_in_place_of_a_file_is_named(small_mnist):
    root, raw, *_ = small_mnist
    (raw / "train-images-idx3-ubyte").mkdir()
    with pytest.raises(UserError, match=rf"{raw}/train-images-idx3-ubyte cannot be read \(Is a directory\)"):
        chosen("mnist", root)


# Normalisation and checksum


def test_normalisation_must_fit():
    with pytest.raises(UserError, match=r"dataset.mean is \[0.5, 0.5\]: digits needs 1 value"):
        from_yaml("digits", mean=[0.5, 0.5])
    for std in (0.0, 1e-45, float("nan")):
        with pytest.raises(UserError, match=rf"dataset.std is \[{std}\]: each value must be greater than 0"):
            from_yaml("digits", std=[std])
    with pytest.raises(
        UserError, match=r"dataset.mean is \[1e\+300\] and dataset.std .* too large for single precision"
    ):
        from_yaml("digits", mean=[1e300])
    with pytest.raises(UserError, match=r"dataset.test_fraction is 1.0"):
        from_yaml("digits", test_fraction=1.0)
    with pytest.raises(UserError, match=r"dataset.alpha is -1"):
        from_yaml("synthetic", alpha=-1)
    assert from_yaml("synthetic", alpha=-0.0).checksum == from_yaml("synthetic", alpha=0.0).checksum
    for option in ("clients", "features", "classes"):
        with pytest.raises(UserError, match=rf"dataset.{option}=999999999.* of memory. Use fewer"):
            from_yaml("synthetic", **{option: 999999999})


def test_checksum_sees_values_types_and_shapes():
    array = np.arange(6, dtype=np.uint8)
    changed = array.copy()
    changed[5] = 0
    others = [array.reshape(2, 3), array.astype(np.int64), changed]
    assert len({checksum(a) for a in [array, *others]}) == 4
    assert checksum(array, None) == checksum(array)


# The real files


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mnist", (1, 28, 28), 10),
        ("fmnist", (1, 28, 28), 10),
        ("cifar10", (3, 32, 32), 10),
        ("cifar100", (3, 32, 32), 100),
    ],
)
def test_real(name, shape, classes, real_data):
    folder = {"mnist": "MNIST", "fmnist": "FashionMNIST", "cifar10": "cifar-10-batches-py"}.get(
        name, "cifar-100-python"
    )
    data = from_yaml(name, real_data(folder))
    rows = {"m": 70_000, "f": 70_000, "c": 60_000}[name[0]]
    assert data.x.shape == (rows, *shape)
    assert data.train == rows - 10_000
    counts = data.y[: data.train].bincount()
    assert len(counts) == classes
    if name != "mnist":
        assert counts.unique().tolist() == [data.train // classes]


@pytest.mark.real
@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_our_checksums_are_of_the_files_that_torchvision_knows(name, real_data):
    source = mnist.SOURCES[name]
    folder = real_data(source.cls) / source.cls / "raw"
    for gz, md5 in getattr(torchvision().datasets, source.cls).resources:
        path = folder / gz
        assert hashlib.md5(path.read_bytes()).hexdigest() == md5
        content = gzip.decompress(path.read_bytes())
        assert hashlib.md5(content).hexdigest() == source.files[gz.removesuffix(".gz")]
