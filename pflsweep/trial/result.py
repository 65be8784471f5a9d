"""The result of a trial for Python: its tables, its models and its clients' data."""

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from pflsweep.config.compose import Config
from pflsweep.data.federation import Federation
from pflsweep.data.prescribed import Prescribed
from pflsweep.records.record import Record
from pflsweep.report.quantities import summary
from pflsweep.report.tables import brief
from pflsweep.trial.build import build_federation
from pflsweep.trial.saved import SavedModels
from pflsweep.util.errors import UserError


class Accuracy(NamedTuple):
    """Mean personalised accuracy over clients, in [0, 1]."""

    last: float
    best: float


class Result:
    """A finished trial, read from its record as of the round that was asked for."""

    def __init__(
        self, folder: Path, rounds: int, trained: Config | None = None, prescribed: Prescribed | None = None
    ) -> None:
        """folder: of the record. trained, prescribed: what the trial was trained with, where the caller has it."""
        self.record = Record.as_of(folder, rounds)
        self.config: dict[str, Any] = self.record.config
        self._trained, self._prescribed = trained, prescribed

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Return the table of rounds, one row each."""
        return self.record.rounds

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Return the clients' scores: one row per client, view, target and evaluated round."""
        return self.record.clients

    def __repr__(self) -> str:
        """Return the table that a command prints at its end."""
        return f"{self.record.meta['name']} ({self.record.place})\n{brief([self.record]).to_string(index=False)}"

    def _repr_html_(self) -> str:
        """Return the same table for notebooks."""
        return brief([self.record]).to_html(index=False, border=0)

    @property
    def personal_accuracy(self) -> Accuracy:
        """Return the last and the best personalised accuracy, mean over clients; NaN if none was ever scored."""
        found = summary(self.record)
        return Accuracy(found.last, found.best)

    def load_global(self, config_dir: str | Path | None = None) -> nn.Module:
        """Return the global model after the record's last round. Raises UserError if there is none.

        config_dir: the folder with the model's option where that is not shipped, as with --config-dir. It is needed
        since code that a record names is never imported. A Result of `pflsweep.run` knows its option already.
        """
        return self._saved.load_global(config_dir)

    def load_personal(self, client: int, config_dir: str | Path | None = None) -> nn.Module:
        """Return a client's personalised model after the record's last round. config_dir: see `load_global`.

        Some methods predict with more than a network, such as kNN-Per with its memory. Then it is the network alone,
        and a warning says so. Raises UserError if there is no such client.
        """
        return self._saved.load_personal(client, config_dir)

    def data(self, client: int, split: str = "test") -> tuple[Tensor, Tensor]:
        """Return a client's samples as its model sees them: x [n, ...], normalised unless it is text, and labels y [n].

        split: train, validation or test. The dataset is read again, once. Raises UserError if there is no such
        client or split, or where this is not a result of `pflsweep.run`.
        """
        federation = self._federation
        if split not in federation.rows:
            raise UserError(f"There is no split '{split}': a client has {', '.join(federation.rows)}.")
        if not 0 <= client < federation.clients:
            raise UserError(f"There is no client {client}: the clients are 0 to {federation.clients - 1}.")
        x, y = federation.gather(torch.from_numpy(federation.rows[split][client]).to(federation.device))
        return x.cpu(), y.cpu()

    @cached_property
    def _federation(self) -> Federation:
        if self._trained is None:
            raise UserError("Only a result of pflsweep.run knows its data: give the trial's config to pflsweep.run.")
        return build_federation(self._trained, self._prescribed)[0]

    @property
    def _saved(self) -> SavedModels:
        record = self.record
        return SavedModels(record.model_facts, record.models(), record.folder, self._trained)
