"""A trial's record: its identity, its folder of tables, its checkpoint. Needs torch for checkpoints alone.

Tables are written first and the checkpoint last, each under a temporary name and then renamed; rows past the
checkpoint's round are dropped on resume.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from pflsweep.errors import UserError
from pflsweep.keys import flat, under

# Keys that say where and how a trial runs, but not what it computes
RUNTIME = (
    "device",
    "train.chunk",
    "train.threads",
    "data.root",
    "data.download",
    "paths",
    "tracking",
    "checkpoint",
)


def identity(config: dict[str, Any], *, data_checksum: str, version: int, extends: bool) -> str:
    """16 hex digits of what the numbers of a trial depend on.

    eval_batch and eval_every stay in: the one changes batch norm's recalibration, the other the rows.
    Where more rounds just continue a run (`extends`), train.rounds is left out, so that they find it.
    """
    runtime = (*RUNTIME, "train.rounds") if extends else RUNTIME
    relevant = {key: value for key, value in flat(config).items() if not under(key, runtime)}
    text = json.dumps([relevant, data_checksum, version], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Record:
    """One folder <runs>/<identity>. In memory the tables may be ahead of the disk until `write`."""

    def __init__(self, folder: str | Path) -> None:
        """Opens an existing record. Raises UserError where it is not one, or is damaged."""
        self.folder = Path(folder)
        if not (self.folder / "meta.json").exists():
            raise UserError(f"{self.folder} is not a record of a trial: it has no meta.json.")
        self.meta: dict[str, Any] = self._read("meta.json", _read_json)
        self.config: dict[str, Any] = self._read("config.yaml", _read_yaml)
        self.status: dict[str, Any] = self._read("status.json", _read_json)
        self._rounds: list[dict[str, Any]] = self._table("rounds").to_dict("records")  # type: ignore[assignment]
        self._clients: list[pd.DataFrame] = [table] if len(table := self._table("clients")) else []
        self.matrices: dict[str, np.ndarray] = self._read("matrices.npz", _read_npz, {})

    @classmethod
    def create(cls, folder: Path, meta: dict[str, Any], config: dict[str, Any], partition: pd.DataFrame) -> "Record":
        """Makes the folder of a new record; meta.json comes last, so that half a record is none."""
        for name in ("rounds.parquet", "clients.parquet", "matrices.npz", "checkpoint.pt", "models.pt"):
            (folder / name).unlink(missing_ok=True)
        _write_yaml(folder / "config.yaml", config)
        _write_parquet(folder / "partition.parquet", partition)
        status = {
            "status": "running",
            "rounds": 0,
            "target": config["train"]["rounds"],
            "seconds": 0.0,
            "error": None,
        }
        _write_json(folder / "status.json", {**status, "updated": _now()})
        _write_json(folder / "meta.json", {**meta, "created": _now()})
        return cls(folder)

    @property
    def rounds(self) -> pd.DataFrame:
        """One row a round."""
        return pd.DataFrame(self._rounds)

    @property
    def clients(self) -> pd.DataFrame:
        """One row a client, view and evaluated round."""
        return pd.concat(self._clients, ignore_index=True) if self._clients else pd.DataFrame()

    @property
    def partition(self) -> pd.DataFrame:
        """One row a client and class: counts of training, validation and test samples."""
        return self._table("partition")

    @property
    def done(self) -> int:
        """The last round in the tables."""
        return int(self._rounds[-1]["round"]) if self._rounds else 0

    def append(self, row: dict[str, Any], clients: pd.DataFrame | None, matrices: dict[str, np.ndarray]) -> None:
        """One more round."""
        self._rounds.append(row)
        if clients is not None:
            self._clients.append(clients)
        self.matrices = matrices

    def truncate(self, last: int) -> None:
        """Forget rounds after `last`, in memory."""
        self._rounds = [row for row in self._rounds if row["round"] <= last]
        table = self.clients
        self._clients = [table[table["round"] <= last]] if len(table) else []
        self.status = {**self.status, **self._progress()}

    def _progress(self) -> dict[str, Any]:
        seconds = sum(row["seconds"] + row["eval_seconds"] for row in self._rounds)
        return {"rounds": self.done, "seconds": float(seconds)}

    def write(self, simulation: dict[str, Any] | None = None) -> None:
        """Tables, then the checkpoint. Raises UserError where the disk does not let it."""
        with writing(self.folder):
            self._clients = [table] if len(table := self.clients) else []
            _write_parquet(self.folder / "rounds.parquet", self.rounds)
            _write_parquet(self.folder / "clients.parquet", table)
            if self.matrices:
                _atomic(self.folder / "matrices.npz", lambda path: _save_npz(path, self.matrices))
            if simulation is not None:
                content = {"identity": self.meta["identity"], "simulation": simulation}
                _atomic(self.folder / "checkpoint.pt", lambda path: _save_torch(path, content))
            self.set_status(**self._progress())

    def set_status(self, **changes: Any) -> None:
        """Change some fields of status.json."""
        self.status = {**self.status, **changes, "updated": _now()}
        _write_json(self.folder / "status.json", self.status)

    def set_target(self, config: dict[str, Any]) -> None:
        """The config of the command that continues this record: more rounds, another device."""
        self.config = config
        _write_yaml(self.folder / "config.yaml", config)
        self.set_status(status="running", target=config["train"]["rounds"], error=None)

    def checkpoint(self) -> dict[str, Any] | None:
        """Simulation.state() of the last checkpoint, if there is one. Raises UserError on another trial's."""
        content = self._read("checkpoint.pt", _load_torch, None)
        if content is not None and content["identity"] != self.meta["identity"]:
            raise UserError(
                f"{self.folder / 'checkpoint.pt'} is a checkpoint of another config ({content['identity']}, "
                f"not {self.meta['identity']}). Put the right file there, or delete the folder to begin anew."
            )
        return None if content is None else content["simulation"]

    def drop_checkpoint(self) -> None:
        (self.folder / "checkpoint.pt").unlink(missing_ok=True)

    def save_models(self, models: dict[str, Any]) -> None:
        with writing(self.folder):
            _atomic(self.folder / "models.pt", lambda path: _save_torch(path, models))

    def models(self) -> dict[str, Any]:
        """{"global": state_dict or None, "personal": {client: state_dict}}. Raises UserError without."""
        found = self._read("models.pt", _load_torch, None)
        if found is None:
            raise UserError(f"{self.folder} holds no models: they are saved at the end, with checkpoint.models=true.")
        return found

    def _table(self, name: str) -> pd.DataFrame:
        return self._read(f"{name}.parquet", pd.read_parquet, pd.DataFrame())

    def _read(self, name: str, reader: Callable[[Path], Any], missing: Any = ...) -> Any:
        path = self.folder / name
        if missing is not ... and not path.exists():
            return missing
        try:
            return reader(path)
        except Exception as error:  # each reader has its own ways to say that a file is cut short or something else
            raise UserError(
                f"{path} cannot be read: it is truncated, or no file of pflsweep's ({type(error).__name__}). "
                f"Put the right file back, or delete the folder {self.folder} to train this trial anew."
            ) from error


