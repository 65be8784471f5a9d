"""Runs in MLflow, for browsing: the only package that imports it.

The record stays the truth; what MLflow holds is read from it and can be sent again. A trial is one MLflow
run, found again by the tag `identity`. Rounds go out in synchronous batches; how far a run has come is asked
of the store, so that no step is ever logged twice. A sweep is a parent run, found by `pflsweep.sweep`.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from pflsweep.config.options import Tracking
from pflsweep.records.record import Damaged, Record
from pflsweep.tracking import store
from pflsweep.tracking.logging import (
    MARK,
    Labels,
    describe,
    log_amended,
    log_artifacts,
    log_comparison,
    log_summary,
    log_table,
    metrics_of,
    relabel,
    stamps,
)
from pflsweep.tracking.models import log_models
from pflsweep.tracking.overview import Cell, Sweep, describe_sweep, log_cells
from pflsweep.tracking.store import (
    Gone,
    explained,
    file_number,
    find,
    find_sweep,
    forgiven,
    is_gone,
    last_step,
    named,
    opened,
    point_to,
    reason,
    refusal,
    sweep_run,
    unnamed,
    uri_of,
)
from pflsweep.util.errors import UserError, without_password
from pflsweep.util.retry import StorageUnavailable, retry_until_available

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from mlflow import MlflowClient
    from mlflow.entities import Metric

T = TypeVar("T")
SWEEP = "PFLSWEEP_SWEEP"  # environment variable: the hash of the multirun that a trial belongs to
BATCH = 1000  # metrics that one log_batch takes
QUIET = 30.0  # seconds without a batch after which another worker may have sent for this run
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "pruned": "KILLED", "running": "RUNNING"}
LATER = "The record has it all; the same command sends it."
GOES_ON = "Training goes on without it (tracking.required=false); it is tried again at the end."

log = logging.getLogger(__name__)


class Listener(Protocol):
    """What a trial tells while it runs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None: ...
    def rows(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


def open_run(options: Tracking, record: Record, labels: Labels | None = None) -> Listener:
    """The listener of a trial, its run found or created. labels: what its sweep calls it. Raises UserError before
    anything is trained.
    """
    if options.backend == "none":
        return Silent()
    with _tolerated(options, GOES_ON):
        return _patiently(options, lambda: _open_run(options, record, labels))
    return Late(options, labels)


def _open_run(options: Tracking, record: Record, labels: Labels | None) -> Listener:
    with explained(uri_of(options)):
        return MlflowRun(options, record, labels)


def send(options: Tracking, record: Record, labels: Labels | None = None) -> None:
    """A whole record at once, where the store does not have all of it. labels: what its sweep calls it. Raises
    UserError as open_run does.
    """
    if options.backend == "none":
        return
    how = record.status["status"]
    how = "interrupted" if how == "running" else how  # nothing runs now
    with _tolerated(options, LATER):
        if not _patiently(options, lambda: _is_sent(options, record, STATUS[how], labels)):
            with _patiently(options, lambda: _open_run(options, record, labels)) as listener:
                listener.finish(record, how)


def destination(options: Tracking) -> str:
    """Return the line that says where runs go; "" where nothing is tracked."""
    return "" if options.backend == "none" else store.destination(options)


def _is_sent(options: Tracking, record: Record, status: str, labels: Labels | None) -> bool:
    with explained(uri_of(options)), opened(options) as (client, experiment):
        known = find(client, experiment, "identity", record.meta["identity"])
        if known is None or known.info.status != status or last_step(client, known.info.run_id, MARK) < record.done:
            return False
        if labels is not None:
            relabel(client, known, sweep_run(client, experiment, os.environ.get(SWEEP)), labels)
        if status == "FINISHED" and _is_final(labels):  # they may have been made since, from the checkpoint
            log_models(client, known.info.run_id, record)
    return True


def _is_final(labels: Labels | None) -> bool:
    """Return whether a trial is none of a search's points, whose models nobody asks for."""
    return labels is None or labels.tags["role"] == "final"


def _reach(options: Tracking) -> None:
    with explained(uri_of(options)), opened(options):
        pass


def _patiently(options: Tracking, call: Callable[[], T]) -> T:
    """A sweep's trials wait for a store that is away: its start has shown that it can be used."""
    return retry_until_available(call) if os.environ.get(SWEEP) and options.required else call()


@contextmanager
def _tolerated(options: Tracking, then: str = "") -> Iterator[None]:
    """Pass over a store that does not answer where tracking.required is false. then: what is said of it; nothing is
    said inside of a sweep, which says it once, at its start.
    """
    try:
        yield
    except StorageUnavailable as error:
        if options.required:
            raise
        if then and not os.environ.get(SWEEP):
            why, uri = reason(error.__cause__ or error), without_password(uri_of(options))
            log.warning("The MLflow store %s does not answer (%s). %s", uri, why, then)


@contextmanager
def part_of(sweep: str) -> Iterator[None]:
    """Trials that are trained or sent meanwhile are tracked as this sweep's."""
    before = os.environ.get(SWEEP)
    os.environ[SWEEP] = sweep
    try:
        yield
    finally:
        os.environ.pop(SWEEP)
        if before is not None:
            os.environ[SWEEP] = before


def sweep_status(options: Tracking, sweep: str) -> str | None:
    """MLflow's status of a multirun's run, None where the store has none; FINISHED where nothing is tracked. Raises
    UserError as open_run does.
    """
    if options.backend == "none":
        return "FINISHED"
    with _tolerated(options, GOES_ON), explained(uri_of(options)), opened(options) as (client, experiment):
        run = find_sweep(client, experiment, sweep)
        return None if run is None else str(run.info.status)
    return None


def open_sweep(options: Tracking, sweep: str, about: Sweep) -> None:
    """Make the store and the parent run of a multirun, once, before its trials open them in parallel."""
    if options.backend != "none":
        # sweep_status has warned
        with _tolerated(options), explained(uri_of(options)), opened(options) as (client, experiment):
            run_id = str(sweep_run(client, experiment, sweep, about.name))
            client.update_run(run_id, status="RUNNING", name=named(about.name))
            describe_sweep(client, run_id, about)


def restore_sweep(options: Tracking, sweep: str, about: Sweep) -> bool:
    """Make the parent run of a multirun anew where the store has lost it since `open_sweep`. Return whether it had, and
    with it the trials that ended before: the caller sends all of them.
    """
    if options.backend == "none":
        return False
    with forgiven(f"the sweep {sweep}"):
        with opened(options) as (client, experiment):
            run = find_sweep(client, experiment, sweep)
        if run is None or run.info.run_name == unnamed(sweep):  # the latter: made by a trial, which knows no name
            open_sweep(options, sweep, about)
            return True
    return False


def tag_superseded(options: Tracking, sweep: str, identities: Sequence[str]) -> None:
    """Tag the runs of final trials whose point does not win a sweep any more: another point was tried again and won."""
    if options.backend == "none" or not identities:
        return
    with forgiven(f"the sweep {sweep}"), opened(options) as (client, experiment):
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
    cells: Sequence[Cell] = (),
) -> None:
    """Log a multirun's comparison, tables and pictures on its parent run, and how each method did (`cells`).

    records: of the final trials. failed: a line for each trial that failed. With any, the sweep has failed.
    """
    if options.backend == "none":
        return
    with forgiven(f"the sweep {sweep}"):
        with opened(options) as (client, experiment):
            parent = str(sweep_run(client, experiment, sweep))
        log_cells(client, parent, cells)
        log_comparison(client, parent, records, failed)
        if records:
            point_to(client, experiment, parent, "comparison/runs.html", "Comparison of its runs")
        for name, table in tables.items():
            log_table(client, parent, table, f"{name}.json")
        for name, figure in figures.items():
            client.log_figure(parent, figure, f"{name}.png")
        client.set_terminated(parent, "FAILED" if failed else "FINISHED")


