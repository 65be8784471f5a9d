"""Track trials as MLflow runs, for browsing. This package is the only one that imports MLflow.

All that MLflow holds is read from the record and can be sent again. A trial is one run, which is found by the tag
`identity`. Rounds are sent in synchronous batches; the store is asked how far a run has been logged, so that no step is
logged twice. A sweep is a parent run (sweep_run.py).
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from pflsweep.config.options import Tracking
from pflsweep.records.errors import Damaged
from pflsweep.records.record import Record
from pflsweep.tracking.address import uri_of
from pflsweep.tracking.failures import Gone, as_user_error, errors_as_warnings, is_gone, reason, store_errors
from pflsweep.tracking.logging import (
    MARK,
    Labels,
    describe,
    log_amended,
    log_artifacts,
    log_summary,
    metrics_of,
    mlflow_text,
    relabel,
    stamps,
)
from pflsweep.tracking.lookup import ensure_sweep, find, last_step
from pflsweep.tracking.models import log_models
from pflsweep.tracking.store import file_number, opened
from pflsweep.util.errors import UserError, without_password
from pflsweep.util.retry import StorageUnavailable, retry_until_available

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

T = TypeVar("T")
SWEEP = "PFLSWEEP_SWEEP"  # environment variable: the plan's id of the sweep that trials belong to
BATCH = 1000  # metrics that one log_batch takes
# Wait this many times the duration of a failed batch before the next, so that training is at most 10% slower
BACKOFF = 10.0
QUIET = 30.0  # seconds without a batch after which the store is asked again: another worker may have sent rounds
INCOMPLETE = "pflsweep.incomplete"  # tag of a run that has ended but is not whole: what could not be stored
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "pruned": "KILLED", "running": "RUNNING"}
LATER = "The record has it all; the same command sends it."
GOES_ON = "Training goes on without it (tracking.required=false); it is tried again at the end."

log = logging.getLogger(__name__)


class RunTracker(Protocol):
    """The tracking of a trial, a context manager. It is given the trial's record after each round and at its end."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None: ...
    def log_rounds(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


def open_run(options: Tracking, record: Record, labels: Labels | None = None) -> RunTracker:
    """Find or create a trial's run, and return its tracker. labels: the trial's name and tags in its sweep.

    Raises UserError if the store cannot be used, before anything is trained.
    """
    if options.backend == "none":
        return NoTracker()
    with tolerate_unavailable(options, GOES_ON):
        return _retrying(options, lambda: _open_run(options, record, labels))
    return DeferredTracker(options, labels)


def _open_run(options: Tracking, record: Record, labels: Labels | None) -> RunTracker:
    """Open a trial's run once. Raises UserError."""
    with store_errors(uri_of(options)):
        return MlflowTracker(options, record, labels)


def send(options: Tracking, record: Record, labels: Labels | None = None) -> bool:
    """Send a whole record, unless the store has all of it; return whether it was sent. labels: the trial's name and
    tags in its sweep.

    Raises UserError as `open_run` does.
    """
    if options.backend == "none":
        return False
    how = record.status["status"]
    # The trial does not run now: its process was killed
    how = "interrupted" if how == "running" else how
    with tolerate_unavailable(options, LATER):
        if not _retrying(options, lambda: _is_sent(options, record, STATUS[how], labels)):
            with _retrying(options, lambda: _open_run(options, record, labels)) as tracker:
                tracker.finish(record, how)
            return True
    return False


def _is_sent(options: Tracking, record: Record, status: str, labels: Labels | None) -> bool:
    """Return whether the store has all rounds and the status of a record. If so, update labels and models."""
    with store_errors(uri_of(options)), opened(options) as (client, experiment):
        known = find(client, experiment, "identity", record.meta["identity"])
        if known is None or known.info.status != status or INCOMPLETE in known.data.tags:
            return False
        if last_step(client, known.info.run_id, MARK) < record.done:
            return False
        if labels is not None:
            relabel(client, known, ensure_sweep(client, experiment, os.environ.get(SWEEP)), labels)
        # Models may have been saved since, from the checkpoint
        if status == "FINISHED" and _is_final(labels):
            log_models(client, known.info.run_id, record)
    return True


def _is_final(labels: Labels | None) -> bool:
    """Return whether a trial is not one of a search. The models of a search's trials are not logged."""
    return labels is None or labels.tags["role"] == "final"


@contextmanager
def end_run(client: "MlflowClient", run_id: str, status: str) -> Iterator[None]:
    """End a run after metrics and files were sent to it within this context, also where one cannot be stored: otherwise
    a trial that is finished would be shown as running for ever. A tag then marks the run, so that the same command
    sends it again. Raises what the context raises.
    """
    try:
        yield
    except Exception as error:
        # The store itself may be unavailable, which the first error says
        with suppress(Exception):
            client.set_tag(run_id, INCOMPLETE, mlflow_text(reason(error)))
            client.set_terminated(run_id, status)
        raise
    if INCOMPLETE in client.get_run(run_id).data.tags:
        client.delete_tag(run_id, INCOMPLETE)
    client.set_terminated(run_id, status)


def reach(options: Tracking) -> None:
    """Open a store, which is created where it is missing. Raises UserError if it cannot be used now."""
    with store_errors(uri_of(options)), opened(options):
        pass


def _retrying(options: Tracking, call: Callable[[], T]) -> T:
    """Make a call. Within a sweep retry it while the store is unavailable, since it worked at the sweep's start."""
    return retry_until_available(call) if os.environ.get(SWEEP) and options.required else call()


@contextmanager
def tolerate_unavailable(options: Tracking, then: str = "") -> Iterator[None]:
    """Ignore a store that does not answer, where tracking.required is false.

    then: what the warning says will happen; "" for no warning. A sweep warns at its start alone.
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
    """Context within which trials are tracked as this sweep's. sweep: the id of its plan."""
    before = os.environ.get(SWEEP)
    os.environ[SWEEP] = sweep
    try:
        yield
    finally:
        os.environ.pop(SWEEP)
        if before is not None:
            os.environ[SWEEP] = before


class NoTracker:
    """The tracker for tracking=none, which does nothing and imports nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...
    def log_rounds(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


class DeferredTracker(NoTracker):
    """The tracker of a trial whose store did not answer at its beginning (tracking.required=false).

    At the trial's end the store is tried again, and gets the whole record.
    """

    def __init__(self, options: Tracking, labels: Labels | None) -> None:
        self.options, self.labels = options, labels

    def finish(self, record: Record, status: str) -> None:
        # An error here would take the place of the trial's own result
        with (
            errors_as_warnings(record.meta["name"]),
            tolerate_unavailable(self.options, LATER),
            _open_run(self.options, record, self.labels) as run,
        ):
            run.finish(record, status)


class MlflowTracker:
    """The tracker that sends a trial to its run. After the start, a store that fails causes a warning, never an error.

    A warning is given when an outage begins, and when it ends one that says how long it was. Where the store has lost
    the run (its file was deleted or replaced, or the run was deleted on a server), the run is created again and the
    whole record is sent.
    """

    def __init__(self, options: Tracking, record: Record, labels: Labels | None) -> None:
        """Find or create the run. Raises what the store raises."""
        self.options, self.uri, self.labels = options, uri_of(options), labels
        self.ended = False
        self.failures: list[float] = []  # monotonic seconds at which each batch of this outage failed
        self.logged: int | None = None  # the last round that the store has; None: unknown
        self._open(record)
        self.sent, self.pause = time.monotonic(), options.every

    def _open(self, record: Record) -> None:
        """Find or create the run, and ask how far it has been logged."""
        with opened(self.options) as (client, experiment):
            self.client: MlflowClient = client
            parent = ensure_sweep(client, experiment, os.environ.get(SWEEP))
            self.run_id = describe(client, experiment, record, parent, self.labels)
        self.file = file_number(self.uri)
        self._ask()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # An exception came before `finish`
        if not self.ended:
            status = "FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED"
            with errors_as_warnings(f"run {self.run_id}"):
                self.client.set_terminated(self.run_id, status)

    def log_rounds(self, record: Record) -> None:
        """Send the rounds that the store lacks, at most once in `tracking.every` seconds, less often if it fails."""
        began = time.monotonic()
        if began - self.sent >= self.pause:
            error = self._tried(record, lambda: self._send(record))
            if error is not None and len(self.failures) == 1:
                log.warning(
                    "MLflow did not take %s: %s. Training goes on and the record has it all; it is sent when MLflow is "
                    "back.", record.meta["name"], reason(error),
                )  # fmt: skip
            self.sent = time.monotonic()
            # A server that hangs, or a firewall that drops packets, takes each batch until MLflow's timeout
            took = self.sent - began
            self.pause = self.options.every if error is None else max(self.options.every, BACKOFF * took)

    def finish(self, record: Record, status: str) -> None:
        """Send the remaining rounds, the summary, tables and pictures, and end the run. status: as in status.json.

        Within a sweep, wait for a store that is unavailable, since a sweep that is done sends nothing again. A trial
        that was interrupted does not wait: the same command continues it.
        """
        error = self._tried(record, lambda: self._finish(record, status))
        waits = os.environ.get(SWEEP) and status != "interrupted" and self.options.required
        if error is not None and waits and isinstance(as_user_error(self.uri, error), StorageUnavailable):
            try:
                _retrying(self.options, lambda: reach(self.options))
                error = self._tried(record, lambda: self._finish(record, status))
            except StorageUnavailable:
                raise
            except UserError as refused:
                # Such as a disk that is full by now, which is not the trial's fault
                error = refused
        if error is not None:
            # A sweep sends what is finished again, and no point that was pruned or has diverged
            again = "; the same command sends it again" if status in ("finished", "interrupted") else ""
            log.warning(
                "MLflow did not take the end of %s (%s): %s. The record has it all%s.",
                record.meta["name"], _batches(len(self.failures)), reason(error), again,
            )  # fmt: skip
        self.ended = True

    def _tried(self, record: Record, send: Callable[[], None]) -> Exception | None:
        """Call `send`, and call it again where the store has lost the run. Return the error where that failed."""
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
        except Damaged:
            # The record is damaged, which is not the store's fault
            raise
        except Exception as error:
            self.failures.append(time.monotonic())
            # The store may have taken the batch although the answer was lost
            self.logged = None
            return error
        if self.failures:
            gone, late = time.monotonic() - self.failures[0], _batches(len(self.failures))
            were = "were" if len(self.failures) > 1 else "was"
            log.warning(
                "%s: MLflow was unavailable for %.0f s; %s %s sent late.", record.meta["name"], gone, late, were
            )
            self.failures = []
        return None

    def _finish(self, record: Record, status: str) -> None:
        """Send all that the store lacks, and end the run."""
        with end_run(self.client, self.run_id, STATUS[status]):
            self._ask()
            self._send(record)
            if record.done:
                log_amended(self.client, self.run_id, record)
            # The summary of a trial that goes on later would be a second point beside that of its end
            if status == "finished":
                log_summary(self.client, self.run_id, record)
            log_artifacts(self.client, self.run_id, record)
            if status == "finished" and _is_final(self.labels):
                log_models(self.client, self.run_id, record)

    def _ask(self) -> None:
        """Ask the store how far the run has been logged, so that no step is sent twice."""
        self.logged = last_step(self.client, self.run_id, MARK)
        self.heard = time.time()

    def _send(self, record: Record) -> None:
        """Send the rounds that the store lacks. A batch has whole rounds, and is logged whole or not at all."""
        # Unlike time.monotonic, time.time also counts while a process or machine is suspended
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
        """Log a batch of metrics, and note its last round."""
        if batch:
            self.client.log_batch(self.run_id, metrics=batch)
            self.logged, self.heard = batch[-1].step, time.time()


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
