"""Read and write a trial's record: the folder of its tables, config, status, checkpoint and models.

Tables are written first and the checkpoint last, each under a temporary name and then renamed. A killed trial may leave
rows past its checkpoint's round; they are dropped on resume. Only checkpoints and models need torch, so it is imported
for them alone.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflsweep.config.keys import flat
from pflsweep.config.options import VIEW_NAMES, Tracking
from pflsweep.records import matrices as records_matrices
from pflsweep.records.checkpoint import Checkpoint, read_torch, write_torch
from pflsweep.records.content import CHECKPOINT, FORMAT, MODELS, PARTS, TABLES
from pflsweep.records.errors import Damaged, another_format
from pflsweep.records.readers import read_config, read_npz, read_parquet, require_npz, require_parquet
from pflsweep.util import files
from pflsweep.util.archive import ArchivePath, Folder
from pflsweep.util.errors import UserError, without_password
from pflsweep.util.files import writing

VIEWS = tuple(f"{view}_" for view in VIEW_NAMES)  # prefixes of the columns that an evaluation fills in


def storable(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config as it is written down: without the password of MLflow's store, since records are shared."""
    uri = config.get("tracking", {}).get("uri")
    return config if uri is None else {**config, "tracking": {**config["tracking"], "uri": without_password(uri)}}


