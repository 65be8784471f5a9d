"""Read a trial's record: the folder of its tables, config, status, checkpoint and models.

Only checkpoints and models need torch, so it is imported for them alone.
"""

import hashlib
import json
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflsweep.config.keys import flat
from pflsweep.config.options import VIEW_NAMES, Tracking
from pflsweep.records import matrices as records_matrices
from pflsweep.records.checkpoint import Checkpoint, read_torch
from pflsweep.records.content import CHECKPOINT, FORMAT, MODELS, PARTS, TABLES
from pflsweep.records.errors import Damaged, another_format
from pflsweep.records.readers import read_config, read_npz, read_parquet, require_npz, require_parquet
from pflsweep.util import files
from pflsweep.util.archive import ArchivePath, Folder
from pflsweep.util.errors import UserError

VIEWS = tuple(f"{view}_" for view in VIEW_NAMES)  # prefixes of the columns that an evaluation fills in


class Record:
    """A trial's record: the folder `<runs>/<identity>`, or one in an archive. It is only read; RecordWriter writes it.

    The large tables, clients and matrices, are read when they are asked for, up to the round that was the last when the
    record was opened.
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
        digest = self._read("config.yaml", lambda _: digest_of_config(self.config))
        # A truncated YAML file may still be YAML, so status.json keeps the config's digest
        if digest not in self.status["config"]:
            raise self._damaged("config.yaml", "not as it was written")
        self._before = self._table("rounds", read_parquet)
        if self.status["rounds"] and self._before.empty:
            raise self._damaged("rounds.parquet", "without rows")
        self._rounds: list[dict[str, Any]] = []  # rows of the rounds after those of `_before`, in memory
        # Another process may train further rounds before the large tables are read: those rounds are left out
        self._opened, self._cut = self.done, False
        self._table("clients", require_parquet)
        self._read("matrices.npz", require_npz, None)
        self._read("partition.parquet", require_parquet)
        for name in ("ends_rounds.parquet", "ends_clients.parquet", "newcomers.parquet", "study.parquet"):
            self._read(name, require_parquet, None)

    @property
    def tracking(self) -> Tracking:
        """Return how the trial's run is tracked in MLflow."""
        return Tracking.of(self.config["tracking"])

    @classmethod
    def as_of(cls, folder: str | Folder, rounds: int) -> "Record":
        """Open a record as it was after `rounds` rounds. More rounds may be trained already, or just now."""
        record = cls(folder)
        record.restrict_to(rounds)
        return record

    def restrict_to(self, rounds: int) -> None:
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

    @property
    def folder(self) -> Path:
        """Return the record's folder on the disk. Raises UserError if the record lies in an archive."""
        if isinstance(self.place, ArchivePath):
            raise UserError(
                f"{self.place} lies in an archive, where nothing is changed: "
                f"`pflsweep record import {self.place.parent}` copies it into runs."
            )
        return self.place

    def path(self, name: str) -> Folder:
        """Return where one file of the record lies. Readers and writers ask here, so a file can lie elsewhere."""
        return self.place / name

    def path_on_disk(self, name: str) -> Path:
        """Return where one file of the record lies, for those who write or link it. Raises UserError as `folder`."""
        path = self.path(name)
        # In an archive, `folder` raises
        return path if isinstance(path, Path) else self.folder / name

    @property
    def values(self) -> dict[str, Any]:
        """Return the config as flat keys, without those that have their neutral value, as ledgers write it."""
        return {key: value for key, value in flat(self.config).items() if key not in self.meta["neutral"]}

    @property
    def rounds(self) -> pd.DataFrame:
        """Return the table of rounds, one row each."""
        return joined([self._before, pd.DataFrame(self._rounds)])

    @property
    def clients(self) -> pd.DataFrame:
        """Return the clients' scores: one row per client, view, target and evaluated round."""
        return joined(self._clients)

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
        return self._read("partition.parquet", read_parquet)

    @property
    def new_clients(self) -> pd.DataFrame:
        """Return the new clients' scores: one row per client and epoch of fine-tuning the model of the last round.

        The table is empty if all clients train. Raises UserError if new clients have not fine-tuned that model.
        """
        table = self._new_clients()
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
        """Return the evaluated rounds, and those at which the trial once ended, as which `restrict_to` shows it."""
        ends = self._read("ends_rounds.parquet", read_parquet, pd.DataFrame({"round": []}))
        return sorted({*self.evaluated, *ends["round"].tolist()})

    def _read_ends(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the scores of rounds at which the trial once ended and that its longer schedule does not evaluate.

        They are rows of rounds, and of clients.
        """
        return tuple(self._read(f"ends_{name}.parquet", read_parquet, pd.DataFrame()) for name in ("rounds", "clients"))

    def amend(self, scores: dict[str, Any], clients: pd.DataFrame) -> None:
        """Add scores to the last round, which was not evaluated at first, in memory."""
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

    def _progress(self) -> dict[str, Any]:
        table = self.rounds
        seconds = float((table["seconds"] + table["eval_seconds"]).sum()) if len(table) else 0.0
        return {"rounds": self.done, "seconds": seconds}

    def checkpoint(self) -> Checkpoint | None:
        """Read the last checkpoint, if there is one. Raises UserError if it belongs to another trial."""
        found: Checkpoint | None = self._read(CHECKPOINT, Checkpoint.read, None)
        if found is not None and found.identity != self.meta["identity"]:
            raise UserError(
                f"{self.path(CHECKPOINT)} is a checkpoint of another config ({found.identity}, "
                f"not {self.meta['identity']}). Put the right file there, or move this one away to begin anew."
            )
        return found

    def _new_clients(self) -> pd.DataFrame:
        """Return the new clients' scores for all rounds at which the trial has ended."""
        return self._read("newcomers.parquet", read_parquet, pd.DataFrame({"round": []}))

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
        anew = (
            f", or move the folder {self.place} away: its command then trains the trial anew, unless it is one of a "
            "search, whose accuracy the sweep knows"
        )
        return Damaged(
            f"{self.path(name)} cannot be read: it is {how}. Put the right file back{anew if movable else ''}."
        )


def digest_of_config(config: dict[str, Any]) -> str:
    """Return the digest of a config, by which status.json recognises the config.yaml that belongs to it."""
    return hashlib.blake2b(json.dumps(config, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all tables in one new table, numbered from 0."""
    there = [table for table in tables if len(table)]
    if len(there) < 2:
        return there[0].reset_index(drop=True) if there else pd.DataFrame()
    return pd.concat(there, ignore_index=True)
