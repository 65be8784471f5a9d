"""Datasets of the library `datasets`, in the forms in which it stores them on disk."""

import errno
import io
import re
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets import ClassLabel, DatasetDict, Features, Value
from PIL import Image

import pflsweep
from pflsweep.config.compose import compose
from pflsweep.data.dataset import Dataset
from pflsweep.data.federation import Federation
from pflsweep.trial.build import build, build_federation
from pflsweep.util.errors import UserError
from tests.data.loading import from_yaml, picture

datasets.disable_progress_bars()
FEMNIST = Features(
    {"image": datasets.Image(), "writer_id": Value("string"), "character": ClassLabel(names=list("abc"))}
)
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 20, 20), np.uint8)


def femnist(rows: range = range(24)) -> datasets.Dataset:
    """Return grey images, characters and writers, in the form of flwrlabs/femnist on the Hub."""
    columns = {
        "image": [Image.fromarray(PIXELS[i]) for i in rows],
        "writer_id": [f"f{i % 4:04}_14" for i in rows],
        "character": [i % 3 for i in rows],
    }
    return datasets.Dataset.from_dict(columns, features=FEMNIST)


def news(count: int = 30) -> datasets.Dataset:
    words = ["the cat sat", "stocks fell, again!", "a new chip is fast"]
    columns = {
        "text": [f"{words[i % 3]} {i}" for i in range(count)],
        "topic": [["pets", "money", "tech"][i % 3] for i in range(count)],
    }
    return datasets.Dataset.from_dict({**columns, "source": [i % 5 for i in range(count)]})


def hf(root: Path, path: Path | str, **changes) -> Dataset:
    return from_yaml("huggingface", root, path=str(path), **changes)


def federation_of(root: Path, path: Path | str, *words: str) -> Federation:
    own = ["dataset=huggingface", f"dataset.path={path}", f"data.root={root}", "device=cpu"]
    return build_federation(compose([*own, *words]))[0]


def refused(said: str, root: Path, path: Path | str, **changes) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as told:
        hf(root, path, **changes)
    assert "\n" not in str(told.value)


def saved(top: Path) -> Path:
    femnist().save_to_disk(str(top))
    return top


def saved_splits(top: Path) -> Path:
    DatasetDict(train=femnist(range(16)), test=femnist(range(16, 24))).save_to_disk(str(top))
    return top


def as_on_the_hub(top: Path) -> Path:
    (top / "data").mkdir(parents=True)
    for split, rows in (("train", range(16)), ("test", range(16, 24))):
        femnist(rows).to_parquet(top / "data" / f"{split}-00000-of-00001.parquet")
    return top


def one_file(top: Path) -> Path:
    femnist().to_parquet(top.with_suffix(".parquet"))
    return top.with_suffix(".parquet")


@pytest.mark.parametrize("write", [saved, saved_splits, as_on_the_hub, one_file])
def test_images_in_each_form(tmp_path, write):
    data = hf(tmp_path / "root", write(tmp_path / "set"))
    assert np.array_equal(data.x.numpy()[:, 0], PIXELS), "grey, as they are"
    assert data.y.tolist() == [i % 3 for i in range(24)]
    assert data.train == (16 if write in (saved_splits, as_on_the_hub) else 24)
    assert (data.classes, data.owner) == (3, None)


def test_femnist_is_a_line_of_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "set")
    own = ["dataset=huggingface", "dataset.path=set", "partition=natural", "partition.column=writer_id"]
    few = ["partition.least=2", "train.rounds=1", "train.workers=1", f"data.root={tmp_path}", "device=cpu"]
    result = pflsweep.run([*own, *few])
    assert result.record.meta["shape"] == [1, 20, 20]
    assert len(result.clients["client"].unique()) == 4
    federation = build(compose([*own, *few])).federation
    assert federation.dataset.owners == tuple(f"f{i:04}_14" for i in range(4))
    for train, test in zip(federation.rows["train"], federation.rows["test"], strict=True):
        assert len({int(row) % 4 for row in (*train, *test)}) == 1
    assert result.record.meta["data_checksum"] == federation.checksum


def test_the_column_of_clients_is_in_the_identity_and_the_path_is_not(tmp_path):
    root, few = tmp_path / "root", ["partition=natural", "partition.least=1"]
    first, again = saved(tmp_path / "a"), saved(tmp_path / "b")
    writers = federation_of(root, first, *few, "partition.column=writer_id").checksum
    assert writers == federation_of(root, again, *few, "partition.column=writer_id").checksum
    assert writers != federation_of(root, first, "partition=iid", "partition.clients=4").checksum


