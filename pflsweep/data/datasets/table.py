"""The user's own table: a csv file with a header, numeric features, a label, and optionally a client."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pflsweep.data.dataset import Dataset
from pflsweep.data.datasets.files import own_path
from pflsweep.data.datasets.pack import content, pack, warn_if_far
from pflsweep.util.errors import UserError, nearest, one_line

PLAIN = re.compile(r"[A-Za-z_][\w.-]*")  # a name that is itself in an override's list
GAPS = {"", "nan", "na", "n/a", "<na>", "null", "none"}  # in a column of numbers; elsewhere all but "" are names

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
    drop: Sequence[str] = (),
    standardise: bool = False,
    owner_column: str | None = None,
) -> Dataset:
    """Return the dataset of a table: x [n, F] float32 has all columns but `label`, `client` and those of `drop`.

    The sorted values of `label` are the classes 0 to K - 1. owner_column: the column of clients where the partition
    names it; `client` must then be None or the same. There is no test split: the partition cuts one. standardise:
    normalise by the training rows, once they are known, and not by mean and std. Raises UserError where the table
    cannot be read. Warns about columns that are far from standard.
    """
    if standardise and (any(mean) or any(one != 1 for one in std)):
        raise UserError(
            "dataset.standardise is true, which computes dataset.mean and dataset.std from the training rows: leave "
            "these at [0.0] and [1.0], or set standardise to false."
        )
    file = own_path(name, path, folder=False)
    named = "dataset.client" if owner_column is None else "partition.column"
    if client is not None and owner_column not in (None, client):
        raise UserError(
            f"dataset.client is '{client}' and partition.column '{owner_column}': a row has one client. Leave one out."
        )
    client = client if owner_column is None else owner_column
    table = _table(file, [label, client])
    columns = list(table.columns)
    for option, column in (("dataset.label", label), (named, client)):
        if column not in columns and (option == "dataset.label" or column is not None):
            wrong = f"'{column}': {file} has no such column.{nearest(str(column), columns)}" if column else "not set."
            raise UserError(f"{option} is {wrong} Its columns are {', '.join(columns)}.")
    if client == label:
        raise UserError(f"{named} and dataset.label are both '{label}': a row's client is another column.")
    dropped = [str(column) for column in drop]
    for column in dropped:
        if column not in columns or column in (label, client):
            why = f"is {'dataset.label' if column == label else named}" if column in columns else "is not in the table"
            guess = "" if column in columns else nearest(column, columns)
            raise UserError(f"dataset.drop has '{column}', which {why}.{guess} Its columns are {', '.join(columns)}.")
    features = [column for column in columns if column not in (label, client, *dropped)]
    if not features:
        beside = " and ".join([f"'{column}'" for column in (label, client) if column is not None])
        also = " and those of dataset.drop" if dropped else ""
        raise UserError(f"{file} has no column beside {beside}{also}: at least one feature is needed.")
    x = _numbers(file, table[features])
    classes, y = _codes(file, table, str(label))
    owners, owner = _codes(file, table, client) if client is not None else ([], None)
    require_classes(str(label), classes, len(y))
    rows = content(x, y, len(y), owner)
    packed = pack(name, rows, classes=len(classes), scale=1.0, mean=mean, std=std, owners=owners, own=True)
    if not standardise:
        advice = (
            "Add dataset.standardise=true (`standardise: true` in an option of your own), which brings each feature to "
            "mean 0 and standard deviation 1."
        )
        warn_if_far(file, [f"'{column}'" for column in features], packed, advice)
    return packed._replace(standardise=standardise)


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


def _table(file: Path, texts: Sequence[str | None]) -> "pd.DataFrame":
    """Return the table in a file. texts: columns of names, which stay as written: 01 is not 1, nor NA a gap."""
    import pandas as pd

    try:
        # with two rows, pandas refuses fields without a column name, which in the second call would shift all others
        header = pd.read_csv(file, header=None, nrows=2, dtype=str, keep_default_na=False).iloc[0]
        # with low_memory, pandas infers types part by part, and a column could have two of them
        table = pd.read_csv(file, low_memory=False)
        written = pd.read_csv(file, usecols=[c for c in table if c in texts], dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' parsing and decoding errors are ValueErrors
        why = one_line(error)
        raise UserError(f"{file} cannot be read as csv with a header of all columns ({why}).") from error
    if header.eq("").any():
        raise UserError(
            f"{file}: column {int(header.eq('').argmax()) + 1} has no name in the header. Name it, or drop it: "
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
    for column in written:
        table[column] = written[column].fillna("").str.strip()  # NaN where a line ends before
    return table.rename(columns=str)


def _numbers(file: Path, table: "pd.DataFrame") -> np.ndarray:
    """Return the columns as float32 [n, F]. Raises UserError, with all such columns, if a value is no finite number."""
    texts = {column: _first_text(table[column]) for column in table if table[column].dtype.kind not in "iufb"}
    if texts:
        raise UserError(
            f"{file}: column {_listed(texts, 'is not numeric')}. Features must be; turn them into numbers, or leave "
            f"them out by {_dropping(texts)}. The column of the clients is named by dataset.client."
        )
    with np.errstate(over="ignore"):
        # a copy, since pandas may return a read-only view
        x = np.array(table.to_numpy(np.float32), order="C")
    lacking = {}
    for column, values in zip(table, x.T, strict=True):
        if len(bad := np.flatnonzero(~np.isfinite(values))):
            lacking[column] = f"in line {bad[0] + 2}" + (f" ({len(bad):,} lines in all)" if len(bad) > 1 else "")
    if lacking:
        raise UserError(
            f"{file}: column {_listed(lacking, 'has no finite number')}. Numbers must fit float32, up to 3.4e38. Fill "
            f"the gaps, delete these rows, or leave the columns out by {_dropping(lacking)}."
        )
    return x


def _first_text(values: "pd.Series") -> str:
    """Return where the first value that is no number is in a column; "" if there is none."""
    import pandas as pd

    words = pd.to_numeric(values, errors="coerce").isna() & values.notna()
    return f"in line {int(words.argmax()) + 2} ('{values[words.argmax()]}')" if words.any() else ""


def _listed(columns: Mapping[Any, str], wrong: str) -> str:
    """Return all columns as a part of a sentence. columns: where each is wrong, such as "in line 2"."""
    (first, place), *others = columns.items()
    return ", nor ".join([f"'{first}' {wrong} {place}".rstrip(), *(f"'{c}' {where}".rstrip() for c, where in others)])


def _dropping(columns: Iterable[Any]) -> str:
    """Return the override that leaves columns out, as a shell takes it."""
    escaped = (column.replace("\\", "\\\\").replace('"', '\\"') for column in columns)
    names = (name if PLAIN.fullmatch(name) else f'"{name}"' for name in escaped)
    return shlex.quote(f"dataset.drop=[{','.join(names)}]")


def _codes(file: Path, table: "pd.DataFrame", column: str) -> tuple[list[str], np.ndarray]:
    """Return the sorted values of a column of names, and for each row the index of its value.

    Numbers are sorted by size, unless two are the same number. Among numbers a word such as nan is a gap.
    """
    import pandas as pd

    texts = table[column]
    names, codes = np.unique(texts.to_numpy(), return_inverse=True)
    numbers = pd.to_numeric(pd.Series(names), errors="coerce").to_numpy()
    words = {name.casefold() for name in names[np.isnan(numbers)]}
    gaps = words if words <= GAPS and len(words) < len(names) else {""}
    if (lacking := texts.str.casefold().isin(gaps)).any():
        raise UserError(f"{file}: column '{column}' is empty in line {int(lacking.argmax()) + 2}.")
    if not words and len(np.unique(numbers)) == len(numbers):
        order = np.argsort(numbers, kind="stable")
        names, codes = names[order], np.argsort(order)[codes]
    return names.tolist(), codes
