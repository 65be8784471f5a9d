"""Open and check the MLflow store, by one process at a time, and find runs in it by their tags.

MLflow is imported inside of functions, since that takes 2 seconds.
"""

import hashlib
import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pflsweep import __version__
from pflsweep.config.options import Tracking
from pflsweep.records.record import Damaged
from pflsweep.util import files
from pflsweep.util.errors import UserError, shortened, without_password
from pflsweep.util.resources import user_cache
from pflsweep.util.retry import StorageUnavailable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run
    from sqlalchemy import Engine

PAGES = {"mlflow.experimentKind": "custom_model_development"}  # without it MLflow shows its pages for language models
HOST, PORT = "127.0.0.1", 5000  # where `pflsweep ui` serves a store that is a file or a database
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
    "over clients of their personalised models' accuracy on their own test data, in the last round."
)
TRAINING = "?workflowType=machine_learning"  # end of an address; without it MLflow shows a page for language models
SOURCE = {"mlflow.source.name": "pflsweep", "mlflow.source.type": "LOCAL"}
NAME = 250  # characters of a run's name
NOTE = "mlflow.note.content"  # a run's description, in markdown
SHOWN = {
    "selectedColumns": [column for column in COLUMNS if column.startswith(("metrics.", "tags."))],
    "columnOrder": [*COLUMNS],
    "columnWidths": COLUMNS,
}
DESCRIBED = {NOTE: ABOUT, f"mlflow.sharedViewState.{VIEW}": json.dumps(SHOWN)}
DUPLICATE = "pflsweep.duplicate"  # tag of a run that was ended because another one is of the same trial or sweep
FILE_NAME = 255  # bytes of a file's name that a file system takes
# Environment variables of MLflow, unless the user has set them
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # By default MLflow retries for minutes while a server does not answer, and training would wait
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A connection that is kept open would go on writing into a file that was deleted, unnoticed
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
}
# Parts of messages by which stores say that a run or their tables are gone
GONE = (
    *("no such table", "unable to open database file", "must be in the 'active' state", "RESOURCE_DOES_NOT_EXIST"),
    *('" does not exist', "doesn't exist", "database disk image is malformed"),
)
DEFAULT = "sqlite:///mlflow.db"
ELSE = "choose another store with tracking.uri=sqlite:///other.db, or train without: tracking=none."

log = logging.getLogger(__name__)


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
            place = (file.parent / "mlruns" / _folder(name)).as_uri() if file is not None else None
            yield client, client.create_experiment(name, place, {**PAGES, **DESCRIBED})


def _describe(client: "MlflowClient", experiment: "Experiment") -> None:
    """Add description and columns to an experiment that was created by MLflow or an older pflsweep."""
    if experiment.lifecycle_stage == "active":
        for key in DESCRIBED.keys() - experiment.tags.keys():
            client.set_experiment_tag(experiment.experiment_id, key, DESCRIBED[key])


def listing(options: Tracking) -> str:
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

    Raises UserError where the uri names no store.
    """
    uri = uri_of(options)
    file = sqlite_file(uri)
    if (uri.startswith("sqlite:") and file is None) or uri.rstrip("/") in ("http:", "https:"):
        # sqlite:// is a database in memory, which ends with the process
        raise _no_store(uri)
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


def _folder(experiment: str) -> str:
    """Return the folder of an experiment's artifacts. Names may have slashes, or be too long for a file system."""
    name = experiment.replace("%", "%25").replace("/", "%2F")
    if len(name.encode()) > FILE_NAME:
        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        name = name.encode()[: FILE_NAME - len(digest) - 1].decode(errors="ignore") + f"-{digest}"
    return name if name.strip(".") else name.replace(".", "%2E")


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

    patience = {"connect_timeout": 10} if uri.startswith("postgresql") else {}
    return sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool, connect_args=patience)


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
            f"{file} is a database, but not MLflow's (tables: {', '.join(sorted(tables)[:5])}). Move it away, {ELSE}"
        )
    return new or not tables


def check_store(options: Tracking) -> str:
    """Check the store of tracking's options without creating anything, and return a line about it.

    Raises UserError where it cannot be used.
    """
    uri = uri_of(options)
    file, shown = sqlite_file(uri), without_password(uri)
    with explained(uri):
        if file is not None:
            if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
                raise UserError(f"{file.parent}, the folder of {shown}, is not there, or you may not write to it.")
            if not file.exists():
                return f"{shown}, which the first trial makes"
            check_file(file)
        elif uri.startswith("http"):
            _mlflow(uri).search_experiments(max_results=1)
        elif uri.startswith("sqlite:"):
            raise _no_store(uri)
        else:
            check_server(uri)
    return f"{shown} answers"


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn any error that a store raises into a UserError, see `refusal`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # sqlite3, SQLAlchemy, MLflow and requests raise errors of their own
        raise refusal(uri, error) from error


