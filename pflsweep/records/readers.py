"""Read the config and the tables of a record, or as much of a file as shows that it is complete."""

import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from pflsweep.records.content import PARTS
from pflsweep.util import files
from pflsweep.util.archive import LARGEST, METHODS, Folder

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

# Nested lists and mappings of a config. Tens of thousands overflow the stack of YAML's C parser, which ends the process
DEEPEST = 50


def read_config(path: Folder) -> dict[str, Any]:
    """Read a record's config, which may come from somebody else. Raises ValueError unless it is a mapping without
    aliases, in at most DEEPEST levels.
    """
    content, depth = path.read_bytes(), 0
    for event in yaml.parse(content, files.LOADER):
        # A few lists of aliases unfold to billions of values, or contain themselves. pflsweep writes none
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} levels")
    return files.parse_yaml(content)


def read_parquet(path: Folder, rounds: Sequence[int] | None = None) -> pd.DataFrame:
    """Read a Parquet file. rounds: read the rows of these rounds alone. Raises ValueError if a column is missing."""
    # The reader of pandas, made for data sets of many files, takes several times as long on small files; so do threads
    import pyarrow as pa
    from pyarrow import compute, parquet

    with parquet.ParquetFile(files.source(path)) as file:
        _require_columns(path, file)
        table = file.read(use_threads=False)
    if rounds is not None and len(table):
        table = table.filter(compute.is_in(table["round"], pa.array(rounds, table["round"].type)))
    return table.to_pandas(use_threads=False)


def require_parquet(path: Folder) -> None:
    """Raise unless the file is a complete Parquet file, which its footer at the end shows."""
    from pyarrow import parquet

    with parquet.ParquetFile(files.source(path)) as file:
        _require_columns(path, file)


def read_npz(path: Folder) -> dict[str, np.ndarray]:
    """Read the arrays of an npz file by name. Raises as `require_npz`, and ValueError for arrays of objects."""
    require_npz(path)
    with np.load(files.source(path), allow_pickle=False) as arrays:
        return dict(arrays)


def require_npz(path: Folder) -> None:
    """Raise unless the file is a complete npz file, which its directory at the end shows, and no decompression bomb."""
    with zipfile.ZipFile(files.source(path)) as file:
        if not all(info.compress_type in METHODS for info in file.infolist()):
            raise ValueError("compressed in another way than deflate")
        size = sum(info.file_size for info in file.infolist())
        # pflsweep compresses nothing, so its own arrays take as many bytes as lie before the directory, however many
        if size > max(LARGEST, file.start_dir):
            raise ValueError(f"{size:,} bytes decompressed, and at most {LARGEST:,} are read")


def _require_columns(path: Folder, file: "ParquetFile") -> None:
    """Raise ValueError if a table of a record lacks a column. A table without rows may lack all."""
    lost = set(PARTS[path.name].columns) - set(file.schema_arrow.names) if path.name in PARTS else set()
    if lost and file.metadata.num_rows:
        raise ValueError(f"no column {min(lost)}")