def test_texts_with_clients_of_a_number(tmp_path):
    news(60).save_to_disk(str(tmp_path / "set"))
    few = ["dataset.label=topic", "dataset.length=6", "dataset.vocabulary=50", "model=fasttext"]
    own = [f"dataset.path={tmp_path / 'set'}", f"data.root={tmp_path}", "device=cpu", "dataset=huggingface"]
    parts = build(compose([*own, *few, "partition=natural", "partition.column=source", "dataset.input=text"]))
    data = parts.federation.dataset
    assert (data.x.shape, data.classes, data.vocabulary) == ((60, 6), 3, 50)
    assert data.y[:3].tolist() == [1, 0, 2], "money, pets, tech: by alphabet"
    assert parts.federation.clients == 5
    assert data.owners == ("0", "1", "2", "3", "4")
    assert (data.x[0] == data.x[3]).sum() == 5, "the same words but for the last one, and padding"
    with pytest.raises(UserError, match="dataset=huggingface is text and model=cnn has no word vectors"):
        build(compose([*own, *few, "model=cnn", "partition=iid", "dataset.input=text", "partition.clients=4"]))
    lstm = [*own, *few[:-1], "model=char_lstm", "dataset.input=text", "partition=iid", "partition.clients=4"]
    with pytest.raises(UserError, match=r"fills up short texts with id 0.* Use model\.padding=first"):
        build(compose(lstm))
    assert build(compose([*lstm, "model.padding=first"])).model.words.padded


def test_what_was_decoded_is_kept(tmp_path, monkeypatch):
    path, root = saved(tmp_path / "set"), tmp_path / "root"
    first = hf(root, path)
    with monkeypatch.context() as patched:
        patched.setattr("pflsweep.data.datasets.images.read", None)
        assert np.array_equal(hf(root, path).x.numpy(), first.x.numpy())
    femnist(range(12)).save_to_disk(str(path))
    assert len(hf(root, path).y) == 12, "another set in the same place is read anew"


def test_images_are_resized_and_coloured(tmp_path):
    path = saved(tmp_path / "set")
    assert hf(tmp_path, path, size=8, channels=3).shape == (3, 8, 8)
    mixed = datasets.Dataset.from_dict(
        {"image": [{"bytes": picture(i, (6 + i % 2, 6)), "path": None} for i in range(6)], "label": [0, 1] * 3},
        features=Features({"image": datasets.Image(), "label": Value("int64")}),
    )
    mixed.save_to_disk(str(tmp_path / "mixed"))
    refused("row 1 of the split 'train' has 7x6 pixels, the first image 6x6", tmp_path, tmp_path / "mixed")
    assert hf(tmp_path, tmp_path / "mixed", size=6).shape == (3, 6, 6)


def test_what_is_wrong_is_said(tmp_path):
    path = saved(tmp_path / "set")
    refused("dataset=huggingface reads a set of the datasets library: say which, dataset.path", tmp_path, "")
    refused("dataset.label is 'letter': the split 'train' has no such column", tmp_path, path, label="letter")
    refused("Did you mean 'writer_id'? Its columns are image (Image), writer_id (string), character (ClassLabel)",
            tmp_path, path, owner_column="writer")  # fmt: skip
    refused("dataset.input=image and dataset.label=image", tmp_path, path, label="image", input="image")
    refused(
        "dataset.input is 'character', a column of ClassLabel", tmp_path, path, input="character", label="writer_id"
    )
    refused("dataset.train is 'training': its splits are train.", tmp_path, path, train="training")
    refused("dataset.train and dataset.test are both 'train'", tmp_path, path, test="train")
    refused("dataset.channels is 2", tmp_path, path, channels=2)
    refused("dataset.size is 0", tmp_path, path, size=0)
    refused("dataset.length is 0", tmp_path, path, length=0)
    (tmp_path / "notes").mkdir()
    refused("notes cannot be read by the datasets library", tmp_path, tmp_path / "notes")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 cut short")
    refused("x.parquet cannot be read by the datasets library", tmp_path, tmp_path / "x.parquet")
    unlabelled = femnist(range(4)).remove_columns("character").add_column("character", [0, -1, 1, 2])
    unlabelled.cast_column("character", FEMNIST["character"]).save_to_disk(str(tmp_path / "unlabelled"))
    refused("row 1 has no class (-1)", tmp_path, tmp_path / "unlabelled")
    hidden = femnist(range(8)).remove_columns("character").add_column("character", [0, 1, 1, 0, 1, 0, 0, 1])
    parts = {"train": hidden, "test": hidden.remove_columns("character").add_column("character", [-1] * 8)}
    DatasetDict(parts).save_to_disk(str(tmp_path / "hidden"))
    said = "every row of the split 'test' has -1, which stands for no class"
    refused(said, tmp_path, tmp_path / "hidden", test="test", label="character")
    gaps = news(6).remove_columns("source").add_column("source", ["a", None, "b", "a", "b", "a"])
    gaps.save_to_disk(str(tmp_path / "gaps"))
    refused("column 'source' is empty in row 1 of the split 'train'", tmp_path, tmp_path / "gaps", label="topic",
            input="text", owner_column="source")  # fmt: skip
    refused("dataset.input is null, and the columns do not show which it is: name it. They are text (string)",
            tmp_path, tmp_path / "gaps", label="topic")  # fmt: skip
    refused("dataset.label is null, and the columns do not show which it is", tmp_path, tmp_path / "gaps", input="text")
    refused("dataset.label is 'text': that column has 30 different values in 30 rows", tmp_path,
            _saved(news(), tmp_path / "news"), label="text", input="topic")  # fmt: skip


