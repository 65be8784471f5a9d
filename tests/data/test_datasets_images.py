"""Loaders of image files, on small datasets in exactly the original layout."""

import hashlib
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pflsweep.data.dataset import Rows
from pflsweep.data.datasets import office_home, organamnist, tiny_imagenet
from pflsweep.data.federation import Federation
from pflsweep.data.partition import domain
from pflsweep.util.errors import UserError
from tests.data.loading import chosen, forbid, from_yaml, picture, serve

# Tiny-ImageNet

# As in the original, wnids.txt is not sorted
WNIDS = ["n02000", "n01000"]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Write 2 classes of 3 training images, 4 validation images, one of them grey, and unlabelled test images."""
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "wnids.txt").parent.mkdir()
    (folder / "wnids.txt").write_text("".join(f"{w}\n" for w in WNIDS))
    (folder / "words.txt").write_text("n01000\ta fish\nn02000\ta bird\n")
    for k, wnid in enumerate(WNIDS):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        (images.parent / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
        for i in range(3):
            (images / f"{wnid}_{i}.JPEG").write_bytes(picture(3 * k + i))
    (folder / "val/images").mkdir(parents=True)
    (folder / "test/images").mkdir(parents=True)
    (folder / "test/images/test_0.JPEG").write_bytes(picture(99))
    lines = []
    for i, wnid in enumerate([WNIDS[1], WNIDS[0], WNIDS[0], WNIDS[1]]):
        (folder / f"val/images/val_{i}.JPEG").write_bytes(picture(10 + i, mode="L" if i == 2 else "RGB"))
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    monkeypatch.setattr(tiny_imagenet, "WHOLE", tiny_imagenet.Counts(classes=2, train=3, val=4, side=64))
    return folder


def packed(folder: Path, monkeypatch) -> Path:
    """Pack the folder as Stanford's zip in its place, and tell the loader its MD5."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder.parent))
    shutil.rmtree(folder)
    monkeypatch.setattr(tiny_imagenet, "MD5", hashlib.md5(path.read_bytes()).hexdigest())
    return path


def test_tiny_imagenet_unpacked_or_not(tiny, monkeypatch):
    data = from_yaml("tiny_imagenet", tiny.parent)
    assert data.x.shape == (10, 3, 64, 64)
    assert data.x.numpy().dtype == np.uint8
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 1, 0], "classes are numbered in the order of their wnids"
    expected = [number * 7 for number in (3, 4, 5, 0, 1, 2, 10, 11, 12, 13)]
    assert np.abs(data.x.numpy().mean((1, 2, 3)) - expected).max() < 2
    assert data.train == 6
    packed(tiny, monkeypatch)
    same = from_yaml("tiny_imagenet", tiny.parent)
    assert same.checksum == data.checksum


def test_pixels_are_held_once_whatever_the_clients(tiny):
    data = from_yaml("tiny_imagenet", tiny.parent)
    assert data.x.nbytes == 10 * 3 * 64 * 64, "uint8"
    rows = [np.array([0, 1, 6]), np.array([3, 4, 7])]
    federation = Federation(data, Rows(rows, rows), validation=0.0, seed=0, device="cpu")
    assert federation._x.data_ptr() == data.x.data_ptr()


def test_tiny_imagenet_without_its_validation_images_as_fedala_counts_it(tiny):
    data = from_yaml("tiny_imagenet", tiny.parent, val=False)
    assert (len(data.x), data.train) == (6, 6)
    assert len(from_yaml("tiny_imagenet", tiny.parent).x) == 10, "what is kept of the one is not taken for the other"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("wnids.txt", b"n01000\n", "wnids.txt is not whole: 1 of 2 classes"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn01000\t0\n", r"val_annotations.txt is not whole: 1 of 4 lines"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn03000\n" * 4, "classes that are not its own"),
        ("train/n01000/images/n01000_1.JPEG", None, "train/n01000/images/n01000_1.JPEG is missing"),
        ("train/n02000/images/n02000_2.JPEG", picture(5)[:-100], "n02000_2.JPEG is damaged, or no image"),
        ("val/images/val_3.JPEG", b"<html>", "val_3.JPEG is damaged, or no image"),
        ("val/images/val_3.JPEG", picture(5, (32, 32)), "val_3.JPEG has 32x32 pixels, the first image 64x64"),
    ],
)
def test_a_tiny_imagenet_that_is_not_whole_is_refused(tiny, file, content, words):
    (tiny / file).unlink() if content is None else (tiny / file).write_bytes(content)
    with pytest.raises(UserError, match=words) as error:
        from_yaml("tiny_imagenet", tiny.parent)
    assert "dataset=tiny_imagenet" in str(error.value)
    assert "download=true" not in str(error.value), "it would not touch what is unpacked"
    assert "\n" not in str(error.value)


