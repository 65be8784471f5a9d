"""Runs in MLflow, for browsing: the only module that imports it, and late (2 s).

The record stays the truth; what MLflow holds is read from it and can be sent again. A trial is one MLflow
run, found again by the tag `identity`. Rounds go out in synchronous batches; how far a run has come is asked
of the store, so that no step is ever logged twice. A sweep is a parent run, found by `pflsweep.sweep`.
"""

import json
import logging
import math
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import pandas as pd

from pflsweep import __version__
from pflsweep.errors import UserError
from pflsweep.keys import flat
from pflsweep.record import Record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

SWEEP = "PFLSWEEP_SWEEP"  # environment variable: the hash of the multirun that a trial belongs to
CHANGING = ("train.rounds",)  # a param can never be changed, so what an extension changes is a tag
LONGEST = 6000  # characters of a param or tag that MLflow keeps
BATCH = 1000  # metrics that one log_batch takes
MARK = "train/seconds"  # a metric of every round: its last step says how far a run has come
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}

PAGES = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow shows its pages for language models
SOURCE = {"mlflow.source.name": "pflsweep", "mlflow.source.type": "LOCAL"}
ELSE = "choose another store with tracking.uri=sqlite:///other.db, or train without: tracking=none."

log = logging.getLogger(__name__)


