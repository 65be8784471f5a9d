"""A trial's record: its identity, its folder of tables, its checkpoint. Needs torch for checkpoints alone.

Tables are written first and the checkpoint last, each under a temporary name and then renamed; rows past the
checkpoint's round are dropped on resume.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from pflsweep import disk, history
from pflsweep.disk import writing
from pflsweep.errors import UserError
from pflsweep.keys import PLUGS, flat, under

# Keys that say where and how a trial runs, but not what it computes
RUNTIME = (
    "device",
    "train.chunk",
    "train.threads",
    "train.workers",
    "data.root",
    "data.download",
    "dataset.path",  # what lies there is known by its checksum
    "paths",
    "tracking",
    "checkpoint",
)
YOUNG: dict[str, Any] = {
    **{group: {} for group in (*PLUGS, "study") if group != "ala"},
    "algorithm.idle": 0.0,
    "ala.idle": 0.0,
    "dataset.augment": "none",
    "data.limit": None,
    "data.targets": "own",
    "data.shuffle": 0,
    "data.new": 0,
    "data.new_epochs": 20,
    "train.sampling": "uniform",
    "train.sampling_alpha": 1.0,
    "train.optimiser_state": "fresh",
    "train.precision": "fp32",
}
# keys that act on something only under this condition on the flat config
ACTING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "data.shuffle": lambda config: config.get("data.targets") == "permuted",
    "data.new_epochs": lambda config: config.get("data.new"),
    "train.sampling_alpha": lambda config: config.get("train.sampling") == "dirichlet",
    "train.optimiser_state": lambda config: config.get("train.momentum"),
}
# what half a record may have left behind
STALE = (
    *("rounds.parquet", "clients.parquet", "newcomers.parquet", "study.parquet", "matrices.npz"),
    *("checkpoint.pt", "models.pt", "labels.png"),
)
VIEWS = ("personal_", "global_", "trained_")  # how the columns of an evaluation begin


def identity(
    config: dict[str, Any],
    *,
    data_checksum: str,
    version: int,
    extends: bool,
    plugins: dict[str, int] | None = None,
    code: Sequence[str] = (),
) -> str:
    """16 hex digits of what the numbers of a trial depend on. plugins: the version of each by its group.
    code: hashes of source that is not pflsweep's.

    eval_batch and eval_every stay in: the one changes batch norm's recalibration, the other the rows.
    Where more rounds just continue a run (`extends`), train.rounds is left out, so that they find it. So are the
    groups and keys younger than the first records where nothing is chosen of them.
    """
    runtime = (*RUNTIME, "train.rounds") if extends else RUNTIME
    relevant = {key: value for key, value in without_young(acting(flat(config))).items() if not under(key, runtime)}
    text = json.dumps([relevant, data_checksum, version, *([plugins] if plugins else []), *code], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def without_young(config: dict[str, Any]) -> dict[str, Any]:
    """A flat config without the keys that are younger than the first records, where nothing is chosen of them."""
    return {key: value for key, value in config.items() if key not in YOUNG or value != YOUNG[key]}


def acting(config: dict[str, Any]) -> dict[str, Any]:
    """A flat config without the keys that act on nothing."""
    return {key: value for key, value in config.items() if key not in ACTING or ACTING[key](config)}


def method_name(chosen: dict[str, Any]) -> str:
    """The method with what is plugged into it, by the options chosen of each group: fedavg, fedavg+ala+gaussian."""
    plugged = [(group, chosen.get(group) or "none") for group in PLUGS]
    names = [group if option == "on" else option for group, option in plugged if option not in ("none", "off")]
    return "+".join([str(chosen.get("algorithm") or chosen["method"]), *names])


class Record:
    """One folder <runs>/<identity>. In memory the tables may be ahead of the disk until `write`."""

    def __init__(self, folder: str | Path) -> None:
        """Opens an existing record. Raises UserError where it is not one, or is damaged."""
        self.folder = Path(folder)
        if not (self.folder / "meta.json").exists():
            raise UserError(f"{self.folder} is not a record of a trial: it has no meta.json.")
        self.meta: dict[str, Any] = self._read("meta.json", disk.read_json)
        self.config: dict[str, Any] = self._read("config.yaml", disk.read_yaml)
        self.status: dict[str, Any] = self._read("status.json", disk.read_json)
        if "config" in self.status and _digest(self.config) not in self.status["config"]:  # half a YAML may be YAML
            raise self._damaged("config.yaml", "not as it was written")
        self._rounds: list[dict[str, Any]] = self._table("rounds").to_dict("records")  # type: ignore[assignment]
        self._clients: list[pd.DataFrame] = [table] if len(table := self._table("clients")) else []
        self.matrices: dict[str, np.ndarray] = self._read("matrices.npz", disk.read_npz, {})
        self._partition: pd.DataFrame | None = None

    @classmethod
    def new(cls, folder: Path, meta: dict[str, Any], config: dict[str, Any], partition: pd.DataFrame) -> "Record":
        """A record of which nothing is on the disk before `begin`."""
        record = object.__new__(cls)
        record.folder, record.meta, record.config = folder, {**meta, "created": _now()}, config
        record.status = {"status": "running", "rounds": 0, "target": None, "seconds": 0.0, "error": None}
        record._rounds, record._clients, record.matrices = [], [], {}
        record._partition = partition
        return record

    def go_on(self, config: dict[str, Any], meta: dict[str, Any]) -> None:
        """The command that continues this record, in memory: more rounds, another device or commit."""
        now = {key: meta[key] for key in ("commit", "version", "environment")}
        session = {"from": self.done + 1, **now, "begun": _now()}
        self.config = config
        self.meta = {**self.meta, "sessions": [*self.meta.get("sessions", []), session]}

    def begin(self) -> None:
        """Write what is known before training. meta.json comes last, so that half a record is none."""
        with writing(self.folder):
            if not self.begun:
                for name in STALE:
                    (self.folder / name).unlink(missing_ok=True)
                disk.write_parquet(self.folder / "partition.parquet", self.partition)
                self._partition = None
            # the old one stays allowed: the file is still the old one if the process dies right here
            digests = [_digest(self.config), *self.status.get("config", [])[:1]]
            self.set_status(status="running", target=self.config["train"]["rounds"], error=None, config=digests)
            disk.write_text(self.folder / "config.yaml", yaml.safe_dump(self.config, sort_keys=False))
            disk.write_json(self.folder / "meta.json", self.meta)

    @property
    def begun(self) -> bool:
        """Whether anything of it is on the disk."""
        return self._partition is None

    @property
    def rounds(self) -> pd.DataFrame:
        """One row a round."""
        return pd.DataFrame(self._rounds)

    @property
    def clients(self) -> pd.DataFrame:
        """One row a client, view, target and evaluated round."""
        return pd.concat(self._clients, ignore_index=True) if self._clients else pd.DataFrame()

    @property
    def partition(self) -> pd.DataFrame:
        """One row a client and class: counts of training, validation and test samples."""
        return self._read("partition.parquet", pd.read_parquet) if self._partition is None else self._partition

    @property
    def newcomers(self) -> pd.DataFrame:
        """One row a new client and epoch of its fine-tuning; empty where all clients train."""
        return self._read("newcomers.parquet", pd.read_parquet, pd.DataFrame())

    @property
    def study(self) -> pd.DataFrame:
        """What the trial's study has seen, as its class says; empty without one."""
        return self._read("study.parquet", pd.read_parquet, pd.DataFrame())

    @property
    def done(self) -> int:
        """The last round in the tables."""
        return int(self._rounds[-1]["round"]) if self._rounds else 0

    @property
    def last_row(self) -> dict[str, Any]:
        """The last round's row."""
        return self._rounds[-1]

    @property
    def evaluated(self) -> list[int]:
        """The rounds that have scores."""
        return [int(row["round"]) for row in self._rounds if not np.isnan(row.get("personal_accuracy", np.nan))]

    def append(self, row: dict[str, Any], clients: pd.DataFrame | None, matrices: dict[str, np.ndarray]) -> None:
        """One more round. matrices: the method's own; of small ones the rounds before are kept too."""
        self._rounds.append(row)
        if clients is not None:
            self._clients.append(clients)
        self.matrices = history.grown(self.matrices, matrices, int(row["round"]))

    def amend(self, scores: dict[str, Any], clients: pd.DataFrame) -> None:
        """The last round, evaluated after all."""
        self._rounds[-1] = {**self._rounds[-1], **scores}
        self._clients.append(clients)

    def truncate(self, last: int) -> None:
        """Forget rounds after `last`, in memory."""
        self._rounds = [row for row in self._rounds if row["round"] <= last]
        table = self.clients
        self._clients = [table[table["round"] <= last]] if len(table) else []
        self.matrices = history.upto(self.matrices, last)
        self.status = {**self.status, **self._progress()}

    def drop_scores(self, due: Callable[[int], bool]) -> None:
        """Forget evaluations that are not due, in memory: the last round's of a run that now goes on."""
        self._rounds = [row if due(row["round"]) else _without_scores(row) for row in self._rounds]
        table = self.clients
        self._clients = [table[table["round"].map(due)]] if len(table) else []

    def _progress(self) -> dict[str, Any]:
        seconds = sum(row["seconds"] + row["eval_seconds"] for row in self._rounds)
        return {"rounds": self.done, "seconds": float(seconds)}

    def write(self, simulation: dict[str, Any] | None = None) -> None:
        """Tables, then the checkpoint. Raises UserError where the disk does not let it."""
        with writing(self.folder):
            self._clients = [table] if len(table := self.clients) else []
            disk.write_parquet(self.folder / "rounds.parquet", self.rounds)
            disk.write_parquet(self.folder / "clients.parquet", table)
            if self.matrices:
                disk.write_npz(self.folder / "matrices.npz", self.matrices)
            if simulation is not None:
                content = {"identity": self.meta["identity"], "simulation": simulation}
                disk.write_torch(self.folder / "checkpoint.pt", content)
            self.set_status(**self._progress())

    def set_status(self, **changes: Any) -> None:
        """Change some fields of status.json."""
        self.status = {**self.status, **changes, "updated": _now()}
        with writing(self.folder):
            disk.write_json(self.folder / "status.json", self.status)

    def checkpoint(self) -> dict[str, Any] | None:
        """Simulation.state() of the last checkpoint, if there is one. Raises UserError on another trial's."""
        content = self._read("checkpoint.pt", disk.read_torch, None)
        if content is not None and content["identity"] != self.meta["identity"]:
            raise UserError(
                f"{self.folder / 'checkpoint.pt'} is a checkpoint of another config ({content['identity']}, "
                f"not {self.meta['identity']}). Put the right file there, or delete the folder to begin anew."
            )
        return None if content is None else content["simulation"]

    def drop_checkpoint(self) -> None:
        with writing(self.folder):
            (self.folder / "checkpoint.pt").unlink(missing_ok=True)

    def save_newcomers(self, table: pd.DataFrame) -> None:
        with writing(self.folder):
            disk.write_parquet(self.folder / "newcomers.parquet", table)

    def save_study(self, table: pd.DataFrame) -> None:
        with writing(self.folder):
            disk.write_parquet(self.folder / "study.parquet", table)

    def save_models(self, models: dict[str, Any]) -> None:
        with writing(self.folder):
            disk.write_torch(self.folder / "models.pt", models)

    def models(self) -> dict[str, Any]:
        """{"global": state_dict or None, "personal": {client: state_dict}}. Raises UserError without."""
        found = self._read("models.pt", disk.read_torch, None)
        if found is None:
            raise UserError(f"{self.folder} holds no models: they are saved at the end, with checkpoint.models=true.")
        return found

    def _table(self, name: str) -> pd.DataFrame:
        """Empty before the first write."""
        return self._read(f"{name}.parquet", pd.read_parquet, ... if self.status.get("rounds") else pd.DataFrame())

    def _read(self, name: str, reader: Callable[[Path], Any], missing: Any = ...) -> Any:
        """missing: what is read where there is no file; without it, that is damage."""
        path = self.folder / name
        if missing is not ... and not path.exists():
            return missing
        try:
            return reader(path)
        except FileNotFoundError as error:
            raise self._damaged(name, "missing") from error
        except Exception as error:  # each reader has its own ways to say that a file is cut short or something else
            raise self._damaged(name, f"truncated, or no file of pflsweep's ({type(error).__name__})") from error

    def _damaged(self, name: str, how: str) -> UserError:
        return UserError(
            f"{self.folder / name} cannot be read: it is {how}. "
            f"Put the right file back, or delete the folder {self.folder} to train this trial anew."
        )


def _digest(config: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _without_scores(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith(VIEWS)}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
