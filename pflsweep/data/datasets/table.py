"""The user's own table: a csv file with a header, numeric features, a label, and optionally a client."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.files import own_path
from pflsweep.data.datasets.pack import content, pack
from pflsweep.util.errors import UserError, nearest, one_line

if TYPE_CHECKING:
    import pandas as pd


def load(
    root: Path,
    download: bool,
    name: str,
    mean: Sequence[float],
    std: Sequence[float],
    path: str | None,
    label: str | None,
    client: str | None,
    owner_column: str | None = None,
) -> Dataset:
    """Return the dataset of a table: x [n, F] float32 has all columns but `label` and `client`.

    The sorted values of `label` are the classes 0 to K - 1. owner_column: the column of clients where the partition
    names it; `client` must then be None or the same. There is no test split: the partition cuts one. Raises UserError
    where the table cannot be read.
    """
    file = own_path(name, path, folder=False)
    table = _table(file)
    columns = list(table.columns)
    if client is not None and owner_column not in (None, client):
        raise UserError(
            f"dataset.client is '{client}' and partition.column '{owner_column}': a row has one client. Leave one out."
        )
    named = "dataset.client" if owner_column is None else "partition.column"
    client = client if owner_column is None else owner_column
    for option, column in (("dataset.label", label), (named, client)):
        if column not in columns and (option == "dataset.label" or column is not None):
            wrong = f"'{column}': {file} has no such column.{nearest(str(column), columns)}" if column else "not set."
            raise UserError(f"{option} is {wrong} Its columns are {', '.join(columns)}.")
    if client == label:
        raise UserError(f"{named} and dataset.label are both '{label}': a row's client is another column.")
    features = [column for column in columns if column not in (label, client)]
    if not features:
        raise UserError(f"{file} has no column beside '{label}' and '{client}': at least one feature is needed.")
    x = _numbers(file, table[features])
    classes, y = _codes(file, table, str(label))
    owners, owner = _codes(file, table, client) if client is not None else ([], None)
    require_classes(str(label), classes, len(y))
    rows = content(x, y, len(y), owner)
    return pack(name, rows, classes=len(classes), scale=1.0, mean=mean, std=std, owners=owners, own=True)


def require_classes(label: str, classes: Sequence[str], rows: int) -> None:
    """Raise UserError if the values of a column cannot be classes: a single value, or nearly as many as rows."""
    if len(classes) < 2:
        raise UserError(f"dataset.label is '{label}': that column has one value only, {classes[0]}; two are needed.")
    # a table of a few rows is an example, so it is accepted
    if 2 * len(classes) > max(rows, 20):
        raise UserError(
            f"dataset.label is '{label}': that column has {len(classes)} different values in {rows} rows, and a "
            "class needs several rows. Name the column of the classes; numbers must be put into classes first."
        )


def _table(file: Path) -> "pd.DataFrame":
    import pandas as pd

    try:
        # with two rows, pandas refuses fields without a column name, which in the second call would shift all others
        header = pd.read_csv(file, header=None, nrows=2).iloc[0]
        # with low_memory, pandas infers types part by part, and a column could have two of them
        table = pd.read_csv(file, low_memory=False)
    except (OSError, ValueError) as error:  # pandas' parsing and decoding errors are ValueErrors
        why = one_line(error)
        raise UserError(f"{file} cannot be read as csv with a header of all columns ({why}).") from error
    if header.isna().any():
        raise UserError(
            f"{file}: column {int(header.isna().argmax()) + 1} has no name in the header. Name it, or drop it: "
            "pandas writes its index so, unless to_csv is given index=False."
        )
    if header.duplicated().any():  # pandas would rename the second column
        raise UserError(
            f"{file} has two columns '{header[header.duplicated()].iloc[0]}': rename one of them, or drop it. "
            "If its first line is not a header, give it one."
        )
    if not len(table) or len(table.columns) < 2:
        raise UserError(
            f"{file} has {len(table)} rows and {len(table.columns)} columns: a label and a feature are needed, "
            "and commas between the fields of a line."
        )
    return table.rename(columns=str)


def _numbers(file: Path, table: "pd.DataFrame") -> np.ndarray:
    """Return the columns as float32 [n, F]. Raises UserError if a value is not a finite number."""
    import pandas as pd

    for column in table:
        values = table[column]
        if values.dtype.kind not in "iufb":
            words = pd.to_numeric(values, errors="coerce").isna() & values.notna()
            line = f" in line {int(words.argmax()) + 2} ('{values[words.argmax()]}')" if words.any() else ""
            raise UserError(
                f"{file}: column '{column}' is not numeric{line}. Features must be; turn it into numbers, or leave it "
                "out. The column of the clients is named by dataset.client."
            )
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(values.to_numpy(np.float32)))
        if len(bad):
            raise UserError(
                f"{file}: column '{column}' has no finite number in line {bad[0] + 2}. Numbers must fit float32, up to "
                "3.4e38."
            )
    # a copy, since pandas may return a read-only view
    return np.array(table.to_numpy(np.float32), order="C")


def _codes(file: Path, table: "pd.DataFrame", column: str) -> tuple[list[str], np.ndarray]:
    """Return the sorted values of a column, and for each row the index of its value."""
    values = table[column]
    if values.isna().any():
        raise UserError(f"{file}: column '{column}' is empty in line {int(values.isna().argmax()) + 2}.")
    names, codes = np.unique(values.to_numpy(), return_inverse=True)
    return [str(one) for one in names], codes
