"""Links to a page's runs where they can be browsed. The tracker makes them; reports know no tracker."""

from pathlib import Path
from typing import NamedTuple, Protocol

from pflsweep.records.ledger import Ledger
from pflsweep.report.paper.store import FinishedTrial


class Links(NamedTuple):
    """Addresses: of trials by their identity, of the runs that stand for sweeps by the name of the ledger's file.
    Without: not tracked.
    """

    runs: dict[str, str] = {}  # noqa: RUF012 (never changed)
    sweeps: dict[str, str] = {}  # noqa: RUF012


class Tracker(Protocol):
    def links(self, ledgers: list[Ledger], trials: list[FinishedTrial]) -> Links:
        """Return the addresses of some sweeps and trials."""

    def keep(self, name: str, files: list[Path], ledgers: list[Ledger]) -> bool:
        """Keep a report's files, in place of those from before, with the runs of its sweeps. False: there are none."""


class Untracked:
    """The tracker of a report whose runs are nowhere to be browsed."""

    def links(self, ledgers: list[Ledger], trials: list[FinishedTrial]) -> Links:
        return Links()

    def keep(self, name: str, files: list[Path], ledgers: list[Ledger]) -> bool:
        return False
