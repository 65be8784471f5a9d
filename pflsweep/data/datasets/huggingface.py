"""Any dataset of images or texts that Hugging Face's `datasets` library reads, from disk or by its name on the Hub.

dataset.path is a folder that `save_to_disk` wrote, a folder of files as on the Hub (parquet, images), a parquet file,
or a name such as flwrlabs/femnist. A name is fetched only with data.download=true, and stored in <root>/huggingface as
`save_to_disk` writes it.
"""

import hashlib
import io
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets import files, images, text
from pflsweep.data.datasets.cache import prepared
from pflsweep.data.datasets.pack import Content, content, pack
from pflsweep.data.datasets.table import require_classes
from pflsweep.util.errors import UserError, nearest, one_line

if TYPE_CHECKING:
    import pandas as pd

TEXT = ("string", "large_string")  # column types that are texts
GREY = ("1", "L", "LA")  # PIL modes of grey images
Splits = dict[str, Any]  # datasets.Dataset by the split's name


def load(
    root: Path,
    download: bool,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    path: str | None,
    subset: str | None,
    train: str | None,
    test: str | None,
    input: str | None,
    label: str | None,
    size: int | None,
    channels: int | None,
    length: int,
    vocabulary: int,
    augment: str = "none",
    owner_column: str | None = None,
) -> Dataset:
    """Return images x [n, channels, H, W] uint8, or texts x [n, length] int32 token ids below `vocabulary`.

    Texts are prepared as those of AG News. train, test: names of splits. input, label: names of columns. For None the
    only candidate is taken. owner_column: the column of clients that the partition names. Raises UserError if the
    dataset cannot be read.
    """
    text.check(length, vocabulary)
    if channels not in (None, 1, 3):
        raise UserError(f"dataset.channels is {channels}: it must be 1, for grey, 3, for colour, or null.")
    if size is not None and size < 1:
        raise UserError(f"dataset.size is {size}: it must be at least 1, or null where the images have one size.")
    splits = _chosen(_splits(name, root, path, subset, download), train, test)
    columns = _columns(splits, input, label, owner_column)
    input, label = columns["dataset.input"], columns["dataset.label"]
    table = _table(splits, [column for key, column in columns.items() if key != "dataset.input"])
    classes, y = _classes(splits, table, label)
    owners, owner = ([], None) if owner_column is None else _codes(table, owner_column)
    is_text = _kind(splits, input) == "text"

    def make() -> Content:
        trained = len(next(iter(splits.values())))
        if is_text:
            tokens = [text.tokens(line) for line in _texts(splits, input)]
            return content(text.encode(tokens, text.vocabulary(tokens, vocabulary), length), y, trained, owner)
        x = images.read(_images(splits, input), len(y), name, channels or _channels(splits, input), size)
        return content(x, y, trained, owner)

    how = [input, label, owner_column, *((length, vocabulary) if is_text else (size, channels))]
    sources = [_look(file["filename"]) for split in splits.values() for file in split.cache_files]
    place = hashlib.blake2b(f"{path} {subset} {list(splits)} {how}".encode(), digest_size=4).hexdigest()
    # a dataset that is only in memory has no files whose change would show, so it is not cached
    rows = prepared(root, f"{name}-{place}", None, [1, how, sources], make) if sources else make()
    if is_text:
        data = pack(
            name, rows, classes=classes, scale=1.0, mean=[0.0], std=[1.0], augment=augment, owners=owners, own=True
        )
        return data._replace(vocabulary=vocabulary)
    return pack(
        name, rows, classes=classes, scale=1 / 255, mean=mean, std=std, augment=augment, owners=owners, own=True
    )


def _splits(name: str, root: Path, path: str | None, subset: str | None, download: bool) -> Splits:
    """Return all splits of a dataset by name, not yet read into memory."""
    if not path:
        raise UserError(
            f"dataset={name} reads a set of the datasets library: say which, dataset.path=FOLDER, a parquet file, or a "
            "name on the Hub such as flwrlabs/femnist."
        )
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"dataset={name} needs the library `datasets`, which is not installed: pip install 'pflsweep[hf]'."
        ) from error
    place = Path(path).expanduser().absolute()
    if not place.exists():
        place = _fetched(name, root, path, subset, download)
    try:
        with _quiet():
            if (place / "dataset_dict.json").exists() or (place / "state.json").exists():
                found = datasets.load_from_disk(str(place))
            else:
                cache = str(root / "prepared" / "huggingface")
                arguments = (
                    {"path": str(place), "name": subset}
                    if place.is_dir()
                    else {"path": "parquet", "data_files": str(place)}
                )
                found = datasets.load_dataset(**arguments, cache_dir=cache)
    except Exception as error:  # pyarrow, fsspec and the library itself each raise their own
        raise UserError(
            f"dataset.path: {place} cannot be read by the datasets library ({one_line(error)}). It should be a folder "
            "that save_to_disk wrote, a folder of parquet files or images, or a parquet file."
        ) from error
    return dict(found) if isinstance(found, dict) else {"train": found}