class Listener(Protocol):
    """What a trial tells while it runs."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None: ...
    def rows(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


def open_run(cfg: Mapping[str, Any], record: Record) -> Listener:
    """The listener of a trial, its run found or created. Raises UserError before anything is trained."""
    options = cfg["tracking"]
    if options["backend"] == "none":
        return Silent()
    with _explained(_uri(options)), _opened(options) as (client, experiment):
        parent = _sweep_run(client, experiment, os.environ.get(SWEEP))
        run = _find(client, experiment, "identity", record.meta["identity"])
        run = run or client.create_run(experiment, run_name=record.meta["name"])
        _describe(client, run, record, parent)
        return MlflowRun(client, run.info.run_id, options["every"])


def open_sweep(cfg: Mapping[str, Any], sweep: str, name: str) -> None:
    """Make the store and the parent run of a multirun, once, before its trials open them in parallel."""
    if cfg["tracking"]["backend"] != "none":
        with _explained(_uri(cfg["tracking"])), _opened(cfg["tracking"]) as (client, experiment):
            run_id = _sweep_run(client, experiment, sweep, name)
            client.update_run(str(run_id), status="RUNNING", name=name)


def finish_sweep(cfg: Mapping[str, Any], sweep: str, records: Sequence[Record]) -> None:
    """Put every trial of a multirun under its parent, those finished before too; log the comparison on it."""
    if cfg["tracking"]["backend"] == "none":
        return
    with _opened(cfg["tracking"]) as (client, experiment):
        parent = str(_sweep_run(client, experiment, sweep))
    with _forgiven(f"the sweep {sweep}"):
        for record in records:
            _adopt(cfg, client, experiment, record, parent)
        _log_comparison(client, parent, records)
        good = all(record.status["status"] == "finished" for record in records)
        client.set_terminated(parent, "FINISHED" if good else "FAILED")


def ui(argv: list[str]) -> int:
    """`pflsweep ui`: MLflow's own pages on the store of this folder, until Ctrl-C."""
    import argparse

    parser = argparse.ArgumentParser(prog="pflsweep ui", description="Browse the runs of this folder in MLflow.")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--uri", default=None, help="the store, as in tracking.uri (sqlite:///mlflow.db)")
    options = parser.parse_args(argv)
    uri = options.uri or "sqlite:///mlflow.db"
    file = _sqlite_file(uri)
    if file is not None and not file.exists():
        raise UserError(f"There is no store '{file}': no trial was tracked in this folder. Go to the one that has it.")
    with _explained(uri):
        if file is not None:
            _check_file(file)
    address = f"http://{options.host}:{options.port}/#/experiments?workflowType=machine_learning"
    print(f"MLflow on {uri}: {address}  (Ctrl-C ends it; a sweep's trials are behind its plus sign)", flush=True)
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--workers", "1"]
    command += ["--host", options.host, "--port", str(options.port)]
    os.execve(sys.executable, command, {**os.environ, **quiet})  # signals go to MLflow itself, nothing is orphaned


class Silent:
    """tracking=none: nothing is said and nothing imported."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None: ...
    def rows(self, record: Record) -> None: ...
    def finish(self, record: Record, status: str) -> None: ...


class MlflowRun:
    """One trial's run. A store that fails later than at the start costs a warning, never the training."""

    def __init__(self, client: "MlflowClient", run_id: str, every: float) -> None:
        self.client, self.run_id, self.every = client, run_id, every
        self.logged = _last_step(client, run_id, MARK)
        self.sent = time.monotonic()
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if not self.ended:  # nobody said how it ended
            status = "FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED"
            with _forgiven(f"run {self.run_id}"):
                self.client.set_terminated(self.run_id, status)

    def rows(self, record: Record) -> None:
        """After each round; sends at most every `every` seconds."""
        if time.monotonic() - self.sent >= self.every:
            with _forgiven(record.meta["name"]):
                self._send(record)
            self.sent = time.monotonic()

    def finish(self, record: Record, status: str) -> None:
        """What is left, the summary, tables and pictures. `status` as in status.json."""
        with _forgiven(record.meta["name"]):
            self._send(record)
            _log_summary(self.client, self.run_id, record)
            _log_artifacts(self.client, self.run_id, record)
            self.client.set_terminated(self.run_id, STATUS[status])
        self.ended = True

    def _send(self, record: Record) -> None:
        """The rounds that the store lacks; a batch cuts no round and is logged whole or not at all."""
        table = record.rounds
        new = table[table["round"] > self.logged] if len(table) else table
        batch: list[Metric] = []
        for stamp, row in zip(_stamps(new), new.to_dict("records"), strict=True):
            metrics = _metrics(row, stamp)
            if len(batch) + len(metrics) > BATCH:
                self._log(batch)
                batch = []
            batch += metrics
        self._log(batch)

    def _log(self, batch: "list[Metric]") -> None:
        if batch:
            self.client.log_batch(self.run_id, metrics=batch)
            self.logged = batch[-1].step


# What a run shows


def _describe(client: "MlflowClient", run: "Run", record: Record, parent: str | None) -> None:
    """Params that are not there yet, tags as they are now, and the state RUNNING whatever it was."""
    from mlflow.entities import Param, RunTag

    tags = _tags(record) | ({"mlflow.parentRunId": parent} if parent else {})
    params: list[Param] = []
    for key, value in flat(record.config).items():
        shown = _text(value)
        if key in CHANGING or run.data.params.get(key, shown) != shown:
            tags[key] = shown
        elif key not in run.data.params:
            params.append(Param(key, shown))
    client.update_run(run.info.run_id, status="RUNNING", name=record.meta["name"])
    for start in range(0, max(len(params), 1), 100):  # as many as one call takes
        some = [RunTag(key, value) for key, value in tags.items()] if start == 0 else []
        client.log_batch(run.info.run_id, params=params[start : start + 100], tags=some)


def _tags(record: Record) -> dict[str, str]:
    meta = record.meta
    tags = {key: _text(meta.get(key)) for key in ("method", "dataset", "partition", "model", "ala", "seed", "identity")}
    folder = record.folder.resolve()
    note = (
        f"**{meta['name']}**, record folder [{folder}]({folder.as_uri()})\n\n"
        "`personal/`: each client's own model on its own test data, mean over clients. `global/`: the "
        "common model. `summary/accuracy` is of the last round, `summary/best_accuracy` of the round "
        "that is best *on test data*."
    )
    return {
        **SOURCE,
        **tags,
        "commit": _text(meta.get("commit")),
        "pflsweep": str(meta.get("version") or __version__),
        "record": str(folder),
        "mlflow.note.content": note,
    }


def _metrics(row: dict[Any, Any], stamp: int) -> "list[Metric]":
    """One round as metrics, grouped by what stands before the slash. MARK is always among them."""
    from mlflow.entities import Metric

    values = {
        MARK: row["seconds"],
        "train/images_per_second": row["images"] / max(row["seconds"], 1e-9),
        "train/lr": row["lr"],
        "wire/floats_down": row["floats_down"],
        "wire/floats_up": row["floats_up"],
    }
    for view in ("personal", "global"):
        if not math.isnan(row.get(f"{view}_accuracy", math.nan)):
            values |= {f"{view}/{k}": row[f"{view}_{k}"] for k in _VIEW}
            values["train/eval_seconds"] = row["eval_seconds"]
    shown = {f"method/{k.removeprefix('show_')}": v for k, v in row.items() if k.startswith("show_")}
    values |= {k: v for k, v in shown.items() if v is not None and not math.isnan(v)}
    return [Metric(k, _finite(v), stamp, int(row["round"])) for k, v in values.items()]


_VIEW = ("accuracy", "accuracy_weighted", "std", "worst10", "loss")


def _log_summary(client: "MlflowClient", run_id: str, record: Record) -> None:
    """The run in a few numbers; after an extension they get a second step, never the same one again."""
    from mlflow.entities import Metric

    from pflsweep.report.compare import summary

    if not _evaluated(record) or _last_step(client, run_id, "summary/accuracy") >= record.done:
        return
    found = summary(record)
    values = {
        "accuracy": found.last,
        "best_accuracy": found.best,
        "best_round": found.best_round,
        "std_over_clients": found.std,
        "worst10": found.worst10,
        "images_per_second": found.images_per_second,
        "floats_per_client_and_round": found.floats_down + found.floats_up,
        "seconds": found.seconds,
    }
    now = int(time.time() * 1000)
    client.log_batch(run_id, [Metric(f"summary/{k}", _finite(v), now, record.done) for k, v in values.items()])


def _log_artifacts(client: "MlflowClient", run_id: str, record: Record) -> None:
    """Config, per-client table, pictures; each replaces the one from before."""
    from pflsweep.report import figures
    from pflsweep.report.compare import record_curves

    client.log_text(run_id, (record.folder / "config.yaml").read_text(), "config.yaml")
    name = record.meta["name"]
    client.log_figure(run_id, figures.labels(record.partition, f"Training labels, {name}"), "figures/labels.png")
    if _evaluated(record):
        _log_table(client, run_id, _client_table(record), "clients.json")
        client.log_figure(run_id, figures.accuracy(record_curves(record), name), "figures/accuracy.png")
    for key, matrix in record.matrices.items():
        if matrix.ndim == 2:
            client.log_figure(run_id, figures.heatmap(matrix, key), f"figures/{key}.png")


def _client_table(record: Record) -> pd.DataFrame:
    """A line a client: what it holds and what its models reach in the last evaluated round."""
    sizes = record.partition.groupby("client")[["train", "validation", "test"]].sum()
    held = record.partition[record.partition["train"] > 0].groupby("client")["class"].nunique().rename("classes")
    last = record.clients[record.clients["round"] == record.clients["round"].max()]
    columns = []
    for view, table in last.set_index("client").groupby("view", sort=False):
        columns.append((table["correct"] / table["n"]).round(4).rename(f"{view} accuracy"))
        columns.append(table["loss"].astype(float).round(4).rename(f"{view} loss"))
    return pd.concat([*columns, sizes, held], axis=1).sort_index().reset_index(names="client")


def _log_comparison(client: "MlflowClient", parent: str, records: Sequence[Record]) -> None:
    """On a parent run: a table of its trials, and the page of `pflsweep report runs` with its figures."""
    import tempfile

    from pflsweep.report import page, tables
    from pflsweep.report.select import Chosen

    if not any(record.status["status"] == "finished" for record in records):
        return
    _log_table(client, parent, tables.brief(records), "comparison.json")
    with tempfile.TemporaryDirectory() as folder:
        page.write(Chosen(list(records), []), Path(folder), None)
        client.log_artifacts(parent, folder, "comparison")


def _log_table(client: "MlflowClient", run_id: str, table: pd.DataFrame, file: str) -> None:
    """As MLflow's log_table, whose tables its pages show; but that appends to a table already there."""
    client.log_text(run_id, table.to_json(orient="split", index=False), file)
    client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([{"path": file, "type": "table"}]))