class Record:
    """A trial's record: the folder `<runs>/<identity>`, or one in an archive, which is read-only.

    In memory the tables may be ahead of the disk until `write`. The large ones, clients and matrices, are read when
    they are asked for, up to the round that was the last when the record was opened.
    """

    def __init__(self, folder: str | Folder) -> None:
        """Open an existing record. Raises UserError if the folder is none or is damaged; so do later reads."""
        self.place: Folder = Path(folder) if isinstance(folder, str) else folder
        if not self.path("meta.json").exists():
            raise UserError(f"{self.place} is not a record (no meta.json): name a trial's folder, runs/<identity>.")
        self.meta: dict[str, Any] = self._read("meta.json", files.read_json)
        if self.meta.get("format") != FORMAT:
            raise another_format(self.place, self.meta.get("format"), self.place.parent)
        self.config: dict[str, Any] = self._read("config.yaml", read_config)
        self.status: dict[str, Any] = self._read("status.json", files.read_json)
        for name, found in (("meta.json", self.meta), ("status.json", self.status)):
            for key, kind in PARTS[name].keys.items():
                if key not in found:
                    raise self._damaged(name, f"without '{key}'")
                if not isinstance(found[key], kind):
                    raise self._damaged(name, f"with {key}={found[key]!r}, which is not of type {kind.__name__}")
        # Of keys of several types, such as dates, there is no digest
        self._written = [self._read("config.yaml", lambda _: digest_of_config(self.config))]
        # A truncated YAML file may still be YAML, so status.json keeps the config's digest
        if self._written[0] not in self.status["config"]:
            raise self._damaged("config.yaml", "not as it was written")
        self._before = self._table("rounds", read_parquet)
        if self.status["rounds"] and self._before.empty:
            raise self._damaged("rounds.parquet", "without rows")
        self._rounds: list[dict[str, Any]] = []  # rows of the rounds after those of `_before`
        # Another process may train further rounds before the large tables are read: those rounds are left out
        self._opened, self._cut = self.done, False
        self._table("clients", require_parquet)
        self._read("matrices.npz", require_npz, None)
        self._read("partition.parquet", require_parquet)
        for name in ("ends_rounds.parquet", "ends_clients.parquet", "newcomers.parquet", "study.parquet"):
            self._read(name, require_parquet, None)
        self._ends: list[tuple[pd.DataFrame, pd.DataFrame]] = []  # to be written: rows of rounds, and of clients
        self._partition: pd.DataFrame | None = None

    @property
    def tracking(self) -> Tracking:
        """Return how the trial's run is tracked in MLflow."""
        return Tracking.of(self.config["tracking"])

    @classmethod
    def as_of(cls, folder: str | Folder, rounds: int) -> "Record":
        """Open a record as it was after `rounds` rounds. More rounds may be trained already, or just now."""
        record = cls(folder)
        record.go_back(rounds)
        return record

    def go_back(self, rounds: int) -> None:
        """Forget rounds after `rounds`, in memory, and restore the scores that the trial had when it ended there."""
        self.truncate(rounds)
        self.status |= {"status": "finished", "target": rounds}
        self.config = {**self.config, "train": {**self.config["train"], "rounds": rounds}}
        if rounds not in self.evaluated and rounds in self.scored:
            table, clients = self._read_ends()
            row = table[table["round"] == rounds].iloc[0].drop("round").dropna()
            scores = {str(name): value for name, value in row.to_dict().items()}
            self.amend(scores, clients[clients["round"] == rounds])

    def verify(self) -> None:
        """Read the copied tables and matrices whole; opening a record reads their ends alone. Raises Damaged."""
        for name in TABLES:
            self._read(name, read_parquet, None)
        self._read("matrices.npz", read_npz, None)

    @classmethod
    def new(cls, folder: Path, meta: dict[str, Any], config: dict[str, Any], partition: pd.DataFrame) -> "Record":
        """Create a record in memory. `begin` writes it to the disk."""
        record = object.__new__(cls)
        record.place, record.meta, record.config = folder, {**meta, "created": _now()}, storable(config)
        record.status = {"status": "running", "rounds": 0, "target": None, "seconds": 0.0, "error": None, "config": []}
        record._written = []
        record._before, record._rounds, record._ends = pd.DataFrame(), [], []
        record._clients, record.matrices = [], {}
        record._partition = partition
        return record

    def go_on(self, config: dict[str, Any], meta: dict[str, Any]) -> None:
        """Add a session in memory: another command continues this trial, perhaps on another device or commit."""
        now: dict[str, Any] = {key: meta[key] for key in ("commit", "version", "environment", "digests") if key in meta}
        session = {"from": self.done + 1, **now, "begun": _now()}
        self.config = storable(config)
        self.meta = {**self.meta, "sessions": [*self.meta.get("sessions", []), session]}

    def begin(self) -> None:
        """Write what is known before training, meta.json last: a folder without it is not a record."""
        with writing(self.folder):
            if not self.begun:
                # A trial that was killed at its beginning may have left files behind
                for name, part in PARTS.items():
                    if part.written != "begin":
                        self.path_to_write(name).unlink(missing_ok=True)
                files.write_parquet(self.path_to_write("partition.parquet"), self.partition)
                self._partition = None
            # The old digest stays allowed, since config.yaml is still the old one if the process dies right here
            digests = [digest_of_config(self.config), *self._written]
            self.set_status(status="running", target=self.config["train"]["rounds"], error=None, config=digests)
            files.write_yaml(self.path_to_write("config.yaml"), self.config)
            self._written = digests[:1]
            files.write_json(self.path_to_write("meta.json"), self.meta)

    @property
    def folder(self) -> Path:
        """Return the folder that the record is written to. Raises UserError if it lies in an archive."""
        if isinstance(self.place, ArchivePath):
            raise UserError(
                f"{self.place} lies in an archive, where nothing is changed: "
                f"`pflsweep record import {self.place.parent}` copies it into runs."
            )
        return self.place

    def path(self, name: str) -> Folder:
        """Return where one file of the record lies. Readers and writers ask here, so a file can lie elsewhere."""
        return self.place / name

    def path_to_write(self, name: str) -> Path:
        """Return where one file of the record is written. Raises UserError if the record lies in an archive."""
        path = self.path(name)
        # In an archive, `folder` raises
        return path if isinstance(path, Path) else self.folder / name

    @property
    def values(self) -> dict[str, Any]:
        """Return the config as flat keys, without those that have their neutral value, as ledgers write it."""
        return {key: value for key, value in flat(self.config).items() if key not in self.meta["neutral"]}

    @property
    def begun(self) -> bool:
        """Return whether anything of the record is on the disk."""
        return self._partition is None

    @property
    def rounds(self) -> pd.DataFrame:
        """Return the table of rounds, one row each."""
        return _joined([self._before, pd.DataFrame(self._rounds)])

    @property
    def clients(self) -> pd.DataFrame:
        """Return the clients' scores: one row per client, view, target and evaluated round."""
        return _joined(self._clients)

    def clients_in(self, *rounds: int) -> pd.DataFrame:
        """Return the rows of `clients` of some evaluated rounds, without keeping the others in memory."""
        if "_clients" in vars(self):
            table = self.clients
            return table[table["round"].isin(rounds)].reset_index(drop=True)
        table = self._table("clients", partial(read_parquet, rounds=rounds))
        if not set(rounds) <= set(table.get("round", ())):
            raise self._damaged("clients.parquet", f"without the scores of round {max(rounds)}")
        return table

    @cached_property
    def _clients(self) -> list[pd.DataFrame]:
        table = self._table("clients", read_parquet)
        return [table[table["round"] <= self._opened]] if len(table) else []

    @cached_property
    def matrices(self) -> dict[str, np.ndarray]:
        """Return the method's matrices by name: of the last round, small ones also of earlier rounds (matrices.py)."""
        found = self._read("matrices.npz", read_npz, {})
        return records_matrices.cut(found, self._opened) if self._cut else records_matrices.upto(found, self._opened)

    @property
    def partition(self) -> pd.DataFrame:
        """Return counts of training, validation and test samples, one row per client and class."""
        return self._read("partition.parquet", read_parquet) if self._partition is None else self._partition

    @property
    def newcomers(self) -> pd.DataFrame:
        """Return the new clients' scores: one row per client and epoch of fine-tuning the model of the last round.

        The table is empty if all clients train. Raises UserError if new clients have not fine-tuned that model.
        """
        table = self._newcomers()
        own = table[table["round"] == self.done].drop(columns="round").reset_index(drop=True)
        if own.empty and self.config.get("data", {}).get("new"):
            known = sorted(set(table["round"]))
            there = f", only of {' and '.join(map(str, known))}: ask for train.rounds={known[-1]}" if known else ""
            raise UserError(
                f"{self.place} has no scores of new clients with the model of round {self.done}{there}. To have those "
                f"of round {self.done}, train with train.rounds={self.done} in another folder: paths.runs."
            )
        return own

    @property
    def study(self) -> pd.DataFrame:
        """Return the table that the trial's study has written; it is empty without a study."""
        return self._read("study.parquet", read_parquet, pd.DataFrame())

    @property
    def done(self) -> int:
        """Return the number of the last round in the tables; 0 before the first."""
        last = self._rounds[-1]["round"] if self._rounds else self._before["round"].iloc[-1] if len(self._before) else 0
        return int(last)

    @property
    def last_row(self) -> dict[str, Any]:
        """Return the row of the last round."""
        return self._rounds[-1] if self._rounds else {**self._before.tail(1).to_dict("records")[0]}

    @property
    def evaluated(self) -> list[int]:
        """Return the numbers of the rounds that were evaluated."""
        table = self.rounds
        return [] if "personal_accuracy" not in table else table["round"][table["personal_accuracy"].notna()].tolist()

    @property
    def scored(self) -> list[int]:
        """Return the evaluated rounds, and those at which the trial once ended, as which `go_back` shows it."""
        ends = self._read("ends_rounds.parquet", read_parquet, pd.DataFrame({"round": []}))
        return sorted({*self.evaluated, *ends["round"].tolist()})

    def _read_ends(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the scores of rounds at which the trial once ended and that its longer schedule does not evaluate.

        They are rows of rounds, and of clients.
        """
        return tuple(self._read(f"ends_{name}.parquet", read_parquet, pd.DataFrame()) for name in ("rounds", "clients"))

    def append(self, row: dict[str, Any], clients: pd.DataFrame | None, matrices: dict[str, np.ndarray]) -> None:
        """Add a round in memory. clients: scores, where it was evaluated; matrices: the method's, by name."""
        self._rounds.append(row)
        if clients is not None:
            self._clients.append(clients)
        self.matrices = records_matrices.append_round(self.matrices, matrices, int(row["round"]))

    def amend(self, scores: dict[str, Any], clients: pd.DataFrame) -> None:
        """Add scores to the last round, which was not evaluated at first."""
        row = {**self.last_row, **scores}
        self._forget(self.done - 1)
        self._rounds.append(row)
        self._clients.append(clients)

    def truncate(self, last: int) -> None:
        """Forget rounds after `last`, in memory."""
        if last < self.done:
            self._forget(last)
            # For the tables that are not read yet
            self._opened, self._cut = last, True
            if "_clients" in vars(self):
                table = self.clients
                self._clients = [table[table["round"] <= last]] if len(table) else []
            if "matrices" in vars(self):
                self.matrices = records_matrices.cut(self.matrices, last)
        self.status = {**self.status, **self._progress()}

    def _forget(self, last: int) -> None:
        """Drop the rows of rounds after `last` from the table of rounds."""
        table = self.rounds
        self._before, self._rounds = table[table["round"] <= last] if len(table) else table, []

    def set_scores_apart(self, due: Callable[[int], bool]) -> None:
        """Move the scores of rounds that are not `due` to `ends_*`, in memory; `go_back` restores them.

        Such a round was the last of a shorter trial, which is always evaluated.
        """
        table, clients = self.rounds, self.clients
        if len(table):
            scores = [column for column in table if str(column).startswith(VIEWS)]
            apart = [each for each in self.evaluated if not due(each)]
            if apart:
                rows = table.loc[table["round"].isin(apart), ["round", *scores]]
                self._ends.append((rows, clients[clients["round"].isin(apart)]))
            table.loc[~table["round"].map(due), scores] = np.nan
            table = table.drop(columns=[column for column in scores if table[column].isna().all()])
        self._before, self._rounds = table, []
        self._clients = [clients[clients["round"].map(due)]] if len(clients) else []

    def _progress(self) -> dict[str, Any]:
        table = self.rounds
        seconds = float((table["seconds"] + table["eval_seconds"]).sum()) if len(table) else 0.0
        return {"rounds": self.done, "seconds": seconds}

    def write(self, checkpoint: Checkpoint | None = None) -> None:
        """Write the tables, then the checkpoint. Raises UserError if the disk is full or read-only."""
        with writing(self.folder):
            self._write_ends()
            self._clients = [self.clients]
            files.write_parquet(self.path_to_write("rounds.parquet"), self.rounds)
            files.write_parquet(self.path_to_write("clients.parquet"), self.clients)
            if self.matrices:
                files.write_npz(self.path_to_write("matrices.npz"), self.matrices)
            if checkpoint is not None:
                checkpoint.write(self.path_to_write(CHECKPOINT))
            self.set_status(**self._progress())

    def _write_ends(self) -> None:
        """Write the scores that were set apart, before the tables that have them no more."""
        if not self._ends:
            return
        apart = zip(*self._ends, strict=True)
        for name, before, found in zip(("rounds", "clients"), self._read_ends(), apart, strict=True):
            new = _joined(list(found))
            known = before[~before["round"].isin(new["round"])] if len(before) else before
            files.write_parquet(self.path_to_write(f"ends_{name}.parquet"), _joined([known, new]))
        self._ends = []

    def keep_scores(self, earlier: "Record") -> None:
        """Add the scores that only `earlier` has, a record of this trial with fewer rounds: of rounds that it evaluated
        or ended at, and of its new clients.

        Raises UserError if a table cannot be read, OSError where one cannot be written.
        """
        # A trial that was killed before its first checkpoint has no tables
        if not earlier.done:
            return
        missing, evaluated = set(earlier.scored) - set(self.scored), set(earlier.evaluated)
        scores = [column for column in earlier.rounds if str(column).startswith(VIEWS)]
        of_schedule = earlier.rounds[["round", *scores]], earlier.clients
        for tables, rounds in ((of_schedule, missing & evaluated), (earlier._read_ends(), missing - evaluated)):
            if rounds:
                rows, clients = (table[table["round"].isin(rounds)] for table in tables)
                self._ends.append((rows, clients))
        own, others = self._newcomers(), earlier._newcomers()
        others = others[~others["round"].isin(own["round"])]
        self._write_ends()
        if len(others):
            files.write_parquet(self.path_to_write("newcomers.parquet"), _joined([others, own]))

    def set_status(self, **changes: Any) -> None:
        """Change some fields of status.json."""
        self.status = {**self.status, **changes, "updated": _now()}
        with writing(self.folder):
            files.write_json(self.path_to_write("status.json"), self.status)

    def checkpoint(self) -> Checkpoint | None:
        """Read the last checkpoint, if there is one. Raises UserError if it belongs to another trial."""
        found: Checkpoint | None = self._read(CHECKPOINT, Checkpoint.read, None)
        if found is not None and found.identity != self.meta["identity"]:
            raise UserError(
                f"{self.path(CHECKPOINT)} is a checkpoint of another config ({found.identity}, "
                f"not {self.meta['identity']}). Put the right file there, or move this one away to begin anew."
            )
        return found

    def remove(self, name: str) -> None:
        """Remove one file of the record, if it is there."""
        with writing(self.folder):
            self.path_to_write(name).unlink(missing_ok=True)

    def save_newcomers(self, table: pd.DataFrame) -> None:
        """Write the new clients' scores for the last round, beside those of rounds at which the trial ended before."""
        before = self._newcomers()
        others = before[before["round"] != self.done]
        with writing(self.folder):
            both = _joined([others, table.assign(round=self.done)])
            files.write_parquet(self.path_to_write("newcomers.parquet"), both)

    def _newcomers(self) -> pd.DataFrame:
        """Return the new clients' scores for all rounds at which the trial has ended."""
        return self._read("newcomers.parquet", read_parquet, pd.DataFrame({"round": []}))

    def save_study(self, table: pd.DataFrame) -> None:
        """Write the study's table."""
        with writing(self.folder):
            files.write_parquet(self.path_to_write("study.parquet"), table)

    def save_models(self, models: dict[str, Any]) -> None:
        """Write the models of the last round, as `models` returns them."""
        with writing(self.folder):
            write_torch(self.path_to_write(MODELS), {"round": self.done, **models})

    def models(self) -> dict[str, Any]:
        """Read the models of the last round: {"global": state_dict or None, "personal": {client: state_dict}}.

        Raises UserError if the record holds none of that round.
        """
        found, at = self._models()
        if found is None or at != self.done:
            raise UserError(
                f"{self.place} holds no models of round {self.done}{f', only of round {at}' if at else ''}. "
                f"train.rounds={self.done} checkpoint.models=true makes them as long as that is the trial's last round "
                "and its checkpoint is there; else train it in another folder: paths.runs."
            )
        return found

    @property
    def model_facts(self) -> dict[str, Any]:
        """Return what is needed to build the trial's model, apart from its weights: option, options, seed, shapes."""
        facts = {key: self.meta.get(key) for key in ("method", "model", "seed", "shape", "classes")}
        return {**facts, "options": self.config.get("model")}

    @property
    def models_round(self) -> int:
        """Return the round of the models that the record holds; 0 without models."""
        return self._models()[1]

    def _models(self) -> tuple[dict[str, Any] | None, int]:
        found = self._read(MODELS, partial(read_torch, needed=("round", "global", "personal")), None)
        return (None, 0) if found is None else (found, found["round"])

    def _table(self, name: str, reader: Callable[[Any], Any]) -> Any:
        """Read a table that every record has after its first `write`; before that it is empty."""
        return self._read(f"{name}.parquet", reader, ... if self.status.get("rounds") else pd.DataFrame())

    def _read(self, name: str, reader: Callable[[Any], Any], missing: Any = ...) -> Any:
        """Read a file of the record. missing: the value where there is no file; without it the record is damaged.

        Raises Damaged if the file cannot be read.
        """
        path = self.path(name)
        if missing is not ... and not path.exists():
            return missing
        try:
            # Opening a pipe would wait for its writer
            if path.exists() and not path.is_file():
                raise self._damaged(name, "not a regular file")
            return reader(path)
        except Damaged:
            raise
        except FileNotFoundError as error:
            raise self._damaged(name, "missing") from error
        except Exception as error:
            # The readers raise many different errors on files that are truncated or something else
            raise self._damaged(name, f"truncated, or no file of pflsweep's ({type(error).__name__})") from error

    def _damaged(self, name: str, how: str) -> Damaged:
        """Return the error to raise. It advises to move the folder only where that is surely this trial's own, and
        lies in no archive.
        """
        own = vars(self).get("meta", {}).get("identity") == self.place.name
        movable = own and not isinstance(self.place, ArchivePath)
        anew = f", or move the folder {self.place} away to train this trial anew" if movable else ""
        return Damaged(f"{self.path(name)} cannot be read: it is {how}. Put the right file back{anew}.")


def digest_of_config(config: dict[str, Any]) -> str:
    """Return the digest of a config, by which status.json recognises the config.yaml that belongs to it."""
    return hashlib.blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all tables in one new table, numbered from 0."""
    there = [table for table in tables if len(table)]
    if len(there) < 2:
        return there[0].reset_index(drop=True) if there else pd.DataFrame()
    return pd.concat(there, ignore_index=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