def _fetched(name: str, root: Path, path: str, subset: str | None, download: bool) -> Path:
    """Return the folder in which a dataset of the Hub is stored, after fetching it if needed and allowed.

    Raises UserError if it is neither stored nor fetched.
    """
    folder = root / "huggingface" / "--".join(path.strip("/").split("/") + ([subset] if subset else []))
    if folder.is_dir():
        return folder
    if not download:
        raise UserError(
            f"dataset.path is {path}: there is no such file or folder, and no set of this name in {folder.parent}. If "
            "it is the name of a set on the Hugging Face Hub, let the program fetch it (data.download=true)."
        )

    def fetch() -> None:
        import datasets

        try:
            found = datasets.load_dataset(path, name=subset)
        except ValueError as error:  # a subset has to be named, or the one that is named does not exist
            raise UserError(f"dataset.path={path} cannot be fetched: {one_line(error)} (dataset.subset)") from error
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.part")  # another process may fetch it too
        try:
            found.save_to_disk(str(partial))
            if not folder.is_dir():
                os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    files.download(name, folder.parent, fetch)
    return folder


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable the library's progress bars, since reading from disk is short."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _chosen(splits: Splits, train: str | None, test: str | None) -> Splits:
    """Return the training split, and the test split where there is one, by name.

    train, test: dataset.train and dataset.test. Raises UserError if they do not name splits of the dataset.
    """
    for key, split in (("train", train), ("test", test)):
        if split is not None and split not in splits:
            raise UserError(
                f"dataset.{key} is '{split}': its splits are {', '.join(splits)}.{nearest(split, list(splits))}"
            )
    if train is None and "train" not in splits and len(splits) > 1:
        raise UserError(f"dataset.train is null and no split is called train: name one of {', '.join(splits)}.")
    first = train or ("train" if "train" in splits else next(iter(splits)))
    second = test or ("test" if "test" in splits and first != "test" else None)
    if first == second:
        raise UserError(f"dataset.train and dataset.test are both '{first}': a row is in one split.")
    found = {split: splits[split] for split in (first, second) if split is not None}
    for split, rows in found.items():
        if not len(rows):
            raise UserError(f"dataset.path: its split '{split}' has no rows.")
    return found


def _columns(splits: Splits, input: str | None, label: str | None, owner: str | None) -> dict[str, str]:
    """Return the columns to read, by the config key that names them.

    Raises UserError if a column does not exist, where None leaves several candidates, or where two are the same.
    """
    import datasets

    features = next(iter(splits.values())).features
    taken = {column for column in (input, label, owner) if column}
    free = {column: feature for column, feature in features.items() if column not in taken}
    if label is None:
        marked = [column for column, feature in free.items() if isinstance(feature, datasets.ClassLabel)]
        label = marked[0] if len(marked) == 1 else "label" if "label" in free else None
    if input is None:
        pictures = [column for column, feature in free.items() if isinstance(feature, datasets.Image)]
        texts = [c for c, feature in free.items() if c != label and getattr(feature, "dtype", None) in TEXT]
        input = next((found[0] for found in (pictures, texts) if len(found) == 1), None)
    said = ", ".join(f"{column} ({_type(feature)})" for column, feature in features.items())
    columns = {"dataset.input": input, "dataset.label": label, **({} if owner is None else {"partition.column": owner})}
    for key, column in columns.items():
        if column is None:
            raise UserError(f"{key} is null, and the columns do not show which it is: name it. They are {said}.")
        for split, rows in splits.items():
            if column not in rows.features:
                raise UserError(
                    f"{key} is '{column}': the split '{split}' has no such column."
                    f"{nearest(column, list(rows.features))} Its columns are {said}."
                )
    named = {key: str(column) for key, column in columns.items()}
    if len(set(named.values())) < len(named):
        both = " and ".join(f"{key}={column}" for key, column in named.items())
        raise UserError(f"{both}: each has to be a column of its own.")
    return named


def _type(feature: Any) -> str:
    """Return the type of a column as a word, for messages."""
    kind = type(feature).__name__
    return str(getattr(feature, "dtype", kind)) if kind == "Value" else kind


