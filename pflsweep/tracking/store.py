"""Open, create and check an MLflow store, by one process at a time.

MLflow is imported inside of functions, since that takes 2 seconds.
"""

import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pflsweep.config.options import Tracking
from pflsweep.tracking import moved
from pflsweep.tracking.address import experiment_of, in_memory, sqlite_file, uri_of
from pflsweep.tracking.failures import advice, is_gone, no_store, store_errors
from pflsweep.tracking.lookup import NOTE, TRAINING
from pflsweep.util import files
from pflsweep.util.errors import UserError, without_password
from pflsweep.util.resources import user_cache

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from sqlalchemy import Engine

PAGES = {"mlflow.experimentKind": "custom_model_development"}  # without it MLflow shows its pages for language models
VIEW = "pflsweep"  # key of the run list's columns, stored as MLflow's own "Share view" stores them
# Columns of the run list, with their widths in pixels
COLUMNS = {
    "attributes.`Run Name`": 270,
    "runDateAndNestInfo": 125,
    "metrics.`summary/accuracy`": 120,
    "tags.`method`": 100,
    "tags.`dataset`": 80,
    "tags.`setting`": 160,
    "tags.`role`": 80,
    "duration": 90,
}
ABOUT = (
    "Personalised federated learning, trained by pflsweep. Behind the plus sign of a sweep (`role` sweep) are its "
    "trials: `search` are points that a search has tried, `final` what a report has. `summary/accuracy` is the mean "
    "over clients of their personalised models' accuracy on their own test data (or the rows that "
    "`metrics.rows` and `data.targets` say), in the last round."
)
SHOWN = {
    "selectedColumns": [column for column in COLUMNS if column.startswith(("metrics.", "tags."))],
    "columnOrder": [*COLUMNS],
    "columnWidths": COLUMNS,
}
DESCRIBED = {NOTE: ABOUT, f"mlflow.sharedViewState.{VIEW}": json.dumps(SHOWN)}
# Environment variables of MLflow, unless the user has set them
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # By default MLflow retries for minutes while a server does not answer, and training would wait
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A connection that is kept open would go on writing into a file that was deleted, unnoticed
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
}


@contextmanager
def opened(options: Tracking) -> "Iterator[tuple[MlflowClient, str]]":
    """Open a store, which is created where it is missing. Yield MLflow's client and the id of the experiment.

    One process at a time is let in, since two that create a store or a sweep's run would collide.
    """
    name, file = experiment_of(options), sqlite_file(uri_of(options))
    with _client(options) as (client, known):
        if known is not None:
            _describe(client, known)
            yield client, known.experiment_id
        else:
            # Artifacts go beside the store; by default MLflow puts them into the working directory
            place = (file.parent / moved.FOLDER / moved.folder_of(name)).as_uri() if file is not None else None
            yield client, client.create_experiment(name, place, {**PAGES, **DESCRIBED})


@contextmanager
def looked_up(options: Tracking) -> "Iterator[tuple[MlflowClient, str] | None]":
    """Open a store and create nothing in it. Yield what `opened` does, or None if it has no such experiment."""
    with _client(options) as (client, known):
        yield None if known is None else (client, known.experiment_id)


def _describe(client: "MlflowClient", experiment: "Experiment") -> None:
    """Add description and columns to an experiment that was created by MLflow or an older pflsweep."""
    if experiment.lifecycle_stage == "active":
        for key in DESCRIBED.keys() - experiment.tags.keys():
            client.set_experiment_tag(experiment.experiment_id, key, DESCRIBED[key])


def runs_address(options: Tracking) -> str:
    """Return the address of the experiment's list of runs in MLflow's pages, without the server.

    In a store without such an experiment it is that of the experiment that was changed last.
    """
    with _client(options) as (client, experiment):
        if experiment is None:
            found = client.search_experiments(filter_string="name != 'Default'", order_by=["last_update_time DESC"])
            experiment = found[0] if found else None
        if experiment is None:
            return f"#/experiments{TRAINING}"
        _describe(client, experiment)
        return f"#/experiments/{experiment.experiment_id}/runs{TRAINING}&viewStateShareKey={VIEW}"


@contextmanager
def _client(options: Tracking) -> "Iterator[tuple[MlflowClient, Experiment | None]]":
    """Hold a store, which is created where it is missing. Yield its client, and the experiment where there is one.

    Raises UserError if the uri names no store.
    """
    uri = uri_of(options)
    file = sqlite_file(uri)
    if in_memory(uri) or uri.rstrip("/") in ("http:", "https:"):
        raise no_store(uri)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(file.parent) if file is not None else _alone_on_server(uri):
        if file is not None and check_file(file):
            _make(file)
        client = _mlflow(uri)
        if file is not None:
            # In WAL mode readers and a writer do not wait for each other
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("pragma journal_mode=wal")
        try:
            known = client.get_experiment_by_name(experiment_of(options))
        except Exception as error:
            if uri.startswith("http") or not is_gone(error):
                raise
            # MLflow creates tables only when a process uses a store for the first time
            _make_tables(uri)
            known = client.get_experiment_by_name(experiment_of(options))
        if file is not None:
            moved.correct(file)
        yield client, known


