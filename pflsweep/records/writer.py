"""Write a trial's record.

Tables are written first and the checkpoint last, each under a temporary name and then renamed. A killed trial may leave
rows past its checkpoint's round; they are dropped on resume.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pflsweep.records import matrices as records_matrices
from pflsweep.records.checkpoint import Checkpoint, write_torch
from pflsweep.records.content import CHECKPOINT, MODELS, PARTS
from pflsweep.records.record import VIEWS, Record, digest_of_config, joined
from pflsweep.util import files
from pflsweep.util.errors import without_password
from pflsweep.util.files import writing


def storable(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config as it is written down: without the password of MLflow's store, since records are shared."""
    uri = config.get("tracking", {}).get("uri")
    return config if uri is None else {**config, "tracking": {**config["tracking"], "uri": without_password(uri)}}


class RecordWriter(Record):
    """A record that its trial writes. In memory the tables may be ahead of the disk until `write`."""

    def __init__(self, folder: Path) -> None:
        """Open an existing record, to go on with it. Raises UserError as Record."""
        super().__init__(folder)
        # Digests of the configs that config.yaml may hold
        self._written = [digest_of_config(self.config)]
        self._ends: list[tuple[pd.DataFrame, pd.DataFrame]] = []  # to be written: rows of rounds, and of clients
        self._partition: pd.DataFrame | None = None  # until `begin` writes it

    @classmethod
    def new(cls, folder: Path, meta: dict[str, Any], config: dict[str, Any], partition: pd.DataFrame) -> "RecordWriter":
        """Create a record in memory. `begin` writes it to the disk."""
        record = object.__new__(cls)
        record.place, record.meta, record.config = folder, {**meta, "created": _now()}, storable(config)
        record.status = {"status": "running", "rounds": 0, "target": None, "seconds": 0.0, "error": None, "config": []}
        record._written = []
        record._before, record._rounds, record._ends = pd.DataFrame(), [], []
        record._clients, record.matrices = [], {}
        record._partition = partition
        return record

    def add_session(self, config: dict[str, Any], meta: dict[str, Any]) -> None:
        """Add a session in memory: another command continues this trial, perhaps on another device or commit."""
        now: dict[str, Any] = {key: meta[key] for key in ("commit", "version", "environment", "digests") if key in meta}
        session = {"from": self.done + 1, "after": self.status["status"], **now, "begun": _now()}
        self.config = storable(config)
        self.meta = {**self.meta, "sessions": [*self.meta.get("sessions", []), session]}

    def begin(self) -> None:
        """Write what is known before training, meta.json last: a folder without it is not a record."""
        with writing(self.folder):
            if not self.begun:
                # A trial that was killed at its beginning may have left files behind
                for name, part in PARTS.items():
                    if part.written != "begin":
                        self.path_on_disk(name).unlink(missing_ok=True)
                files.write_parquet(self.path_on_disk("partition.parquet"), self.partition)
                self._partition = None
            # The old digest stays allowed, since config.yaml is still the old one if the process dies right here
            digests = [digest_of_config(self.config), *self._written]
            self.set_status(status="running", target=self.config["train"]["rounds"], error=None, config=digests)
            files.write_yaml(self.path_on_disk("config.yaml"), self.config)
            self._written = digests[:1]
            files.write_json(self.path_on_disk("meta.json"), self.meta)

    @property
    def begun(self) -> bool:
        """Return whether anything of the record is on the disk."""
        return self._partition is None

    @property
    def partition(self) -> pd.DataFrame:
        """Return counts of training, validation and test samples, one row per client and class."""
        return super().partition if self._partition is None else self._partition

    def append(self, row: dict[str, Any], clients: pd.DataFrame | None, matrices: dict[str, np.ndarray]) -> None:
        """Add a round in memory. clients: scores, where it was evaluated; matrices: the method's, by name."""
        self._rounds.append(row)
        if clients is not None:
            self._clients.append(clients)
        self.matrices = records_matrices.append_round(self.matrices, matrices, int(row["round"]))

    def set_scores_apart(self, due: Callable[[int], bool]) -> None:
        """Move the scores of rounds that are not `due` to `ends_*`, in memory; `restrict_to` restores them.

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

    def write(self, checkpoint: Checkpoint | None = None) -> None:
        """Write the tables, then the checkpoint. Raises UserError if the disk is full or read-only."""
        with writing(self.folder):
            self._write_ends()
            self._clients = [self.clients]
            files.write_parquet(self.path_on_disk("rounds.parquet"), self.rounds)
            files.write_parquet(self.path_on_disk("clients.parquet"), self.clients)
            if self.matrices:
                files.write_npz(self.path_on_disk("matrices.npz"), self.matrices)
            if checkpoint is not None:
                checkpoint.write(self.path_on_disk(CHECKPOINT))
            self.set_status(**self._progress())

    def _write_ends(self) -> None:
        """Write the scores that were set apart, before the tables that have them no more."""
        if not self._ends:
            return
        apart = zip(*self._ends, strict=True)
        for name, before, found in zip(("rounds", "clients"), self._read_ends(), apart, strict=True):
            new = joined(list(found))
            known = before[~before["round"].isin(new["round"])] if len(before) else before
            files.write_parquet(self.path_on_disk(f"ends_{name}.parquet"), joined([known, new]))
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
        own, others = self._new_clients(), earlier._new_clients()
        others = others[~others["round"].isin(own["round"])]
        self._write_ends()
        if len(others):
            files.write_parquet(self.path_on_disk("newcomers.parquet"), joined([others, own]))

    def set_status(self, **changes: Any) -> None:
        """Change some fields of status.json."""
        self.status = {**self.status, **changes, "updated": _now()}
        with writing(self.folder):
            files.write_json(self.path_on_disk("status.json"), self.status)

    def remove(self, name: str) -> None:
        """Remove one file of the record, if it is there."""
        with writing(self.folder):
            self.path_on_disk(name).unlink(missing_ok=True)

    def save_new_clients(self, table: pd.DataFrame) -> None:
        """Write the new clients' scores for the last round, beside those of rounds at which the trial ended before."""
        before = self._new_clients()
        others = before[before["round"] != self.done]
        with writing(self.folder):
            both = joined([others, table.assign(round=self.done)])
            files.write_parquet(self.path_on_disk("newcomers.parquet"), both)

    def save_study(self, table: pd.DataFrame) -> None:
        """Write the study's table."""
        with writing(self.folder):
            files.write_parquet(self.path_on_disk("study.parquet"), table)

    def save_models(self, models: dict[str, Any]) -> None:
        """Write the models of the last round, as `models` returns them."""
        with writing(self.folder):
            write_torch(self.path_on_disk(MODELS), {"round": self.done, **models})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