def _evaluated(record: Record) -> bool:
    table = record.rounds
    return "personal_accuracy" in table and bool(table["personal_accuracy"].notna().any())


def _stamps(rows: pd.DataFrame) -> list[int]:
    """When each round ended, in milliseconds, counted back from now: a batch is no single instant."""
    if not len(rows):
        return []
    took = (rows["seconds"] + rows["eval_seconds"].fillna(0)).to_numpy(dtype=float)
    return [int(stamp) for stamp in (time.time() - (took.sum() - took.cumsum())) * 1000]


def _finite(value: float) -> float:
    """Infinity as NaN: MLflow stores it as 1.8e308, which ruins a chart's axis."""
    return float(value) if math.isfinite(value) else math.nan


def _text(value: Any) -> str:
    """A config value as its YAML would show it."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 30]}... (whole in config.yaml)"


# Runs in the store


def _find(client: "MlflowClient", experiment: str, tag: str, value: str) -> "Run | None":
    found = client.search_runs([experiment], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time"])
    return found[0] if found else None


def _sweep_run(client: "MlflowClient", experiment: str, sweep: str | None, name: str | None = None) -> str | None:
    """The parent run of a sweep, created where it is missing; None for a trial of its own."""
    if not sweep:
        return None
    run = _find(client, experiment, "pflsweep.sweep", sweep)
    tags = {**SOURCE, "pflsweep.sweep": sweep, "pflsweep": __version__}
    run = run or client.create_run(experiment, run_name=name or f"sweep-{sweep}", tags=tags)
    return run.info.run_id


def _adopt(cfg: Mapping[str, Any], client: "MlflowClient", experiment: str, record: Record, parent: str) -> None:
    """A record's run under its parent; a record that was never tracked is sent whole."""
    run = _find(client, experiment, "identity", record.meta["identity"])
    if run is None:
        with open_run(cfg, record) as listener:
            listener.finish(record, record.status["status"])
        run = _find(client, experiment, "identity", record.meta["identity"])
    if run is not None:
        client.set_tag(run.info.run_id, "mlflow.parentRunId", parent)


