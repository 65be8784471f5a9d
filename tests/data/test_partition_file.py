"""Partitions that a file gives, and clients that a column of the dataset names."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import pflsweep
from pflsweep.commands.main import main
from pflsweep.config.compose import compose
from pflsweep.data.federation import Federation
from pflsweep.sweep import cost
from pflsweep.trial.build import build_federation
from pflsweep.util.errors import UserError
from tests.report.records import require_same_rounds
from tests.test_readme import ROOT, blocks

CLIENTS = 4
SMALL = ["tracking=none", "model.hidden=[8]", "train.rounds=2", "train.epochs=1", "train.participation=0.5"]
SMALL += ["train.threads=1", "train.workers=1", "device=cpu"]
GOOD = {"train": [[0, 3], [1700], [9]], "test": [[1], [2, 5], [7]]}

pytestmark = pytest.mark.usefixtures("elsewhere")


def federation_of(*words: str) -> Federation:
    return build_federation(compose([*SMALL, *words]))[0]


def as_json(file: Path, parts: Any) -> Path:
    file.write_text(json.dumps(parts))
    return file


def as_npz(file: Path, parts: dict[str, list]) -> Path:
    arrays = {f"{split}_{i}": np.array(own, int) for split, rows in parts.items() for i, own in enumerate(rows)}
    np.savez(file, **arrays)
    return file


# From a file


@pytest.mark.parametrize("write", [as_json, as_npz])
def test_a_drawn_partition_from_a_file_gives_the_same_bits(tmp_path: Path, write) -> None:
    drawn = [*SMALL, "partition=iid", f"partition.clients={CLIENTS}", "data.validation=0.2"]
    rows = {split: [own.tolist() for own in parts] for split, parts in federation_of(*drawn).rows.items()}
    file = write(tmp_path / ("rows.npz" if write is as_npz else "rows.json"), rows)
    usual = pflsweep.run(drawn)
    given = pflsweep.run([*SMALL, "partition=from_file", f"partition.path={file}"])
    require_same_rounds(usual.rounds, given.rounds)
    assert given.record.meta["identity"] != usual.record.meta["identity"]
    assert given.record.meta["data_checksum"].startswith(usual.record.meta["data_checksum"])
    assert given.record.meta["data_checksum"] != usual.record.meta["data_checksum"]


def test_the_rows_and_not_the_file_are_the_identity(tmp_path: Path) -> None:
    words = [*SMALL, "partition=from_file"]
    files = [as_json(tmp_path / "a.json", GOOD), as_npz(tmp_path / "b.npz", GOOD)]
    files += [as_json(tmp_path / "c.json", {**GOOD, "validation": [[], [], []]})]
    found = {pflsweep.run([*words, f"partition.path={file}"]).record.meta["identity"] for file in files}
    assert len(found) == 1, "the same rows are the same trial, wherever they stand"
    other = as_json(tmp_path / "a.json", {**GOOD, "test": [[1], [2, 5], [8]]})
    assert pflsweep.run([*words, f"partition.path={other}"]).record.meta["identity"] not in found


def test_a_file_says_all_rows(tmp_path: Path) -> None:
    file = as_json(tmp_path / "a.json", {**GOOD, "validation": [[100], [], [101]]})
    words = ["partition=from_file", f"partition.path={file}"]
    rows = federation_of(*words).rows
    assert [own.tolist() for own in rows["train"]] == GOOD["train"]
    assert [own.tolist() for own in rows["test"]] == GOOD["test"]
    assert [own.tolist() for own in rows["validation"]] == [[100], [], [101]]
    with pytest.raises(UserError, match=r"data.validation is 0.2, which draws validation rows, and partition has some"):
        federation_of(*words, "data.validation=0.2")
    assert cost.partition_size(compose([*SMALL, *words]))[:3] == (4, 3, 3)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({**GOOD, "train": [[0, 1797], [3], [9]]}, "train of client 0 names row 1797, and digits has rows 0 to 1796"),
        ({**GOOD, "test": [[1], [-1], [7]]}, "test of client 1 names row -1"),
        ({**GOOD, "train": [[0, 3, 0], [4], [9]]}, "train of client 0 names 0 twice"),
        ({**GOOD, "train": [[0, 3], [5], [9]]}, "client 1 has row 5 in two of train, test"),
        ({**GOOD, "train": [[0], [3]]}, "their numbers are train 2, test 3"),
        ({**GOOD, "train": [[0.5], [3], [9]]}, "float64: it has to be a list of whole numbers"),
        ({**GOOD, "val": [[1], [3], [9]]}, "val"),
        ({"train": GOOD["train"]}, 'partition has to be {"train": [...], "test": [...]}'),
        ({"train": [1, 2, 3], "test": [4, 5, 6]}, "train of client 0 is of shape ()"),
        ([GOOD], "it is JSON of a list, and should be an object with lists of rows named train and test"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, parts: Any, said: str, capsys: pytest.CaptureFixture) -> None:
    file = as_json(tmp_path / "rows.json", parts)
    assert main([*SMALL, "partition=from_file", f"partition.path={file}"]) == 2
    told = capsys.readouterr().err
    assert f"partition=from_file: {file}: " in told
    assert said in told


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    def refused(said: str, *words: str) -> None:
        with pytest.raises(UserError, match=re.escape(said)) as told:
            federation_of("partition=from_file", *words)
        assert "\n" not in str(told.value)

    refused("partition=from_file reads data of your own: say where they are, partition.path=FILE")
    refused("partition.path is nowhere.json: there is no such file in ", "partition.path=nowhere.json")
    (tmp_path / "a.json").write_text("{")
    refused("a.json: it cannot be read as JSON (Expecting property name", "partition.path=a.json")
    (tmp_path / "a.npz").write_bytes(b"none")
    refused("a.npz cannot be read as a .npz file of numbers", "partition.path=a.npz")
    np.savez(tmp_path / "b.npz", rows=np.arange(3))
    refused("it has an array 'rows', and should have train_0, train_1", "partition.path=b.npz")
    np.savez(tmp_path / "d.npz", train_00=np.arange(3), train_0=np.arange(3))
    refused("it has an array 'train_00', and should have train_0, train_1", "partition.path=d.npz")
    np.savez(tmp_path / "c.npz", train_1=np.arange(3), test_0=np.arange(3))
    refused("it has 1 arrays of train, but no train_0: clients count from 0", "partition.path=c.npz")
    as_json(tmp_path / "d.json", GOOD)
    refused("data.limit is 300", "partition.path=d.json", "data.limit=300")


# From other platforms, by the lines of docs/data.md


def example(about: str) -> str:
    """Return the Python block of docs/data.md that has a word."""
    (found,) = [block for block in blocks((ROOT / "docs" / "data.md").read_text()) if about in block]
    return found


def test_fl_benchs_split_is_brought_along(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(1797).astype(np.int32)
    parts = [
        dict(zip(("test", "val", "train"), np.split(own, [10, 10]), strict=True)) for own in np.split(order, [900])
    ]
    separation = {"train": [0, 1], "val": [0, 1], "test": [0, 1], "total": 2}
    (tmp_path / "partition.pkl").write_bytes(pickle.dumps({"separation": separation, "data_indices": parts}))
    exec(example("partition.pkl"), {})
    rows = federation_of("partition=from_file", "partition.path=flbench.json", "data.validation=0.1").rows
    for client, part in enumerate(parts):
        assert rows["test"][client].tolist() == sorted(part["test"])
        assert sorted([*rows["train"][client], *rows["validation"][client]]) == sorted(part["train"])


def test_pfllibs_clients_are_brought_along(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = {"train": [9, 6, 12], "test": [3, 2, 4]}
    data: dict[str, list[dict[str, np.ndarray]]] = {
        part: [{"x": rng.normal(size=(n, 1, 8, 8)).astype(np.float32), "y": np.arange(n) % 3} for n in counts]
        for part, counts in sizes.items()
    }
    for part, clients in data.items():
        (tmp_path / part).mkdir()
        for number, one in enumerate(clients):
            np.savez_compressed(tmp_path / part / f"{number}.npz", data=one)
    (tmp_path / "config.json").write_text(json.dumps({"num_clients": 3, "num_classes": 3}))
    exec(example("num_clients"), {})
    own = ["dataset=npz", "dataset.path=pfllib.npz", "partition=from_file", "partition.path=pfllib.json"]
    federation = federation_of(*own)
    for part, clients in data.items():
        for number, one in enumerate(clients):
            x, y = federation.gather(torch.from_numpy(federation.rows[part][number]))
            assert np.array_equal(x.numpy(), one["x"]), "as PFLlib has normalised them"
            assert y.tolist() == one["y"].tolist()


# By a column


def table(file: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60), "kind": np.arange(60) % 3})
    frame["writer_id"] = [f"w{i % 4}" for i in range(60)]
    frame.to_csv(file, index=False)
    return file


def test_a_column_of_a_table_names_the_clients(tmp_path: Path) -> None:
    own = ["dataset=csv", f"dataset.path={table(tmp_path / 'x.csv')}", "dataset.label=kind"]
    federation = federation_of(*own, "partition=natural", "partition.column=writer_id")
    assert federation.clients == 4
    assert federation.dataset.shape == (2,), "the column of clients is not a feature"
    assert federation.dataset.owners == ("w0", "w1", "w2", "w3")
    for train, test in zip(federation.rows["train"], federation.rows["test"], strict=True):
        assert len({row % 4 for row in (*train, *test)}) == 1
    same = federation_of(*own, "partition=natural", "dataset.client=writer_id")
    assert same.checksum == federation.checksum


def test_an_array_names_the_clients(tmp_path: Path) -> None:
    y = np.arange(60) % 3
    np.savez(
        tmp_path / "x.npz", x_train=np.random.default_rng(0).normal(size=(60, 2)), y_train=y, site=np.arange(60) % 5
    )
    own = ["dataset=npz", "dataset.path=x.npz", "partition=natural"]
    assert federation_of(*own, "partition.column=site").clients == 5
    with pytest.raises(UserError, match=r"partition.column is 'sit': .*no such array. Did you mean 'site'\?"):
        federation_of(*own, "partition.column=sit")
    with pytest.raises(UserError, match=r"partition=natural needs a dataset with clients .*name the column"):
        federation_of(*own)
    words = [*own, "partition=domain", "partition.column=site", "partition.clients=10", "partition.least=2"]
    assert federation_of(*words, "partition.test_fraction=0.3").clients == 10


def test_a_wrong_column_is_named(tmp_path: Path) -> None:
    own = ["dataset=csv", f"dataset.path={table(tmp_path / 'x.csv')}", "dataset.label=kind", "partition=natural"]
    for words, said in (
        (["partition.column=writer"], "partition.column is 'writer': .* no such column. Did you mean 'writer_id'"),
        (["partition.column=kind"], "partition.column and dataset.label are both 'kind'"),
        (["partition.column=a", "dataset.client=b"], "dataset.client is 'b' and partition.column 'a'"),
    ):
        with pytest.raises(UserError, match=said):
            federation_of(*own, *words)
    with pytest.raises(UserError, match=r"partition.column is 'writer', but dataset=digits has no columns"):
        federation_of("partition=natural", "partition.column=writer")
