"""SVHN, EMNIST, STL-10 and CINIC-10, small, each in its original layout."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from pflsweep.data.datasets import cinic10, emnist
from pflsweep.ops.torchvision_compat import torchvision
from pflsweep.util.errors import UserError
from tests.data.loading import chosen, from_yaml, idx, serve


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def pixels(count: int, side: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(side).integers(0, 256, (count, channels, side, side), np.uint8)


# SVHN


@pytest.fixture
def svhn(tmp_path, monkeypatch):
    """Write six and four images as MATLAB files, and tell torchvision their MD5s."""
    images, labels = pixels(10, 32), np.array([10, 1, 2, 3, 10, 5, 6, 7, 8, 9])
    folder, official = tmp_path / "SVHN", torchvision().datasets.SVHN
    folder.mkdir()
    known = dict(official.split_list)
    for split, part in (("train", slice(0, 6)), ("test", slice(6, 10))):
        url, file, _ = known[split]
        content = {"X": images[part].transpose(2, 3, 1, 0), "y": labels[part, None].astype(np.uint8)}
        scipy.io.savemat(folder / file, content)
        known[split] = [url, file, md5(folder / file)]
    monkeypatch.setattr(official, "split_list", known)
    return tmp_path, images, labels % 10


def test_svhn(svhn):
    root, images, labels = svhn
    data = from_yaml("svhn", root)
    assert np.array_equal(data.x.numpy(), images)
    assert data.y.tolist() == labels.tolist(), "the files call the digit 0 10"
    assert (data.train, data.classes, data.shape) == (6, 10, (3, 32, 32))


def test_a_bad_file_of_svhn_is_named_and_downloaded(svhn, monkeypatch):
    root, images, _ = svhn
    path = root / "SVHN" / "test_32x32.mat"
    asked = serve(monkeypatch, {path.name: path.read_bytes()})
    path.write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"dataset=svhn: test_32x32.mat is damaged or of another version.*SVHN"):
        from_yaml("svhn", root)
    path.unlink()
    with pytest.raises(UserError, match=r"dataset=svhn: test_32x32.mat is missing"):
        from_yaml("svhn", root)
    assert np.array_equal(from_yaml("svhn", root, download=True).x.numpy(), images)
    assert asked == ["http://ufldl.stanford.edu/housenumbers/test_32x32.mat"]


# EMNIST


def write_emnist(raw: Path, split: str, labels: np.ndarray) -> np.ndarray:
    """Write six and four images, the training ones unpacked, and nothing of the other split."""
    images = pixels(10, 28, 1)[:, 0]
    raw.mkdir(parents=True, exist_ok=True)
    for part, where in (("train", slice(0, 6)), ("test", slice(6, 10))):
        for kind, array in (("images-idx3", images[where]), ("labels-idx1", labels[where].astype(np.uint8))):
            file = raw / f"emnist-{split}-{part}-{kind}-ubyte"
            if part == "train":
                file.write_bytes(idx(array))
            else:
                file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(idx(array)))
    return images


@pytest.mark.parametrize(("split", "first"), [("balanced", 0), ("letters", 1), ("byclass", 0)])
def test_emnist(tmp_path, split, first):
    labels = np.arange(10) + first
    images = write_emnist(tmp_path / "EMNIST/raw", split, labels)
    data = from_yaml("emnist", tmp_path, split=split)
    assert np.array_equal(data.x.numpy()[:, 0], images)
    assert data.y.tolist() == list(range(10)), "classes count from 0"
    assert (data.train, data.classes) == (6, emnist.SPLITS[split].classes)


def test_emnist_is_torchvisions(tmp_path):
    """Images and their orientation are those that torchvision reads from these files."""
    raw = tmp_path / "EMNIST/raw"
    write_emnist(raw, "digits", np.arange(10))
    for file in raw.glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
    theirs = torchvision().datasets.EMNIST(str(tmp_path), split="digits", train=False)
    ours = from_yaml("emnist", tmp_path, split="digits")
    assert np.array_equal(ours.x[ours.train :, 0].numpy(), theirs.data.numpy())
    assert ours.y[ours.train :].tolist() == theirs.targets.tolist()


def test_what_is_wrong_with_emnist_is_said(tmp_path):
    raw = tmp_path / "EMNIST/raw"
    with pytest.raises(UserError, match=r"dataset=emnist: not found in .*EMNIST/raw.*data.download=true"):
        from_yaml("emnist", tmp_path)
    with pytest.raises(
        UserError, match=r"dataset.split is 'letter': it must be one of byclass.*Did you mean 'letters'"
    ):
        from_yaml("emnist", tmp_path, split="letter")
    write_emnist(raw, "balanced", np.arange(10))
    (raw / "emnist-balanced-test-images-idx3-ubyte.gz").write_bytes(b"none")
    good = (raw / "emnist-balanced-train-images-idx3-ubyte").read_bytes()
    (raw / "emnist-balanced-train-images-idx3-ubyte").write_bytes(good[:-5])
    with pytest.raises(
        UserError, match=r"train-images-idx3-ubyte is damaged, emnist-balanced-test-images-idx3-ubyte is"
    ):
        from_yaml("emnist", tmp_path)
    write_emnist(raw, "balanced", np.arange(10) + 40)
    with pytest.raises(UserError, match=r"test-labels-idx1-ubyte is not of these images, or of other classes"):
        from_yaml("emnist", tmp_path)


def test_emnist_is_downloaded(tmp_path, monkeypatch):
    images = write_emnist(tmp_path / "there", "balanced", np.arange(10))
    served = io.BytesIO()
    with zipfile.ZipFile(served, "w") as packed:
        for file in (tmp_path / "there").iterdir():
            content = file.read_bytes()
            packed.writestr(f"gzip/{file.stem}.gz", content if file.suffix == ".gz" else gzip.compress(content))
    asked = serve(monkeypatch, {"gzip.zip": served.getvalue()})
    data = from_yaml("emnist", tmp_path / "here", download=True)
    assert np.array_equal(data.x.numpy()[:, 0], images)
    assert asked == [torchvision().datasets.EMNIST.url]


# STL-10


@pytest.fixture
def stl10(tmp_path, monkeypatch):
    images, labels = pixels(5, 96), np.array([1, 10, 3, 4, 5])
    folder, official = tmp_path / "stl10_binary", torchvision().datasets.STL10
    folder.mkdir()
    for part, where in (("train", slice(0, 3)), ("test", slice(3, 5))):
        images[where].transpose(0, 1, 3, 2).tofile(folder / f"{part}_X.bin")
        labels[where].astype(np.uint8).tofile(folder / f"{part}_y.bin")
    for part in ("train", "test"):
        known = getattr(official, f"{part}_list")
        md5s = [[file, md5(folder / file) if (folder / file).exists() else old] for file, old in known]
        monkeypatch.setattr(official, f"{part}_list", md5s)
    return tmp_path, images, labels - 1


def test_stl10(stl10):
    root, images, labels = stl10
    data = from_yaml("stl10", root)
    assert np.array_equal(data.x.numpy(), images), "each image upright"
    assert data.y.tolist() == labels.tolist()
    assert (data.train, data.classes) == (3, 10)


def test_stl10_is_downloaded(stl10, monkeypatch, tmp_path_factory):
    root, images, _ = stl10
    official = torchvision().datasets.STL10
    archive = tmp_path_factory.mktemp("served") / official.filename
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(root / "stl10_binary", "stl10_binary")
    asked = serve(monkeypatch, {archive.name: archive.read_bytes()})
    (root / "stl10_binary" / "train_y.bin").write_bytes(b"\1")
    with pytest.raises(UserError, match=r"dataset=stl10: train_y.bin is damaged.*data.download=true"):
        from_yaml("stl10", root)
    assert np.array_equal(from_yaml("stl10", root, download=True).x.numpy(), images)
    assert asked == [official.url]


# CINIC-10


@pytest.fixture
def cinic(tmp_path, monkeypatch):
    """Write one image for each class and part."""
    monkeypatch.setattr(cinic10, "EACH", 1)
    images = pixels(30, 32)
    for number, image in enumerate(images):
        file = tmp_path / "CINIC-10" / cinic10.PARTS[number // 10] / cinic10.CLASSES[number % 10] / f"n{number}.png"
        file.parent.mkdir(parents=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(file)
    return tmp_path, images


def test_cinic10(cinic):
    root, images = cinic
    data = chosen("cinic10", root, "partition=shards", "partition.clients=5", "partition.shards_per_client=2")
    assert np.array_equal(data.x.numpy(), images)
    assert data.y.tolist() == 3 * list(range(10))
    assert (data.train, data.classes) == (20, 10)


def test_what_is_missing_of_cinic10_is_said(cinic, tmp_path):
    root, _ = cinic
    (root / "CINIC-10/valid/dog/n15.png").unlink()
    with pytest.raises(UserError, match=r"dataset=cinic10: valid is not whole: 0 images in dog, and each class has 1"):
        from_yaml("cinic10", root)
    with pytest.raises(UserError, match=r"dataset=cinic10: not found in .*elsewhere/CINIC-10"):
        from_yaml("cinic10", root / "elsewhere")


def test_cinic10_is_downloaded(cinic, monkeypatch):
    root, images = cinic
    served = io.BytesIO()
    with tarfile.open(fileobj=served, mode="w:gz") as packed:
        for part in cinic10.PARTS:
            packed.add(root / "CINIC-10" / part, part)
    asked = serve(monkeypatch, {"CINIC-10.tar.gz": served.getvalue()})
    assert np.array_equal(from_yaml("cinic10", root / "here", download=True).x.numpy(), images)
    assert asked == [cinic10.URL]