def _mlflow(uri: str) -> "MlflowClient":
    """Import MLflow with the settings above, and return its client of a store."""
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    from mlflow import MlflowClient

    _quiet()
    return MlflowClient(tracking_uri=uri)


def _make(file: Path) -> None:
    """Create a store under a temporary name, and rename it when it is complete.

    MLflow takes seconds to create one, and cannot use a file in which it was interrupted.
    """
    temporary = file.with_name(f".{file.name}{files.TEMPORARY}")
    for name in (temporary.name, file.name):
        # Such files remain of a database that was deleted while it was open; SQLite would apply them to the new one
        for ending in ("", "-wal", "-shm", "-journal"):
            file.with_name(f"{name}{ending}").unlink(missing_ok=True)
    kept = _empty_store()
    if not _copied(kept, temporary):
        _make_tables(uri_of(Tracking.of({"uri": f"sqlite:///{temporary}"})))
        # A cache that cannot be written is left out
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            files.atomic(kept, lambda path: shutil.copyfile(temporary, path))
    # MLflow's experiment `Default` is in it already, with the folder of the project for which the store was created
    with closing(sqlite3.connect(temporary)) as connection, connection:
        place = (file.parent / moved.FOLDER / "0").as_uri()
        connection.execute("update experiments set artifact_location = ? where experiment_id = 0", (place,))
    os.replace(temporary, file)


def _empty_store() -> Path:
    """Return the file in the user's cache that keeps an empty store of this MLflow, since creating one takes 8 s."""
    return user_cache() / f"mlflow-{version('mlflow')}.db"


def _copied(kept: Path, file: Path) -> bool:
    """Copy the cached empty store. Return False, without a file, where there is none or it is damaged."""
    try:
        shutil.copyfile(kept, file)
        with closing(sqlite3.connect(file)) as connection:
            sound = connection.execute("pragma quick_check").fetchone() == ("ok",)
            runs = connection.execute("select count(*) from runs").fetchone()
            made = connection.execute("select count(*) from alembic_version").fetchone()
    except (OSError, sqlite3.Error):
        sound = False
    if not sound or runs != (0,) or made != (1,):
        file.unlink(missing_ok=True)
        return False
    return True


def _make_tables(uri: str) -> None:
    """Create the tables that a store lacks."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    _quiet()
    # The folder is MLflow's default, for its default experiment
    SqlAlchemyStore(uri, "./mlruns")


@contextmanager
def _alone_on_server(uri: str) -> Iterator[None]:
    """Hold a lock in a PostgreSQL database that machines share; it is released when a machine dies. For other servers
    do nothing.
    """
    if not uri.startswith("postgresql"):
        yield
        return
    import sqlalchemy

    with _engine(uri).connect() as connection:
        connection.execute(sqlalchemy.text("select pg_advisory_lock(hashtext('pflsweep'))"))
        yield


def _engine(uri: str) -> "Engine":
    """Return SQLAlchemy's engine for a database on a server. Its connections are closed after use."""
    import sqlalchemy

    timeout = {"connect_timeout": 10} if uri.startswith("postgresql") else {}
    return sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool, connect_args=timeout)


def check_server(uri: str) -> None:
    """Raise an error of SQLAlchemy where there is no database to connect to."""
    _engine(uri).connect().close()


def check_file(file: Path) -> bool:
    """Return whether a store's file is new: missing or empty.

    Raises sqlite3.Error where it cannot be written, UserError where it is another program's database.
    """
    new = not file.exists() or file.stat().st_size == 0
    try:
        with closing(sqlite3.connect(file, timeout=30)) as connection:
            connection.execute("begin immediate")
            tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
            connection.rollback()
    finally:
        if new:
            # Connecting has created an empty file
            file.unlink(missing_ok=True)
    if tables and "alembic_version" not in tables:
        raise UserError(
            f"{file} is a database, but not MLflow's (tables: {', '.join(sorted(tables)[:5])}). Move it away, or "
            f"{advice().instead}"
        )
    return new or not tables


def check_store(options: Tracking) -> str:
    """Check the store of tracking's options without creating anything, and return a line about it.

    Raises UserError if it cannot be used.
    """
    uri = uri_of(options)
    file, shown = sqlite_file(uri), without_password(uri)
    with store_errors(uri):
        if file is not None:
            if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
                raise UserError(f"{file.parent}, the folder of {shown}, is not there, or you may not write to it.")
            if not file.exists():
                return f"{shown}, which the first trial makes"
            check_file(file)
        elif uri.startswith("http"):
            _mlflow(uri).search_experiments(max_results=1)
        elif in_memory(uri):
            raise no_store(uri)
        else:
            check_server(uri)
    return f"{shown} answers"


def file_number(uri: str) -> tuple[int, int] | None:
    """Return device and inode of a store's file, by which a replaced file is noticed; None without a file."""
    file = sqlite_file(uri)
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _quiet() -> None:
    """Silence MLflow and alembic, which log each table that they create. Errors are reported by this package."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
