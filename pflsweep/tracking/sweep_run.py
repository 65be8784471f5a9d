"""Track a sweep as an MLflow run, the parent of its trials' runs. It is found by the tag `pflsweep.sweep`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pflsweep.config.options import Tracking
from pflsweep.records.record import Record
from pflsweep.tracking.address import uri_of
from pflsweep.tracking.failures import errors_as_warnings, store_errors
from pflsweep.tracking.logging import log_comparison, log_table
from pflsweep.tracking.lookup import add_link, all_runs, cut_name, default_name, ensure_sweep, find, find_sweep
from pflsweep.tracking.overview import GroupResult, SweepRun, describe_sweep, log_results
from pflsweep.tracking.run import GOES_ON, INCOMPLETE, end_run, tolerate_unavailable
from pflsweep.tracking.store import opened

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from mlflow import MlflowClient
    from mlflow.entities import Run


FINISHED = "attributes.status = 'FINISHED'"


def sweep_status(options: Tracking, sweep: str) -> str | None:
    """Return MLflow's status of a sweep's run; None where the store lacks the run, or a file of it or of a trial.
    Return "FINISHED" where nothing is tracked.

    Raises UserError as `open_run` does.
    """
    if options.backend == "none":
        return "FINISHED"
    with tolerate_unavailable(options, GOES_ON), store_errors(uri_of(options)), opened(options) as (client, experiment):
        run = find_sweep(client, experiment, sweep)
        return None if run is None or _lacks_files(client, experiment, run) else str(run.info.status)
    return None


def _lacks_files(client: "MlflowClient", experiment: str, sweep: "Run") -> bool:
    """Return whether a file of a sweep's run, or of one of its trials, could not be stored."""
    incomplete = f"{_of(sweep.info.run_id)} and {FINISHED} and tags.`{INCOMPLETE}` != ''"
    some = client.search_runs([experiment], incomplete, max_results=1)
    return INCOMPLETE in sweep.data.tags or bool(some)


def open_sweep(options: Tracking, sweep: str, about: SweepRun) -> None:
    """Create the store and a sweep's run, once, before its trials open them in parallel."""
    if options.backend != "none":
        # Without a warning, since `sweep_status` has warned
        with tolerate_unavailable(options), store_errors(uri_of(options)), opened(options) as (client, experiment):
            run_id = str(ensure_sweep(client, experiment, sweep, about.name))
            client.update_run(run_id, status="RUNNING", name=cut_name(about.name))
            describe_sweep(client, run_id, about)


def restore_sweep(options: Tracking, sweep: str, about: SweepRun) -> bool:
    """Create a sweep's run again where the store has lost it since `open_sweep`, and return whether it had.

    If so it has also lost trials that ended before, and the caller has to send all of them.
    """
    if options.backend == "none":
        return False
    # Without a warning, since `finish_sweep` gives it
    with suppress(Exception):
        with opened(options) as (client, experiment):
            run = find_sweep(client, experiment, sweep)
        # A run without the sweep's name was created by a trial, which does not know it
        if run is None or run.info.run_name == default_name(sweep):
            open_sweep(options, sweep, about)
            return True
    return False


def sent_trials(options: Tracking, sweep: str) -> set[str] | None:
    """Return the identities of a sweep's finished trials that the store has whole; None where it cannot be used."""
    if options.backend == "none":
        return None
    # Without a warning, since `finish_sweep` gives it
    with suppress(Exception), opened(options) as (client, experiment):
        parent = ensure_sweep(client, experiment, sweep)
        tags = [run.data.tags for run in all_runs(client, experiment, f"{_of(parent)} and {FINISHED}")]
        return {own["identity"] for own in tags if INCOMPLETE not in own}
    return None


def _of(parent: str | None) -> str:
    """Return the condition in MLflow's language that a run is of a trial of a sweep."""
    return f"tags.`mlflow.parentRunId` = '{parent}' and tags.identity != ''"


def tag_superseded(options: Tracking, sweep: str, identities: Sequence[str]) -> None:
    """Tag the runs of final trials whose points do not win the sweep any more, since a retried one has won."""
    if options.backend == "none" or not identities:
        return
    with errors_as_warnings(f"the sweep {sweep}"), opened(options) as (client, experiment):
        for identity in identities:
            if run := find(client, experiment, "identity", identity):
                client.set_tag(run.info.run_id, "pflsweep.superseded", f"another point has won the sweep {sweep} since")


def finish_sweep(
    options: Tracking,
    sweep: str,
    records: Sequence[Record],
    failed: Sequence[str],
    tables: Mapping[str, "pd.DataFrame"],
    figures: Mapping[str, "Figure"],
    results: Sequence[GroupResult] = (),
) -> None:
    """Log a sweep's comparison, tables, pictures and each method's results (`results`) to its run, and end the run.

    records: of the final trials. failed: a line for each trial that failed; with any, the run ends as FAILED.
    """
    if options.backend == "none":
        return
    with errors_as_warnings(f"the sweep {sweep}"):
        with opened(options) as (client, experiment):
            parent = str(ensure_sweep(client, experiment, sweep))
        with end_run(client, parent, "FAILED" if failed else "FINISHED"):
            log_results(client, parent, results)
            log_comparison(client, parent, records, failed)
            if records:
                add_link(client, experiment, parent, "comparison/runs.html", "Comparison of its runs")
            for name, table in tables.items():
                log_table(client, parent, table, f"{name}.json")
            for name, figure in figures.items():
                client.log_figure(parent, figure, f"{name}.png")


def stop_sweep(options: Tracking, sweep: str) -> None:
    """End the run of a sweep that was interrupted as KILLED."""
    if options.backend != "none":
        with errors_as_warnings(f"the sweep {sweep}"), opened(options) as (client, experiment):
            client.set_terminated(str(ensure_sweep(client, experiment, sweep)), "KILLED")