def _last_step(client: "MlflowClient", run_id: str, metric: str) -> int:
    return max((point.step for point in client.get_metric_history(run_id, metric)), default=0)


# The store


@contextmanager
def _opened(options: Mapping[str, Any]) -> "Iterator[tuple[MlflowClient, str]]":
    """Client and experiment id. One process at a time: two that create a store or a sweep collide."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    uri = _uri(options)
    file = _sqlite_file(uri)
    with _alone(file):
        if file is not None:
            _check_file(file)
        from mlflow import MlflowClient

        _quiet()
        client = MlflowClient(tracking_uri=uri)
        if file is not None:
            with closing(sqlite3.connect(file)) as connection:  # readers and one writer at once, much shorter waits
                connection.execute("pragma journal_mode=wal")
        known = client.get_experiment_by_name(options["experiment"])
        if known is not None:
            yield client, known.experiment_id
        else:
            # beside the store: by itself MLflow takes the working directory
            place = (file.parent / "mlruns" / options["experiment"]).as_uri() if file is not None else None
            yield client, client.create_experiment(options["experiment"], place, PAGES)


@contextmanager
def _alone(file: Path | None) -> Iterator[None]:
    """Holds the store's folder while a store is made or opened."""
    if file is None:
        yield
        return
    import fcntl

    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


def _check_file(file: Path) -> None:
    """Raises where the file cannot be written or is no database of MLflow's."""
    new = not file.exists() or file.stat().st_size == 0
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        connection.execute("begin immediate")
        tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
        connection.rollback()
    if new:
        file.unlink()  # sqlite left it empty
    elif tables and "alembic_version" not in tables:
        raise UserError(
            f"{file} is a database, but not MLflow's (tables: {', '.join(sorted(tables)[:5])}). Move it away, {ELSE}"
        )


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    """Turns whatever a store says at its opening into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # sqlite3, SQLAlchemy, MLflow, requests: each has its own
        said = " ".join(str(error).split())[:300]
        raise UserError(f"The MLflow store {uri} cannot be used ({said}). {_advice(said)} Or {ELSE}") from error


def _advice(said: str) -> str:
    if "schema" in said or "revision" in said:
        return "Another version of MLflow made it: take a copy of the file, then `mlflow db upgrade` it."
    if "not a database" in said or "malformed" in said:
        return "The file is not a database, or a damaged one: move it away."
    if "locked" in said:
        return "Another program holds it: wait for it or end it."
    return "Its place must be there, reachable and writable."


@contextmanager
def _forgiven(what: str) -> Iterator[None]:
    """While training, a store that fails is worth a warning: the record has it all and can be sent again."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        log.warning("MLflow did not take %s: %s. The record has it all; the same command sends it again.", what, said)


def _uri(options: Mapping[str, Any]) -> str:
    file = _sqlite_file(options["uri"] or "sqlite:///mlflow.db")
    return f"sqlite:///{file}" if file is not None else str(options["uri"])


def _sqlite_file(uri: str) -> Path | None:
    """The file of a sqlite uri as an absolute path: a relative one would follow a later change of folder."""
    return Path(uri.removeprefix("sqlite:///")).absolute() if uri.startswith("sqlite:///") else None


def _quiet() -> None:
    """MLflow and alembic tell about every table they create; a trial's lines are its own."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