def records(runs: str | Path) -> list[Record]:
    """All records in a folder, oldest first. Raises UserError on a damaged one."""
    found = [Record(meta.parent) for meta in Path(runs).glob("*/meta.json")]
    return sorted(found, key=lambda record: record.meta["created"])


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Holds a folder for this process; the operating system lets go of it when the process dies.

    Raises UserError where another process trains there or the folder cannot be written to.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / "lock", "w")  # noqa: SIM115 (closed below: the lock lives as long as the file is open)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"Another process is training this trial now ({folder}). Wait for it or stop it first."
            ) from error
        yield


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what the disk refuses into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}). Choose another folder: paths.runs."
        ) from error


def _atomic(path: Path, save: Callable[[Path], Any]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    save(temporary)
    os.replace(temporary, path)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    _atomic(path, lambda p: p.write_text(json.dumps(content, indent=2) + "\n"))


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    _atomic(path, lambda p: p.write_text(yaml.safe_dump(content, sort_keys=False)))


def _write_parquet(path: Path, table: pd.DataFrame) -> None:
    _atomic(path, lambda p: table.to_parquet(p, index=False))


def _save_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:  # savez would add .npz to a name
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _read_yaml(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict):
        raise ValueError("not a mapping")
    return content


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with open(path, "rb") as file, np.load(file) as arrays:
        return dict(arrays)


def _save_torch(path: Path, content: Any) -> None:
    import torch

    torch.save(content, path)


def _load_torch(path: Path) -> Any:
    import torch

    return torch.load(path, weights_only=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