def refusal(uri: str, error: Exception) -> UserError:
    """Return the error for users where a store cannot be used: StorageUnavailable where it may answer later, DiskFull,
    or a plain UserError.
    """
    file, said, shown = sqlite_file(uri), shortened(error), without_password(uri)
    if isinstance(error, UserError):
        return error
    if any(text in said for text in NO_STORE):
        return _no_store(uri)
    if (full := files.full(error, file.parent if file is not None else Path.cwd())) is not None:
        if file is not None or _cause(error, OSError):
            return files.DiskFull(f"The MLflow store {shown}: {full}")
        return files.DiskFull(
            f"The MLflow store {shown} has no space left, or is read-only ({without_password(said)}). Make space on "
            "its server and give the same command again: it goes on where it was."
        )
    told = without_password(f"The MLflow store {uri} cannot be used ({said}).")
    for words, advice in ADVICE.items():
        if any(word in said for word in words):
            return (StorageUnavailable if "locked" in words else UserError)(f"{told} {advice} Or {ELSE}")
    refused = _cause(error, PermissionError | NotADirectoryError | FileExistsError)
    if file is not None and (refused or not _may_write(file)):
        return UserError(
            f"{told} {file.parent} must be a folder in which you may write; {files.free(file.parent)} are free there. "
            f"Or {ELSE}"
        )
    return StorageUnavailable(
        f"{told} Its place must be there, reachable and writable. Or send runs to it later "
        f"(tracking.required=false), {ELSE}"
    )


def _no_store(uri: str) -> UserError:
    """Return the error to raise where a uri names no store."""
    return UserError(
        f"'{without_password(uri)}' (tracking.uri{_by_variable(uri)}) is no address of an MLflow store. Right are a "
        "file (sqlite:///mlflow.db, sqlite:////data/mlflow.db), a database (postgresql://user@host/name) and a server "
        "of MLflow's (http://host:5000). Or train without: tracking=none."
    )


def _by_variable(uri: str) -> str:
    """Return a note that the environment gives a uri; "" where it does not."""
    return ", by the environment's MLFLOW_TRACKING_URI" if os.environ.get("MLFLOW_TRACKING_URI") == uri else ""


# Parts of errors that mean a wrong uri, and of errors for which there is better advice than to check the place
NO_STORE = ("unsupported URI", "filesystem tracking backend", "load plugin", "Could not parse")
ADVICE = {
    ("schema", "revision"): "Another version of MLflow made it: take a copy of the file, then `mlflow db upgrade` it.",
    ("not a database", "malformed"): "The file is not a database, or a damaged one: move it away.",
    ("locked",): "Another program holds it: wait for it or end it.",
    ("deleted",): "The experiment was deleted in MLflow: restore it there, or choose another: tracking.experiment.",
}


def _cause(error: BaseException | None, kind: Any) -> bool:
    """Return whether an error, or one in its chain of causes, is of a class."""
    return error is not None and (isinstance(error, kind) or _cause(error.__cause__ or error.__context__, kind))


def _may_write(file: Path) -> bool:
    """Return whether the user may write a store's file and its folder."""
    return os.access(file.parent, os.W_OK | os.X_OK) and (not file.exists() or os.access(file, os.R_OK | os.W_OK))


class Gone(Exception):  # noqa: N818 (a state)
    """The store's file was deleted or replaced since it was opened."""


def file_number(uri: str) -> tuple[int, int] | None:
    """Return device and inode of a store's file, by which a replaced file is noticed; None without a file."""
    file = sqlite_file(uri)
    try:
        found = None if file is None else file.stat()
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def is_gone(error: Exception) -> bool:
    """Return whether an error says that the store has lost a run or its tables: it was deleted or replaced."""
    if isinstance(error, Gone):
        return True
    said = f"{getattr(error, 'error_code', '')} {error}"
    return any(text in said for text in GONE)


@contextmanager
def forgiven(what: str) -> Iterator[None]:
    """Turn a store's error into a warning: the record has everything and can be sent again. what: what is sent."""
    try:
        yield
    except Damaged:
        # The record that is sent is damaged, so it does not have everything
        raise
    except Exception as error:
        said = reason(error)
        log.warning("MLflow did not take %s: %s. The record has it all; the same command sends it again.", what, said)


def reason(error: BaseException) -> str:
    """Return an error's message for a warning: short and without passwords."""
    return without_password(shortened(error))


def experiment_of(options: Tracking) -> str:
    """Return the name of the experiment. An environment variable that is set to "" counts as not set."""
    return str(options.experiment or "pflsweep")