def test_a_tiny_imagenet_of_other_pixels_is_another(tiny, monkeypatch):
    monkeypatch.setattr(tiny_imagenet, "WHOLE", tiny_imagenet.WHOLE._replace(side=32))
    with pytest.raises(UserError, match=r"n01000_0.JPEG is of another version: not 32x32 pixels"):
        from_yaml("tiny_imagenet", tiny.parent)


def test_a_zip_that_is_not_the_original_is_refused(tiny, monkeypatch):
    path = packed(tiny, monkeypatch)
    good = path.read_bytes()
    path.write_bytes(good[:-50])
    with pytest.raises(
        UserError, match=r"tiny-imagenet-200.zip is damaged or of another version \(its MD5 is .*Looked"
    ):
        from_yaml("tiny_imagenet", path.parent)
    path.unlink()
    with pytest.raises(UserError, match=rf"dataset=tiny_imagenet: not found in {path.parent}\. .*data.download=true"):
        from_yaml("tiny_imagenet", path.parent)


def test_tiny_imagenet_is_downloaded_once(tiny, monkeypatch):
    path = packed(tiny, monkeypatch)
    asked = serve(monkeypatch, {path.name: path.read_bytes()})
    path.write_bytes(b"cut short")
    assert len(from_yaml("tiny_imagenet", tiny.parent, download=True).x) == 10
    from_yaml("tiny_imagenet", tiny.parent, download=True, val=False)
    assert asked == ["http://cs231n.stanford.edu/tiny-imagenet-200.zip"]


# OrganAMNIST


