"""The MLflow store: opened by one process at a time, checked first, its runs found by tag. mlflow comes late (2 s)."""

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pflsweep import __version__
from pflsweep.errors import UserError, shortened, without_password
from pflsweep.patience import Away
from pflsweep.record import Damaged

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from sqlalchemy import Engine

PAGES = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow shows its pages for language models
HOST, PORT = "127.0.0.1", 5000  # where `pflsweep ui` shows a store that is no server itself
TRAINING = "?workflowType=machine_learning"  # ends an address; else MLflow shows a run among those of language models
SOURCE = {"mlflow.source.name": "pflsweep", "mlflow.source.type": "LOCAL"}
NAME = 250  # characters
NOTE = "mlflow.note.content"  # a run's description, in markdown
SETTINGS = {  # MLflow's, of this process
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # a server that does not answer is said in seconds: by itself it tries for
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # minutes, for which training would wait
}
ELSE = "choose another store with tracking.uri=sqlite:///other.db, or train without: tracking=none."

log = logging.getLogger(__name__)


@contextmanager
def opened(options: Mapping[str, Any]) -> "Iterator[tuple[MlflowClient, str]]":
    """Client and experiment id. One process at a time: two that create a store or a sweep collide."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    uri = uri_of(options)
    file = sqlite_file(uri)
    with _alone(file) if file is not None else _alone_on_server(uri):
        if file is not None:
            check_file(file)
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
            folder = _folder(options["experiment"])
            place = (file.parent / "mlruns" / folder).as_uri() if file is not None else None
            yield client, client.create_experiment(options["experiment"], place, PAGES)


def _folder(experiment: str) -> str:
    """One for a name, also for one like team/today."""
    name = experiment.replace("%", "%25").replace("/", "%2F")
    return name if name.strip(".") else name.replace(".", "%2E")


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Holds the store's folder while a store is made or opened."""
    import fcntl

    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # and with it the lock


@contextmanager
def _alone_on_server(uri: str) -> Iterator[None]:
    """The same where machines share a PostgreSQL, which lets go of the lock when a machine dies."""
    if not uri.startswith("postgresql"):
        yield
        return
    import sqlalchemy

    with _engine(uri).connect() as connection:
        connection.execute(sqlalchemy.text("select pg_advisory_lock(hashtext('pflsweep'))"))
        yield


def _engine(uri: str) -> "Engine":
    """Connections to a database on a server, each closed after use."""
    import sqlalchemy

    patience = {"connect_timeout": 10} if uri.startswith("postgresql") else {}
    return sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool, connect_args=patience)


def check_server(uri: str) -> None:
    """Raises where there is no database to connect to."""
    _engine(uri).connect().close()


def check_file(file: Path) -> None:
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
def explained(uri: str) -> Iterator[None]:
    """Turns whatever a store says at its opening into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # sqlite3, SQLAlchemy, MLflow, requests: each has its own
        said = shortened(error)
        told = without_password(f"The MLflow store {uri} cannot be used ({said}).")
        raise Away(f"{told} {_advice(said)} Or {ELSE}") from error


def _advice(said: str) -> str:
    if "schema" in said or "revision" in said:
        return "Another version of MLflow made it: take a copy of the file, then `mlflow db upgrade` it."
    if "not a database" in said or "malformed" in said:
        return "The file is not a database, or a damaged one: move it away."
    if "locked" in said:
        return "Another program holds it: wait for it or end it."
    return "Its place must be there, reachable and writable."


@contextmanager
def forgiven(what: str) -> Iterator[None]:
    """While training, a store that fails is worth a warning: the record has it all and can be sent again."""
    try:
        yield
    except Damaged:  # of what is sent; then the record has not all of it
        raise
    except Exception as error:
        said = without_password(shortened(error))
        log.warning("MLflow did not take %s: %s. The record has it all; the same command sends it again.", what, said)


def uri_of(options: Mapping[str, Any]) -> str:
    uri = str(options["uri"] or "sqlite:///mlflow.db")
    file = sqlite_file(uri)
    if file is None:
        return uri
    whole = f"sqlite:///{file}"
    if sqlite_file(whole) != file:  # `?` and `%` mean something there. MLflow would make a folder called `%3F`: so no /
        whole = f"sqlite:///{quote(str(file), safe='')}"
    return whole + "".join(uri.partition("?")[1:])


def sqlite_file(uri: str) -> Path | None:
    """The file of a sqlite uri as an absolute path: a relative one would follow a later change of folder."""
    from sqlalchemy.engine import make_url

    return Path(make_url(uri).database or "").absolute() if uri.startswith("sqlite:///") else None


def _quiet() -> None:
    """MLflow and alembic tell about every table they create; a trial's lines are its own. So are those on errors."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


# Its runs


def find(client: "MlflowClient", experiment: str, tag: str, value: str) -> "Run | None":
    found = client.search_runs([experiment], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time"])
    return found[0] if found else None


def find_sweep(client: "MlflowClient", experiment: str, sweep: str) -> "Run | None":
    return find(client, experiment, "pflsweep.sweep", sweep)


def sweep_run(client: "MlflowClient", experiment: str, sweep: str | None, name: str | None = None) -> str | None:
    """The parent run of a sweep, created where it is missing; None for a trial of its own."""
    if not sweep:
        return None
    run = find_sweep(client, experiment, sweep)
    tags = {**SOURCE, "pflsweep.sweep": sweep, "pflsweep": __version__}
    run = run or client.create_run(experiment, run_name=named(name or f"sweep-{sweep}"), tags=tags)
    return run.info.run_id


def named(name: str) -> str:
    """As long as a run's name may be; sqlite would take more, PostgreSQL refuses it."""
    return name if len(name) <= NAME else f"{name[: NAME - 3]}..."


def last_step(client: "MlflowClient", run_id: str, metric: str) -> int:
    return max((point.step for point in client.get_metric_history(run_id, metric)), default=0)


def route(experiment: str, run_id: str, file: str = "") -> str:
    """Where MLflow's pages show a run, or a file of it: an address without its server."""
    return f"#/experiments/{experiment}/runs/{run_id}" + (f"/artifacts/{file}" if file else "") + TRAINING


def point_to(client: "MlflowClient", experiment: str, run_id: str, file: str, words: str) -> None:
    """A line of a run's description, once: a link to one of its files."""
    before = client.get_run(run_id).data.tags.get(NOTE, "")
    line = f"[{words}]({route(experiment, run_id, file)})"
    if line not in before:
        client.set_tag(run_id, NOTE, f"{before}\n\n{line}".strip())