def destination(options: Tracking) -> str:
    """Return a line that says where runs go, and which environment variables say so."""
    variables = {"MLFLOW_TRACKING_URI": options.uri, "MLFLOW_EXPERIMENT_NAME": options.experiment}
    said = [name for name, value in variables.items() if value and os.environ.get(name) == value]
    by = f" ({', '.join(said)})" if said else ""
    shown = without_password(str(options.uri or DEFAULT))
    return f"Runs go to MLflow at {shown}, experiment {experiment_of(options)}{by}"


def uri_of(options: Tracking) -> str:
    """Return the uri of a store. That of a file is made absolute and quoted for SQLAlchemy."""
    uri = str(options.uri or DEFAULT)
    file = sqlite_file(uri)
    if file is None:
        return uri
    whole = f"sqlite:///{file}"
    # `?` and `%` have a meaning in a uri. Slashes are quoted too: else MLflow would create a folder called `%3F`
    if sqlite_file(whole) != file:
        whole = f"sqlite:///{quote(str(file), safe='')}"
    return whole + "".join(uri.partition("?")[1:])


def sqlite_file(uri: str) -> Path | None:
    """Return the file of a sqlite uri, None for others. It is absolute, so that a later change of folder does not move
    it.
    """
    from sqlalchemy.engine import make_url

    name = make_url(uri).database if uri.startswith("sqlite:///") else None
    return Path(name).absolute() if name else None


def _quiet() -> None:
    """Silence MLflow and alembic, which log each table that they create. Errors are reported by this package."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


# Its runs


def find(client: "MlflowClient", experiment: str, tag: str, value: str) -> "Run | None":
    """Return the first run with a tag; None without any."""
    found = client.search_runs([experiment], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time"])
    return found[0] if found else None


def adopt(client: "MlflowClient", experiment: str, tag: str, value: str) -> "Run | None":
    """Return the first run with a tag; None without any. Others, which two processes created at once, are ended."""
    found = client.search_runs([experiment], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time"])
    for other in found[1:]:
        if DUPLICATE not in other.data.tags:
            client.set_terminated(other.info.run_id, "KILLED")
            client.set_tag(other.info.run_id, DUPLICATE, f"of run {found[0].info.run_id}, which has the same {tag}")
    return found[0] if found else None


def find_sweep(client: "MlflowClient", experiment: str, sweep: str) -> "Run | None":
    """Return the run of a sweep; None without any. sweep: the id of its plan."""
    return find(client, experiment, "pflsweep.sweep", sweep)


def sweep_run(client: "MlflowClient", experiment: str, sweep: str | None, name: str | None = None) -> str | None:
    """Return the id of a sweep's run, which is created where it is missing. Return None for a trial without a sweep."""
    if not sweep:
        return None
    run = adopt(client, experiment, "pflsweep.sweep", sweep)
    tags = {**SOURCE, "pflsweep.sweep": sweep, "pflsweep": __version__}
    run = run or client.create_run(experiment, run_name=named(name or unnamed(sweep)), tags=tags)
    return run.info.run_id


def unnamed(sweep: str) -> str:
    """Return the name of a sweep's run that was created by one of its trials, which does not know the sweep's name."""
    return f"sweep-{sweep}"


def named(name: str) -> str:
    """Cut a run's name to the length that PostgreSQL allows."""
    return name if len(name) <= NAME else f"{name[: NAME - 3]}..."


def last_step(client: "MlflowClient", run_id: str, metric: str) -> int:
    """Return the last step of a run's metric; 0 without any."""
    return max((point.step for point in client.get_metric_history(run_id, metric)), default=0)


def route(experiment: str, run_id: str, file: str = "") -> str:
    """Return the address of a run, or of one of its files, in MLflow's pages, without the server."""
    return f"#/experiments/{experiment}/runs/{run_id}" + (f"/artifacts/{file}" if file else "") + TRAINING


def point_to(client: "MlflowClient", experiment: str, run_id: str, file: str, words: str) -> None:
    """Add a link to one of a run's files to its description, unless it is there. words: the link's text."""
    _add_line(client, run_id, f"[{words}]({route(experiment, run_id, file)})")


def show_picture(client: "MlflowClient", run_id: str, file: str, words: str) -> None:
    """Add a picture, one of a run's files, to its description, unless it is there. words: the picture's text."""
    _add_line(client, run_id, f"![{words}](get-artifact?path={quote(file, safe='')}&run_uuid={run_id})")


def _add_line(client: "MlflowClient", run_id: str, line: str) -> None:
    before = client.get_run(run_id).data.tags.get(NOTE, "")
    if line not in before:
        client.set_tag(run_id, NOTE, f"{before}\n\n{line}".strip())