@pytest.fixture
def organ(tmp_path, monkeypatch):
    """Write MedMNIST's arrays with 5, 3 and 4 images."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 5), ("val", 3), ("test", 4)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{split}_labels"] = rng.integers(0, 11, (count, 1), np.uint8)
    np.savez_compressed(tmp_path / "organamnist.npz", **arrays)
    md5 = hashlib.md5((tmp_path / "organamnist.npz").read_bytes()).hexdigest()
    monkeypatch.setattr(organamnist, "MD5", md5)
    return tmp_path, arrays


def test_organamnist(organ):
    root, arrays = organ
    data = from_yaml("organamnist", root)
    order = ("train", "val", "test")
    assert np.array_equal(data.x.numpy(), np.concatenate([arrays[f"{split}_images"] for split in order])[:, None])
    assert np.array_equal(data.y.numpy(), np.concatenate([arrays[f"{split}_labels"] for split in order])[:, 0])
    assert (data.train, data.classes, data.shape) == (8, 11, (1, 28, 28))


def test_an_organamnist_of_another_version_is_refused_or_fetched_again(organ, monkeypatch):
    root, _ = organ
    content = (root / "organamnist.npz").read_bytes()
    np.savez_compressed(root / "organamnist.npz", train_images=np.zeros((3, 64, 64), np.uint8))
    with pytest.raises(UserError, match=r"organamnist.npz is damaged or of another version .*that of MedMNIST 2 is"):
        from_yaml("organamnist", root)
    asked = serve(monkeypatch, {"organamnist.npz": content})
    assert len(from_yaml("organamnist", root, download=True).x) == 12
    assert asked == ["https://zenodo.org/record/6496656/files/organamnist.npz?download=1"]
    (root / "organamnist.npz").unlink()
    with pytest.raises(UserError, match=rf"dataset=organamnist: not found in {root}"):
        from_yaml("organamnist", root)


# Office-Home


@pytest.fixture
def office(tmp_path, monkeypatch):
    """Write 4 domains of 2 classes with 2 to 5 images each, of different sizes."""
    top, number, counts = tmp_path / "OfficeHomeDataset_10072016", 0, {}
    for d, name in enumerate(office_home.DOMAINS):
        for one in ("Alarm_Clock", "Bike"):
            (top / name / one).mkdir(parents=True)
            for i in range(2 + d):
                (top / name / one / f"{i + 1:05}.jpg").write_bytes(picture(number, (40 + 10 * d, 90 - 5 * i)))
                number += 1
        counts[name] = 2 * (2 + d)
    (top / "ImageInfo.csv").write_text("")
    monkeypatch.setattr(office_home, "DOMAINS", counts)
    monkeypatch.setattr(office_home, "CLASSES", 2)
    return top


def test_office_home(office):
    data = from_yaml("office_home", office.parent)
    assert data.x.shape == (28, 3, 32, 32)
    assert np.abs(data.x.numpy().mean((1, 2, 3)) - np.arange(28) * 7).max() < 2, "domain by domain, class by class"
    assert data.y.tolist() == [k for d in range(4) for k in (0, 1) for _ in range(2 + d)]
    assert data.owner.tolist() == [0] * 4 + [1] * 6 + [2] * 8 + [3] * 10
    assert data.owners == ("Art", "Clipart", "Product", "Real World")
    assert data.train == 28, "it has no test split"
    assert from_yaml("office_home", office.parent, size=8).shape == (3, 8, 8)


def test_office_home_is_cut_by_domain(office):
    data = from_yaml("office_home", office.parent)
    rows = domain.split(data, seed=0, clients=4, alpha=10.0, least=2, tries=50, test_fraction=0.3)
    for client, name in enumerate(data.owners):
        own = np.concatenate([rows.train[client], rows.test[client]])
        assert {data.owners[k] for k in data.owner[own]} == {name}


def test_an_office_home_that_is_not_whole_is_refused(office):
    for image in (office / "Product").rglob("*.jpg"):
        image.unlink()
    with pytest.raises(UserError, match=r"Product is not whole: 0 images in 2 classes; all .* Looked in") as error:
        from_yaml("office_home", office.parent)
    assert "hemanthdv.org" in str(error.value)
    assert "download=true" not in str(error.value), "it cannot be downloaded"
    shutil.rmtree(office / "Real World")
    with pytest.raises(UserError, match=r"dataset=office_home: Real World is missing. Looked in"):
        from_yaml("office_home", office.parent)
    with pytest.raises(UserError, match=r"dataset=office_home: not found in"):
        from_yaml("office_home", office.parent / "elsewhere", download=True)


def test_another_number_of_images_is_a_warning_in_each_start(office, caplog):
    """The usual numbers are known from public code alone, so another number is not an error."""
    from_yaml("office_home", office.parent)
    assert not caplog.records
    next((office / "Product/Bike").iterdir()).unlink()
    # The second start reads what the first has prepared
    for start in (1, 2):
        data = from_yaml("office_home", office.parent)
        assert len(data.x) == 27
        assert len(caplog.records) == start
        assert caplog.messages[-1].endswith("other numbers of images than usual: 7 in Product (commonly 8)")


@pytest.mark.parametrize("part", ["Art/Bike/00002.jpg", "Clipart", "Clipart/Bike"])
def test_an_office_home_that_may_not_be_read_is_said(office, monkeypatch, part):
    forbid(monkeypatch, office / part)
    with pytest.raises(UserError, match=rf"^dataset=office_home: {office / part} cannot be read \(Permission denied\)"):
        chosen("office_home", office.parent)


def test_one_odd_class_is_seen(office):
    (office / "Art/Bike").rename(office / "Art/Bikes")
    with pytest.raises(UserError, match=r"is not whole"):
        from_yaml("office_home", office.parent)