def stop_sweep(options: Tracking, sweep: str) -> None:
    """Ctrl-C in a multirun: its parent run is not running any more."""
    if options.backend != "none":
        with forgiven(f"the sweep {sweep}"), opened(options) as (client, experiment):
            client.set_terminated(str(sweep_run(client, experiment, sweep)), "KILLED")


class Silent:
    """tracking=none: nothing is said and nothing imported."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...
    def rows(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


class Late(Silent):
    """The listener of a trial whose store did not answer when it began (tracking.required=false): the store is tried
    again at the trial's end, and gets the whole record then.
    """

    def __init__(self, options: Tracking, labels: Labels | None) -> None:
        self.options, self.labels = options, labels

    def finish(self, record: Record, status: str) -> None:
        with _tolerated(self.options, LATER), _open_run(self.options, record, self.labels) as run:
            run.finish(record, status)


class MlflowRun:
    """One trial's run. A store that fails later than at the start costs a warning, never the training.

    Of an outage two things are said: that it began, and how long it was when the store has taken a batch again. Where
    the store has lost the run (a file that was deleted or replaced, a run that was deleted on a server), all is made
    anew, and the whole record sent.
    """

    def __init__(self, options: Tracking, record: Record, labels: Labels | None) -> None:
        """Find or create the run. Raises what the store raises."""
        self.options, self.uri, self.labels = options, uri_of(options), labels
        self.ended = False
        self.failures: list[float] = []  # when each batch of this outage failed
        self.logged: int | None = None  # the last round that the store has; None: it is asked before the next batch
        self._open(record)
        self.sent = time.monotonic()

    def _open(self, record: Record) -> None:
        with opened(self.options) as (client, experiment):
            self.client: MlflowClient = client
            parent = sweep_run(client, experiment, os.environ.get(SWEEP))
            self.run_id = describe(client, experiment, record, parent, self.labels)
        self.file = file_number(self.uri)
        self._ask()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self.ended:  # nobody said how it ended
            status = "FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED"
            with forgiven(f"run {self.run_id}"):
                self.client.set_terminated(self.run_id, status)

    def rows(self, record: Record) -> None:
        """After each round; sends at most every `every` seconds."""
        if time.monotonic() - self.sent >= self.options.every:
            error = self._tried(record, lambda: self._send(record))
            if error is not None and len(self.failures) == 1:
                log.warning(
                    "MLflow did not take %s: %s. Training goes on and the record has it all; it is sent when MLflow is "
                    "back.", record.meta["name"], reason(error),
                )  # fmt: skip
            self.sent = time.monotonic()

    def finish(self, record: Record, status: str) -> None:
        """What is left, the summary, tables and pictures. `status` as in status.json.

        A sweep's trial waits for a store that is away, since a sweep that is done sends nothing again; not one that was
        interrupted, which the same command goes on with.
        """
        error = self._tried(record, lambda: self._finish(record, status))
        waits = os.environ.get(SWEEP) and status != "interrupted" and self.options.required
        if error is not None and waits and isinstance(refusal(self.uri, error), StorageUnavailable):
            try:
                _patiently(self.options, lambda: _reach(self.options))
                error = self._tried(record, lambda: self._finish(record, status))
            except StorageUnavailable:
                raise
            except UserError as refused:  # a disk that is full by now: no trial's fault
                error = refused
        if error is not None:
            log.warning(
                "MLflow did not take the end of %s (%s): %s. The record has it all; the same command sends it again.",
                record.meta["name"], _batches(len(self.failures)), reason(error),
            )  # fmt: skip
        self.ended = True

    def _tried(self, record: Record, send: Callable[[], None]) -> Exception | None:
        """Send, once more where the store has lost the run. Returns the error where that failed."""
        try:
            try:
                if file_number(self.uri) != self.file:
                    raise Gone("the file was deleted or replaced")
                send()
            except Exception as error:
                if not is_gone(error):
                    raise
                self._open(record)
                send()
                name, uri = record.meta["name"], without_password(self.uri)
                log.warning("MLflow's store %s had lost %s (%s): all of it was sent anew.", uri, name, reason(error))
        except Damaged:  # of the record: no fault of the store's
            raise
        except Exception as error:
            self.failures.append(time.monotonic())
            self.logged = None  # an answer may have been lost after the store took the batch
            return error
        if self.failures:
            away, late = time.monotonic() - self.failures[0], _batches(len(self.failures))
            were = "were" if len(self.failures) > 1 else "was"
            log.warning("%s: MLflow was away for %.0f s; %s %s sent late.", record.meta["name"], away, late, were)
            self.failures = []
        return None

    def _finish(self, record: Record, status: str) -> None:
        self._ask()
        self._send(record)
        if record.done:
            log_amended(self.client, self.run_id, record)
        if status == "finished":  # of a trial that goes on, its points would stand beside those of its end
            log_summary(self.client, self.run_id, record)
        log_artifacts(self.client, self.run_id, record)
        if status == "finished" and _is_final(self.labels):
            log_models(self.client, self.run_id, record)
        self.client.set_terminated(self.run_id, STATUS[status])

    def _ask(self) -> None:
        """How far the run has come is asked of the store, so that no step is sent twice."""
        self.logged = last_step(self.client, self.run_id, MARK)
        self.heard = time.time()

    def _send(self, record: Record) -> None:
        """The rounds that the store lacks; a batch cuts no round and is logged whole or not at all."""
        # time.time goes on while a process or a machine sleeps, as time.monotonic may not
        if self.logged is None or time.time() - self.heard > QUIET:
            self._ask()
        table = record.rounds
        first = int((table["round"] <= (self.logged or 0)).sum()) if len(table) else 0
        batch: list[Metric] = []
        for stamp, row in zip(stamps(record)[first:], table[first:].to_dict("records"), strict=True):
            metrics = metrics_of(row, stamp)
            if len(batch) + len(metrics) > BATCH:
                self._log(batch)
                batch = []
            batch += metrics
        self._log(batch)

    def _log(self, batch: "list[Metric]") -> None:
        if batch:
            self.client.log_batch(self.run_id, metrics=batch)
            self.logged, self.heard = batch[-1].step, time.time()


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
