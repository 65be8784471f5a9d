"""Connect reports with MLflow: find the runs that a page links to, and keep the page with the sweep's run."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflsweep.config.options import Tracking
from pflsweep.records.ledger import Ledger
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.store import FinishedTrial
from pflsweep.tracking.address import HOST, PORT, sqlite_file, uri_of
from pflsweep.tracking.failures import errors_as_warnings, reason
from pflsweep.tracking.lookup import add_link, all_runs, find, route
from pflsweep.tracking.store import looked_up
from pflsweep.util.errors import without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)


class MlflowStores:
    """The MLflow stores of a report's runs, each opened once. A store that cannot be used costs only a warning."""

    def __init__(self) -> None:
        self._stores: dict[str, _Store | None] = {}

    def links(self, ledgers: list[Ledger], trials: list[FinishedTrial]) -> Links:
        """Return links to the runs of trials and of sweeps, as far as they are tracked."""
        found = Links({}, {})
        for ledger in ledgers:
            store = self._store(_options(ledger, trials))
            if store is not None:
                known = {trial.identity: store.runs.get(trial.identity) for trial in trials}
                found.runs.update({identity: store.address(run) for identity, run in known.items() if run})
                with _without_links():
                    if parent := store.parent(ledger):
                        found.sweeps[ledger.path.name] = store.address(parent)
        return found

    def keep(self, name: str, files: list[Path], ledgers: list[Ledger]) -> bool:
        """Log a report's files as artifacts reports/<name> of each sweep's run, and link to it in the description.

        Return whether any store has taken them.
        """
        kept = False
        for store in filter(None, self._stores.values()):
            for ledger in ledgers:
                with errors_as_warnings(f"the report {name}"):
                    if parent := store.parent(ledger):
                        store.keep(parent, name, files)
                        kept = True
        return kept

    def _store(self, options: Tracking) -> "_Store | None":
        """Return the store of tracking's options, opened at the first call; None if it is empty or unusable."""
        key = f"{options.uri} {options.experiment}"
        if key not in self._stores:
            self._stores[key] = None
            if _is_there(options):
                with _without_links(), looked_up(options) as found:
                    self._stores[key] = None if found is None else _Store(uri_of(options), *found)
        return self._stores[key]


@contextmanager
def _without_links() -> Iterator[None]:
    """Turn a store's error into a warning: the page is made without links to its runs."""
    try:
        yield
    except Exception as error:
        log.warning("MLflow cannot be asked for the runs of this report: %s. It has no links to them.", reason(error))


def _options(ledger: Ledger, trials: list[FinishedTrial]) -> Tracking:
    """Return how a sweep was tracked. For older ledgers, which do not say it, its first trial's options are used."""
    own = {identity for group in ledger.groups.values() for identity in group["trials"].values()}
    first = next((trial.config for trial in trials if trial.identity in own), {})
    prefix = "tracking."
    said = ledger.tracking or {k.removeprefix(prefix): v for k, v in first.items() if k.startswith(prefix)}
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if said.get("uri") == without_password(uri):
        # Ledgers and records store no password
        said = {**said, "uri": uri}
    return Tracking.of({"backend": "none", **said})


def _is_there(options: Tracking) -> bool:
    """Return whether a store exists. Opening would create its file, which a look for runs must not."""
    if options.backend == "none":
        return False
    file = sqlite_file(uri_of(options))
    return file is None or file.exists()


class _Store:
    """One experiment of a store. Its runs are read once."""

    def __init__(self, uri: str, client: "MlflowClient", experiment: str) -> None:
        self.uri, self.client, self.experiment = uri, client, experiment
        self.runs = _by_identity(client, experiment)  # identity -> run
        self._parents: dict[str, str | None] = {}

    def parent(self, ledger: Ledger) -> str | None:
        """Return the id of a sweep's run; None if it is not tracked."""
        if ledger.id not in self._parents:
            run = find(self.client, self.experiment, "pflsweep.sweep", ledger.id)
            self._parents[ledger.id] = None if run is None else run.info.run_id
        return self._parents[ledger.id]

    def address(self, run: str) -> str:
        """Return a run's address in a browser: on its server, or for a file on that of `pflsweep ui`."""
        server = self.uri.rstrip("/") if self.uri.startswith("http") else f"http://{HOST}:{PORT}"
        return f"{server}/{route(self.experiment, run)}"

    def keep(self, run: str, name: str, files: list[Path]) -> None:
        """Log a report's files to a run, and delete those that an earlier version had more."""
        folder = f"reports/{name}"
        kept = {f"{folder}/{file.name}" for file in files}
        for file in files:
            self.client.log_artifact(run, str(file), folder)
        stale = [each.path for each in self.client.list_artifacts(run, folder) if each.path not in kept]
        for path in stale:
            # Some artifact stores cannot delete
            with suppress(NotImplementedError):
                _artifacts(self.client, self.uri, run).delete_artifacts(path)
        add_link(self.client, self.experiment, run, f"{folder}/page.html", f"Report {name}")


def _artifacts(client: "MlflowClient", uri: str, run: str) -> Any:
    """Return MLflow's artifact repository of a run."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(client.get_run(run).info.artifact_uri, tracking_uri=uri)


def _by_identity(client: "MlflowClient", experiment: str) -> dict[str, str]:
    """Return the id of the first run of each trial, by the trial's identity."""
    found: dict[str, str] = {}
    for run in all_runs(client, experiment, "tags.identity != ''"):
        found.setdefault(run.data.tags["identity"], run.info.run_id)
    return found
