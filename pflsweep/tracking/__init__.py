"""Runs in MLflow, for browsing: the only package that imports it.

The record stays the truth; what MLflow holds is read from it and can be sent again. A trial is one MLflow
run, found again by the tag `identity`. Rounds go out in synchronous batches; how far a run has come is asked
of the store, so that no step is ever logged twice. A sweep is a parent run, found by `pflsweep.sweep`.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from pflsweep.errors import Parser, UserError, without_password
from pflsweep.patience import patiently
from pflsweep.record import Record
from pflsweep.tracking.shows import (
    MARK,
    describe,
    log_amended,
    log_artifacts,
    log_comparison,
    log_summary,
    log_table,
    metrics_of,
    stamps,
)
from pflsweep.tracking.store import (
    HOST,
    PORT,
    TRAINING,
    check_file,
    check_server,
    explained,
    find,
    find_sweep,
    forgiven,
    last_step,
    named,
    opened,
    point_to,
    sqlite_file,
    sweep_run,
    uri_of,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from mlflow import MlflowClient
    from mlflow.entities import Metric

T = TypeVar("T")
SWEEP = "PFLSWEEP_SWEEP"  # environment variable: the hash of the multirun that a trial belongs to
BATCH = 1000  # metrics that one log_batch takes
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "pruned": "KILLED", "running": "RUNNING"}


class Listener(Protocol):
    """What a trial tells while it runs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None: ...
    def rows(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


def open_run(cfg: Mapping[str, Any], record: Record) -> Listener:
    """The listener of a trial, its run found or created. Raises UserError before anything is trained."""
    return Silent() if cfg["tracking"]["backend"] == "none" else _patiently(lambda: _open_run(cfg["tracking"], record))


def _open_run(options: Mapping[str, Any], record: Record) -> Listener:
    with explained(uri_of(options)), opened(options) as (client, experiment):
        parent = sweep_run(client, experiment, os.environ.get(SWEEP))
        run = find(client, experiment, "identity", record.meta["identity"])
        run = run or client.create_run(experiment, run_name=named(record.meta["name"]))
        describe(client, run, record, parent)
        return MlflowRun(client, run.info.run_id, options)


def send(cfg: Mapping[str, Any], record: Record) -> None:
    """A whole record at once, where the store does not have all of it. Raises UserError as open_run does."""
    if cfg["tracking"]["backend"] == "none":
        return
    how = record.status["status"]
    how = "interrupted" if how == "running" else how  # nothing runs now
    if not _patiently(lambda: _is_sent(cfg["tracking"], record, STATUS[how])):
        with open_run(cfg, record) as listener:
            listener.finish(record, how)


def _is_sent(options: Mapping[str, Any], record: Record, status: str) -> bool:
    with explained(uri_of(options)), opened(options) as (client, experiment):
        known = find(client, experiment, "identity", record.meta["identity"])
        whole = known is not None and last_step(client, known.info.run_id, MARK) >= record.done
    return known is not None and whole and known.info.status == status


def _reach(options: Mapping[str, Any]) -> None:
    with explained(uri_of(options)), opened(options):
        pass


def _patiently(call: Callable[[], T]) -> T:
    """A sweep's trials wait for a store that is away: its start has shown that it can be used."""
    return patiently(call) if os.environ.get(SWEEP) else call()


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


def sweep_status(cfg: Mapping[str, Any], sweep: str) -> str | None:
    """MLflow's status of a multirun's run, None where the store has none; FINISHED where nothing is tracked. Raises
    UserError as open_run does.
    """
    if cfg["tracking"]["backend"] == "none":
        return "FINISHED"
    with explained(uri_of(cfg["tracking"])), opened(cfg["tracking"]) as (client, experiment):
        run = find_sweep(client, experiment, sweep)
        return None if run is None else str(run.info.status)


def open_sweep(cfg: Mapping[str, Any], sweep: str, name: str) -> None:
    """Make the store and the parent run of a multirun, once, before its trials open them in parallel."""
    if cfg["tracking"]["backend"] != "none":
        with explained(uri_of(cfg["tracking"])), opened(cfg["tracking"]) as (client, experiment):
            run_id = sweep_run(client, experiment, sweep, name)
            client.update_run(str(run_id), status="RUNNING", name=named(name))


def finish_sweep(
    cfg: Mapping[str, Any],
    sweep: str,
    records: Sequence[Record],
    failed: Sequence[str],
    tables: Mapping[str, "pd.DataFrame"],
    figures: Mapping[str, "Figure"],
) -> None:
    """Log a multirun's comparison, tables and pictures on its parent run.

    records: of the final trials. failed: a line for each trial that failed. With any, the sweep has failed.
    """
    if cfg["tracking"]["backend"] == "none":
        return
    with forgiven(f"the sweep {sweep}"):
        with opened(cfg["tracking"]) as (client, experiment):
            parent = str(sweep_run(client, experiment, sweep))
        log_comparison(client, parent, records, failed)
        if records:
            point_to(client, experiment, parent, "comparison/runs.html", "Comparison of its runs")
        for name, table in tables.items():
            log_table(client, parent, table, f"{name}.json")
        for name, figure in figures.items():
            client.log_figure(parent, figure, f"{name}.png")
        client.set_terminated(parent, "FAILED" if failed else "FINISHED")


def stop_sweep(cfg: Mapping[str, Any], sweep: str) -> None:
    """Ctrl-C in a multirun: its parent run is not running any more."""
    if cfg["tracking"]["backend"] != "none":
        with forgiven(f"the sweep {sweep}"), opened(cfg["tracking"]) as (client, experiment):
            client.set_terminated(str(sweep_run(client, experiment, sweep)), "KILLED")


def ui(argv: list[str]) -> int:
    """`pflsweep ui`: MLflow's own pages on the store of this folder, until Ctrl-C."""
    parser = Parser(prog="pflsweep ui", description="Browse the runs of this folder in MLflow.")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--uri", default=None, help="the store, as in tracking.uri (sqlite:///mlflow.db)")
    options = parser.parse_args(argv)
    uri = options.uri or "sqlite:///mlflow.db"
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise UserError(f"There is no store '{file}': no trial was tracked in this folder. Go to the one that has it.")
    if uri.startswith("http"):
        shown = without_password(uri)
        raise UserError(f"--uri {shown} is a server, which has these pages itself: open its address in a browser.")
    with explained(uri):
        check_file(file) if file is not None else check_server(uri)
    _check_port(options.host, options.port)
    address = f"http://{options.host}:{options.port}/#/experiments{TRAINING}"
    where = f"MLflow on {without_password(uri)}: {address}"
    print(f"{where}  (Ctrl-C ends it; a sweep's trials are behind its plus sign)", flush=True)
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--workers", "1"]
    command += ["--host", options.host, "--port", str(options.port)]
    os.execve(sys.executable, command, {**os.environ, **quiet})  # signals go to MLflow itself, nothing is orphaned


def _check_port(host: str, port: int) -> None:
    """Raises UserError where MLflow could not listen; it would say so on fifty lines."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as MLflow does: one just left is free
        try:
            tried.bind((host, port))
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise UserError(f"port {port} is taken: --port {port + 1}") from error
            raise UserError(f"--host {host} --port {port} cannot be used ({error}).") from error


class Silent:
    """tracking=none: nothing is said and nothing imported."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...
    def rows(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


class MlflowRun:
    """One trial's run. A store that fails later than at the start costs a warning, never the training."""

    def __init__(self, client: "MlflowClient", run_id: str, options: Mapping[str, Any]) -> None:
        self.client, self.run_id, self.options = client, run_id, options
        self.logged = last_step(client, run_id, MARK)
        self.sent = time.monotonic()
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self.ended:  # nobody said how it ended
            status = "FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED"
            with forgiven(f"run {self.run_id}"):
                self.client.set_terminated(self.run_id, status)

    def rows(self, record: Record) -> None:
        """After each round; sends at most every `every` seconds."""
        if time.monotonic() - self.sent >= self.options["every"]:
            with forgiven(record.meta["name"]):
                self._send(record)
            self.sent = time.monotonic()

    def finish(self, record: Record, status: str) -> None:
        """What is left, the summary, tables and pictures. `status` as in status.json.

        A sweep's trial waits for a store that is away, since a sweep that is done sends nothing again.
        """
        with forgiven(record.meta["name"]):
            self._finish(record, status)
        if not self.ended and os.environ.get(SWEEP):
            _patiently(lambda: _reach(self.options))
            with forgiven(record.meta["name"]):
                self._finish(record, status)
        self.ended = True

    def _finish(self, record: Record, status: str) -> None:
        self._send(record)
        if record.done:
            log_amended(self.client, self.run_id, record)
        log_summary(self.client, self.run_id, record)
        log_artifacts(self.client, self.run_id, record)
        self.client.set_terminated(self.run_id, STATUS[status])
        self.ended = True

    def _send(self, record: Record) -> None:
        """The rounds that the store lacks; a batch cuts no round and is logged whole or not at all."""
        table = record.rounds
        new = table[table["round"] > self.logged] if len(table) else table
        batch: list[Metric] = []
        for stamp, row in zip(stamps(new), new.to_dict("records"), strict=True):
            metrics = metrics_of(row, stamp)
            if len(batch) + len(metrics) > BATCH:
                self._log(batch)
                batch = []
            batch += metrics
        self._log(batch)

    def _log(self, batch: "list[Metric]") -> None:
        if batch:
            self.client.log_batch(self.run_id, metrics=batch)
            self.logged = batch[-1].step
