"""Compare all that two sweeps of the same trials have left: records, ledger, printed tables, report, MLflow.

Numbers have to be equal to the last bit. Only what depends on time, place or program version is left out.
"""

import json
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import sqlalchemy
import torch
import yaml

from pflsweep.config.keys import flat

TIMES = ("seconds", "eval_seconds", "images_per_second", "images/s", "minutes")  # columns and metrics that are times
META = ("created", "sessions", "environment", "commit", "version")
STATUS = ("seconds", "updated", "config")
LEDGER = ("written", "command", "tracking")
TAGS = ("record", "commit", "mlflow.note.content", "mlflow.parentRunId")
PLACES = ("tracking.", "paths.")  # config keys that differ between two sweeps of the same trials

Row = Mapping[str, Any]


class Sweep(NamedTuple):
    """A sweep that is over."""

    folders: list[Path]  # working directories of its commands, each with its own runs/
    tracking: str  # the URI of MLflow's store
    printed: str  # what the command wrote to stdout


class Comparison:
    """Counts of what was compared, and a line for each difference."""

    def __init__(self) -> None:
        self.count = 0
        self.differences: list[str] = []

    def same(self, what: str, expected: Any, found: Any) -> None:
        self.count += 1
        if expected != found:
            self.differences.append(f"{what}: undisturbed {_short(expected)}, disturbed {_short(found)}")

    def same_items(self, what: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> None:
        """Compare two dictionaries key by key, so that a difference names its key."""
        for key in dict.fromkeys([*expected, *found]):
            self.same(f"{what}: {key}", expected.get(key, "absent"), found.get(key, "absent"))

    def same_array(self, what: str, expected: np.ndarray, found: np.ndarray) -> None:
        """Compare two arrays bit by bit."""
        self.count += 1
        if (expected.dtype, expected.shape) != (found.dtype, found.shape):
            shapes = [f"{array.dtype} {array.shape}" for array in (expected, found)]
            self.differences.append(f"{what}: undisturbed {shapes[0]}, disturbed {shapes[1]}")
        elif expected.dtype == object:
            self.same(what, list(map(repr, expected)), list(map(repr, found)))
        elif expected.tobytes() != found.tobytes():
            bits = [np.ascontiguousarray(array).view(np.uint8).reshape(array.size, -1) for array in (expected, found)]
            differ = (bits[0] != bits[1]).any(axis=1)
            first = int(differ.argmax())
            self.differences.append(
                f"{what}: {differ.sum()} of {differ.size} values differ, the first at {first}: "
                f"undisturbed {expected.ravel()[first]!r}, disturbed {found.ravel()[first]!r}"
            )

    def same_arrays(self, what: str, expected: Mapping[Any, np.ndarray], found: Mapping[Any, np.ndarray]) -> None:
        self.same(f"{what}: names", sorted(map(str, expected)), sorted(map(str, found)))
        for name in expected:
            if name in found:
                self.same_array(f"{what}: {name}", expected[name], found[name])


def compare(expected: Sweep, found: Sweep, report: Callable[[Path], str]) -> Comparison:
    """Compare a disturbed sweep with an undisturbed one. report: runs `pflsweep report runs` in a folder."""
    comparison = Comparison()
    _compare_records(comparison, expected.folders, found.folders)
    for folder in found.folders:
        _compare_ledgers(comparison, expected.folders[0], folder)
    printed = [without_times(sweep.printed) for sweep in (expected, found)]
    # The final table needs all records in one folder; only the winners, which are printed before it, are compared
    if len(found.folders) > 1:
        printed = [text.partition("best: the highest")[0] for text in printed]
    _compare_lines(comparison, "printed", *printed)
    with tempfile.TemporaryDirectory() as place:
        merged = Path(place)
        for folder in found.folders:
            for record in _finished(folder).values():
                shutil.copytree(record, merged / "runs" / record.name, dirs_exist_ok=True)
            shutil.copytree(folder / "runs" / "sweeps", merged / "runs" / "sweeps", dirs_exist_ok=True)
        pages = [without_times(report(folder)) for folder in (expected.folders[0], merged)]
    # Rows are in the order in which trials began, which differs with two workers or after a kill
    _compare_lines(comparison, "report", *("\n".join(sorted(page.splitlines())) for page in pages))
    _compare_tracking(comparison, _tracked(expected.tracking), _tracked(found.tracking))
    return comparison


def without_times(text: str) -> str:
    """Return printed tables, or a report in markdown, without columns of times, widths of columns and machines."""
    kept: list[str] = []
    dropped: list[int] = []  # indices of columns to leave out of the current table
    inside = False
    for line in text.partition("Made by:")[0].splitlines():
        if set(line) == {"-"}:
            inside = not inside
            continue
        # Without the last columns of the printed table: seconds, images/s, floats sent
        if inside:
            words = line.replace("floats sent", "floats_sent").split()
            line = " ".join([*words[:-3], words[-1]])
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not kept or not kept[-1].startswith("|"):
                dropped = [k for k, cell in enumerate(cells) if cell in TIMES]
            line = "| " + " | ".join(cell for k, cell in enumerate(cells) if k not in dropped)
        kept.append(" ".join(line.split()))
    return "\n".join(kept)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _compare_lines(comparison: Comparison, what: str, expected: str, found: str) -> None:
    one, other = expected.splitlines(), found.splitlines()
    comparison.same(f"{what}: number of lines", len(one), len(other))
    for number, (line, there) in enumerate(zip(one, other, strict=False), 1):
        comparison.same(f"{what}: line {number}", line, there)


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def _records(folder: Path) -> Iterator[tuple[str, Path]]:
    for meta in sorted((folder / "runs").glob("*/meta.json")):
        yield _read_json(meta)["identity"], meta.parent


def _finished(folder: Path) -> dict[str, Path]:
    return {name: path for name, path in _records(folder) if _read_json(path / "status.json")["status"] == "finished"}


def _compare_records(comparison: Comparison, expected: list[Path], found: list[Path]) -> None:
    """Check that every trial has a finished record in one of the folders, with the rounds of the undisturbed one.

    A record may be unfinished only where another folder has the finished one: that trial was taken over by a command
    that cannot see the first one's files.
    """
    whole, parts = _finished(expected[0]), [_finished(folder) for folder in found]
    comparison.same("identities of finished records", sorted(whole), sorted({name for part in parts for name in part}))
    for folder, finished in zip(found, parts, strict=True):
        for identity, record in _records(folder):
            if identity not in whole:
                comparison.same(f"{record}", "absent", _read_json(record / "status.json"))
            elif identity in finished:
                _compare_record(comparison, whole[identity], record)
            else:
                what = f"{record}, which is not finished, although no other folder has it"
                comparison.same(what, True, any(identity in part for part in parts))


def _compare_record(comparison: Comparison, expected: Path, found: Path) -> None:
    metas = [_meta(record) for record in (expected, found)]
    what = f"record {metas[0]['name']} {found.name}"
    left = [sorted(file.name for file in record.iterdir() if file.name != "lock") for record in (expected, found)]
    comparison.same(f"{what}: files", *left)
    comparison.same_items(f"{what}: meta.json", *metas)
    states = [_read_json(record / "status.json") for record in (expected, found)]
    comparison.same_items(f"{what}: status.json", *(_less(state, STATUS) for state in states))
    configs = [flat(yaml.safe_load((record / "config.yaml").read_text())) for record in (expected, found)]
    comparison.same_items(f"{what}: config.yaml", *(_less(config, (), PLACES) for config in configs))
    for file in sorted(expected.iterdir()):
        if not (other := found / file.name).exists():
            # Reported already, as another list of files
            continue
        where = f"{what}: {file.name}"
        if file.suffix == ".parquet":
            comparison.same_arrays(where, _columns(file), _columns(other))
        elif file.suffix == ".npz":
            with np.load(file) as one, np.load(other) as two:
                comparison.same_arrays(where, dict(one), dict(two))
        elif file.suffix == ".pt":
            comparison.same_arrays(where, dict(_leaves(file)), dict(_leaves(other)))


def _columns(file: Path) -> dict[Any, np.ndarray]:
    table = pd.read_parquet(file)
    return {name: table[name].to_numpy() for name in table if name not in TIMES}


def _leaves(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each tensor and number of a checkpoint or of saved models, with its path."""

    def walk(where: str, content: Any) -> Iterator[tuple[str, np.ndarray]]:
        if isinstance(content, Mapping):
            for key, value in content.items():
                yield from walk(f"{where}/{key}", value)
        elif isinstance(content, list | tuple):
            for k, value in enumerate(content):
                yield from walk(f"{where}/{k}", value)
        elif isinstance(content, torch.Tensor):
            yield where, content.numpy()
        else:
            yield where, np.asarray([content], dtype=object)

    yield from walk("", torch.load(file, map_location="cpu", weights_only=True))


def _meta(record: Path) -> dict[str, Any]:
    """Return a record's metadata. Whether a key of PLACES is neutral differs as its value does."""
    meta = _less(_read_json(record / "meta.json"), META)
    return {**meta, "neutral": [key for key in meta["neutral"] if not key.startswith(PLACES)]}


def _less(content: Mapping[str, Any], names: tuple[str, ...], beginnings: tuple[str, ...] = ()) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in names and not key.startswith(beginnings or "\0")}


def _compare_ledgers(comparison: Comparison, expected: Path, found: Path) -> None:
    ledgers = [sorted((folder / "runs" / "sweeps").glob("*.json")) for folder in (expected, found)]
    comparison.same("ledger files", *([file.name for file in files] for files in ledgers))
    if all(ledgers):
        one, other = (_less(_read_json(files[0]), LEDGER) for files in ledgers)
        for number, (group, there) in enumerate(zip(one.pop("groups"), other.pop("groups"), strict=True)):
            comparison.same_items(f"ledger: {group['method']} (group {number})", group, there)
        comparison.same_items("ledger", one, other)


# MLflow, read from its tables


class Run(NamedTuple):
    """A run in MLflow's store."""

    status: str
    stage: str  # active | deleted
    tags: dict[str, str]
    params: dict[str, str]
    points: list[Row]  # of metrics


def _tracked(uri: str) -> dict[str, list[Run]]:
    """Return all runs of a store: those of trials by identity, the sweep's as `sweep`, others as `unknown`."""
    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
    tables: dict[str, dict[str, list[Row]]] = {}
    with engine.connect() as connection:
        for table in ("runs", "tags", "params", "metrics"):
            tables[table] = defaultdict(list)
            for row in connection.execute(sqlalchemy.text(f"select * from {table}")).mappings():
                tables[table][row["run_uuid"]].append(row)
    engine.dispose()
    found = defaultdict(list)
    for uuid, (row,) in tables["runs"].items():
        tags = {tag["key"]: tag["value"] for tag in tables["tags"][uuid]}
        params = {param["key"]: param["value"] for param in tables["params"][uuid]}
        name = tags.get("identity") or ("sweep" if "pflsweep.sweep" in tags else "unknown")
        points = tables["metrics"][uuid]
        found[name].append(Run(row["status"], row["lifecycle_stage"], {**tags, "uuid": uuid}, params, points))
    return found


def _compare_tracking(comparison: Comparison, expected: dict[str, list[Run]], found: dict[str, list[Run]]) -> None:
    for name in sorted({*expected, *found}):
        what = (
            f"MLflow run {name}" if name not in expected else f"MLflow run {expected[name][0].tags['mlflow.runName']}"
        )
        comparison.same(f"{what}: number of runs", len(expected.get(name, [])), len(found.get(name, [])))
        for run in found.get(name, []):
            if name not in expected:
                comparison.same(what, "absent", (run.status, run.stage, run.tags))
                continue
            (whole,) = expected[name]
            comparison.same(f"{what}: status", (whole.status, whole.stage), (run.status, run.stage))
            comparison.same_items(f"{what}: param", *(_less(one.params, (), PLACES) for one in (whole, run)))
            tags = [_less(one.tags, (*TAGS, "uuid"), PLACES) for one in (whole, run)]
            comparison.same_items(f"{what}: tag", *tags)
            if name != "sweep":
                parents = [parent.tags["uuid"] for parent in found["sweep"]]
                comparison.same(f"{what}: its parent run", parents, [run.tags.get("mlflow.parentRunId")])
            _compare_points(comparison, what, whole.points, run.points)


def _compare_points(comparison: Comparison, what: str, expected: list[Row], found: list[Row]) -> None:
    """Compare the points of all metrics: their number at each step, and their values except times."""
    counts = [Counter((point["key"], point["step"]) for point in points) for points in (expected, found)]
    other = {place for place in {*counts[0], *counts[1]} if counts[0][place] != counts[1][place]}
    metrics = defaultdict(list)  # metrics whose points differ in the same way share a line
    for key in sorted({key for key, _ in other}):
        steps = sorted(step for name, step in other if name == key)
        metrics[tuple((step, counts[0][key, step], counts[1][key, step]) for step in steps)].append(key)
    comparison.count += len({*counts[0], *counts[1]})
    for differing, keys in metrics.items():
        told = ", ".join(f"{there} instead of {one} at step {step}" for step, one, there in differing[:5])
        comparison.differences.append(f"{what}: points of {', '.join(keys[:3])} ({len(keys)} metrics): {told}")
    values = [
        {(p["key"], p["step"], _value(p)) for p in points if (p["key"], p["step"]) not in other}
        for points in (expected, found)
    ]
    one, there = (
        sorted(v for v in part if not v[0].endswith(TIMES)) for part in (values[0] - values[1], values[1] - values[0])
    )
    comparison.same(f"{what}: metric, step and value", one, there)


def _value(point: Row) -> str:
    return "nan" if point["is_nan"] else repr(point["value"])