def _saved(rows: datasets.Dataset, path: Path) -> Path:
    rows.save_to_disk(str(path))
    return path


def test_a_damaged_image_is_named(tmp_path):
    broken = datasets.Dataset.from_dict(
        {"image": [{"bytes": b"none", "path": None}, {"bytes": picture(1), "path": None}], "label": [0, 1]},
        features=Features({"image": datasets.Image(), "label": ClassLabel(names=["a", "b"])}),
    )
    refused("row 0 of the split 'train' is damaged, or no image", tmp_path, _saved(broken, tmp_path / "set"))


def test_splits_that_number_their_classes_differently_are_refused(tmp_path):
    """Class 0 would be a cat in training and a dog in tests."""

    def split(names: list[str]) -> datasets.Dataset:
        features = Features({"image": datasets.Image(), "label": ClassLabel(names=names)})
        return datasets.Dataset.from_dict(
            {"image": [{"bytes": picture(k), "path": None} for k in (1, 2)], "label": [0, 1]}, features=features
        )

    DatasetDict(train=split(["cat", "dog"]), test=split(["dog", "cat"])).save_to_disk(str(tmp_path / "set"))
    refused("number their classes differently (train: cat, dog; test: dog, cat)", tmp_path, tmp_path / "set")


def test_a_name_is_fetched_only_on_request_and_once(tmp_path, monkeypatch):
    refused("no set of this name in", tmp_path, "flwrlabs/femnist")
    asked = []

    def from_hub(path: str, name: str | None = None) -> DatasetDict:
        asked.append((path, name))
        return DatasetDict(train=femnist())

    with monkeypatch.context() as patched:
        patched.setattr(datasets, "load_dataset", from_hub)
        first = hf(tmp_path, "flwrlabs/femnist", download=True)
    assert np.array_equal(hf(tmp_path, "flwrlabs/femnist").x.numpy(), first.x.numpy()), "without the network"
    assert asked == [("flwrlabs/femnist", None)]
    assert [file.name for file in (tmp_path / "huggingface").iterdir()] == ["flwrlabs--femnist"]


def test_a_fetch_that_cannot_be_stored_leaves_nothing(tmp_path, monkeypatch):
    def save(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        Path(folder, "data.arrow").write_bytes(b"the first half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(datasets, "load_dataset", lambda path, name=None: DatasetDict(train=femnist()))
    monkeypatch.setattr(DatasetDict, "save_to_disk", save)
    with pytest.raises(UserError):
        hf(tmp_path, "flwrlabs/femnist", download=True)
    assert list((tmp_path / "huggingface").iterdir()) == []


def test_a_fetch_that_fails_is_said(tmp_path, monkeypatch):
    def no_network(path: str, name: str | None = None) -> None:
        raise ConnectionError("Couldn't reach 'a/b' on the Hub")

    def no_subset(path: str, name: str | None = None) -> None:
        raise ValueError("Config name is missing.\nPlease pick one among en, de")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    refused("dataset=huggingface: the download into", tmp_path, "a/b", download=True)
    monkeypatch.setattr(datasets, "load_dataset", no_subset)
    refused("Please pick one among en, de (dataset.subset)", tmp_path, "a/b", download=True)


def test_without_the_library_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("dataset=huggingface needs the library `datasets`, which is not installed: pip install", tmp_path, "a/b")


def test_an_image_that_is_a_file_beside_the_table(tmp_path):
    top = tmp_path / "set"
    for number in range(6):
        file = top / ["cat", "dog"][number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        Image.fromarray(PIXELS[number]).save(content, "PNG")
        file.write_bytes(content.getvalue())
    data = hf(tmp_path / "root", top)
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(data.x.numpy()[:, 0], PIXELS[[0, 2, 4, 1, 3, 5]])
