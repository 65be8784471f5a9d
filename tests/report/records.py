"""Records with chosen numbers, written by the product's own code, without training."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflsweep.engine.evaluate import Scores
from pflsweep.records.content import FORMAT
from pflsweep.records.writer import RecordWriter
from pflsweep.trial.tables import score_columns

SIZE = 10  # test samples of a client


def meta(**changes: Any) -> dict[str, Any]:
    """Return meta.json of a record without the time of its creation, with all required keys."""
    return {
        "format": FORMAT,
        "identity": "0" * 16,
        "config_digest": "0" * 16,
        "name": "fedavg-digits-dirichlet-0",
        "method": "fedavg",
        "dataset": "digits",
        "partition": "dirichlet",
        "model": "mlp",
        "ala": "none",
        "privacy": "none",
        "attack": "none",
        "study": "none",
        "seed": 0,
        "method_version": 1,
        "plugin_versions": {},
        "numerics": {"engine": 1, "dense": 1},
        "neutral": [],
        "code": [],
        "digests": {},
        "data_checksum": "abc",
        "commit": "0123456789abcdef",
        "version": "0.1.0",
        "environment": {"python": "3.11", "torch": "2.13", "platform": "Linux", "threads": 2, "device": "cpu"},
        **changes,
    }


def ledger(groups: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """Return the content of a sweep's ledger, with all required keys."""
    return {
        "format": FORMAT,
        "sweep": "a test",
        "scale": "paper",
        "command": "pflsweep -m ...",
        "written": 1e9,
        "seeds": [0, 1],
        "tune": {"split": "validation", "validation": 0.2, "view": "personal", "seeds": 1, "partial": False},
        "tracking": {},
        "groups": groups,
        **changes,
    }


def group(setting: str, method: str, **changes: Any) -> dict[str, Any]:
    """Return a group of a ledger, without a search or trials, with all required keys."""
    return {
        "setting": setting,
        "method": method,
        "config": {"train.rounds": 3},
        "space": {},
        "points": 0,
        "points_settled": 0,
        "tried": [],
        "winner": None,
        "winner_value": None,
        "trials": {},
        "failed": {},
        "failed_points": [],
        "without_result": [],
        "superseded": [],
        **changes,
    }


def config(method: str, seed: int, rounds: int, **changes: Any) -> dict[str, Any]:
    """Return a resolved config. changes: dotted keys with __ for the dot."""
    values: dict[str, Any] = {
        "algorithm": {"_option_": method, "mu": 0.1},
        "ala": {},
        "model": {"_option_": "mlp", "hidden": [200]},
        "dataset": {"_option_": "digits"},
        "partition": {"_option_": "dirichlet", "alpha": 0.3, "clients": 4},
        "train": {"rounds": rounds, "lr": 0.05, "batch": 32, "epochs": 2, "chunk": "auto"},
        "tracking": {"backend": "mlflow", "uri": None, "experiment": "pflsweep", "every": 0.0},
        "seed": seed,
        "device": "auto",
        "paths": {"runs": "runs"},
    }
    for key, value in changes.items():
        *heads, last = key.split("__")
        node = values
        for head in heads:
            node = node.setdefault(head, {})
        node[last] = value
    return values


def create(runs: Path, method: str = "fedavg", seed: int = 0, rounds: int = 3, **changes: Any) -> RecordWriter:
    """Create a record without rounds, with status running."""
    values = config(method, seed, rounds, **changes)
    same = {**values, "train": {**values["train"], "rounds": None}}
    identity = f"{hash_of(repr([method, same])):016x}"
    names = {"identity": identity, "name": f"{method}-digits-dirichlet-{seed}", "method": method, "seed": seed}
    (runs / identity).mkdir(parents=True)
    record = RecordWriter.new(runs / identity, meta(**names), values, partition(values["partition"]["clients"]))
    record.begin()
    return record


def train(
    record: RecordWriter, correct: list[list[int]], *, views: tuple[str, ...] = ("personal", "global")
) -> RecordWriter:
    """Add rounds. correct: a line per round, a number per client, of SIZE samples.

    views: all others than personal, such as personal_all, have half the accuracy.
    """
    for numbers in correct:
        done = record.done + 1
        row: dict[str, Any] = {
            "round": done, "lr": 0.05, "cohort": 2, "images": 200, "seconds": 0.5, "eval_seconds": 0.1,
            "floats_down": 1000, "floats_up": 1000, "others_down": 1, "others_up": 1, "show_norm": 1.0 / done,
        }  # fmt: skip
        accuracy = np.array(numbers) / SIZE
        tables = []
        for name in views:
            shown = accuracy if name == "personal" else accuracy / 2
            scores = Scores(np.full(len(numbers), SIZE), shown * SIZE, 1 - shown, shown / 2)
            row |= score_columns({name: scores})
            view, _, target = name.partition("_")
            tables.append(pd.DataFrame({
                "round": done, "view": view, "target": target or "own", "client": range(len(numbers)), "n": SIZE,
                "correct": np.round(shown * SIZE), "loss": 1 - shown, "f1": shown / 2,
            }))  # fmt: skip
        record.append(row, pd.concat(tables), {"A": np.eye(len(numbers))})
    record.write()
    record.set_status(seconds=0.6 * record.done)
    return record


def finished(
    runs: Path,
    method: str,
    last: list[int],
    seed: int = 0,
    views: tuple[str, ...] = ("personal", "global"),
    peak: int = 1,
    **changes: Any,
) -> RecordWriter:
    """Write a finished run of three rounds: half of `last`, `last` + `peak` (at most 10), `last`."""
    middle = [min(number + peak, SIZE) for number in last]
    record = train(create(runs, method, seed, **changes), [[n // 2 for n in last], middle, last], views=views)
    record.set_status(status="finished")
    return record


def partition(clients: int, classes: int = 3) -> pd.DataFrame:
    index = pd.MultiIndex.from_product([range(clients), range(classes)], names=["client", "class"])
    table = pd.DataFrame(index=index).reset_index()
    own = (table["client"] + table["class"]) % 2
    return table.assign(train=20 * own, validation=0, test=5 * own)


def require_same_rounds(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Assert that two tables of rounds are equal to the last bit, but for their times."""
    times = ["seconds", "eval_seconds"]
    pd.testing.assert_frame_equal(one.drop(columns=times), other.drop(columns=times), check_exact=True)


def hash_of(text: str) -> int:
    """Return a hash with as many bits as an identity. Python's own hash differs from process to process."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