def _kind(splits: Splits, input: str) -> str:
    """Return `image` or `text` for the type of a column. Raises UserError on any other type."""
    import datasets

    feature = next(iter(splits.values())).features[input]
    if isinstance(feature, datasets.Image):
        return "image"
    if getattr(feature, "dtype", None) in TEXT:
        return "text"
    raise UserError(
        f"dataset.input is '{input}', a column of {_type(feature)}: images and texts are read. Bring numbers as arrays "
        "(dataset=npz) or as a table (dataset=csv)."
    )


def _table(splits: Splits, columns: list[str]) -> "pd.DataFrame":
    """Return some columns of all splits' rows, in order. Raises UserError on an empty cell."""
    import pandas as pd

    parts = []
    for split, rows in splits.items():
        part = rows.select_columns(columns).with_format(None).to_pandas()
        for column in columns:
            if part[column].isna().any():
                where = int(part[column].isna().to_numpy().argmax())
                raise UserError(f"dataset.path: column '{column}' is empty in row {where} of the split '{split}'.")
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def _classes(splits: Splits, table: "pd.DataFrame", label: str) -> tuple[int, np.ndarray]:
    """Return the number of classes and the class of each row, [n] int64.

    Classes are numbered as the dataset does (ClassLabel), or else by the sorted values of the column.
    """
    import datasets

    features = {split: rows.features[label] for split, rows in splits.items()}
    names_of = {
        split: tuple(each.names) if isinstance(each, datasets.ClassLabel) else () for split, each in features.items()
    }
    if len(set(names_of.values())) > 1:
        said = "; ".join(f"{split}: {', '.join(names[:5]) or 'values'}" for split, names in names_of.items())
        raise UserError(
            f"dataset.label is '{label}': its splits number their classes differently ({said}). Give them the same "
            "ClassLabel, such as by `cast_column`."
        )
    feature = next(iter(features.values()))
    if not isinstance(feature, datasets.ClassLabel):
        names, y = _codes(table, label)
        ends = np.cumsum([len(rows) for rows in splits.values()])
        for split, part in zip(splits, np.split(y, ends[:-1]), strict=True):
            if "-1" in names and (part == names.index("-1")).all():
                raise UserError(
                    f"dataset.label is '{label}': every row of the split '{split}' has -1, which stands for no class. "
                    "Choose splits that have labels (dataset.train, dataset.test)."
                )
        require_classes(label, names, len(y))
        return len(names), y
    y = table[label].to_numpy(np.int64)
    if (y < 0).any():
        raise UserError(
            f"dataset.label is '{label}': row {int((y < 0).argmax())} has no class ({y.min()}). Choose splits that "
            "have labels (dataset.train, dataset.test)."
        )
    return feature.num_classes, y


def _codes(table: "pd.DataFrame", column: str) -> tuple[list[str], np.ndarray]:
    """Return the sorted values of a column, and for each row the index of its value.

    Raises UserError if the values cannot be sorted.
    """
    try:
        names, codes = np.unique(table[column].to_numpy(), return_inverse=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"dataset.path: column '{column}' is neither of numbers nor of words ({error}).") from error
    return [str(one) for one in names], codes


def _images(splits: Splits, input: str) -> Iterator[tuple[str, bytes]]:
    """Yield (a name for messages, the file's bytes) of each image."""
    import datasets

    for split, rows in splits.items():
        packed = rows.select_columns([input]).with_format(None).cast_column(input, datasets.Image(decode=False))
        for number, row in enumerate(packed):
            label, file = f"row {number} of the split '{split}'", row[input]
            if file is None:
                raise UserError(f"dataset.path: column '{input}' is empty in {label}.")
            yield label, Path(file["path"]).read_bytes() if file["bytes"] is None else file["bytes"]


def _channels(splits: Splits, input: str) -> int:
    """Return 1 if the first image is grey, else 3."""
    from PIL import Image, UnidentifiedImageError

    _, first = next(_images(splits, input))
    try:
        with Image.open(io.BytesIO(first)) as file:
            return 1 if file.mode in GREY else 3
    except (UnidentifiedImageError, OSError):  # reported when all images are read
        return 3


def _texts(splits: Splits, input: str) -> list[str]:
    table = _table(splits, [input])
    return table[input].tolist()


def _look(file: str) -> list[Any]:
    """Return a file's path, size and modification time."""
    stat = os.stat(file)
    return [file, stat.st_size, stat.st_mtime_ns]
