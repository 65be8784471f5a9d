"""Open Optuna's storage, from many processes at once, and retry its calls while the database is unavailable."""

import logging
import os
import sqlite3
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError

from pflsweep.config.options import Tracking
from pflsweep.sweep.plan import Plan
from pflsweep.tracking.address import in_memory, sqlite_file, uri_of
from pflsweep.util import files, retry
from pflsweep.util.errors import UserError, shortened, without_password
from pflsweep.util.retry import StorageLost, StorageUnavailable, retry_until_available

PORTS = {"postgresql": 5432, "mysql": 3306}  # where a server listens whose URL has no port
SILENCE = 5  # heartbeats that a worker may miss before its lease expires
T = TypeVar("T")


def storage_url(plan: Plan) -> str:
    """Return the URL of the database that a sweep's workers share. Raises UserError as `check_address`."""
    check_address(plan.workers.storage, plan.groups[0].config.tracking)
    # URL.create quotes a folder's name such as `q?x`
    file = URL.create("sqlite", database=str(plan.folder / "optuna.db"))
    return plan.workers.storage or file.render_as_string()


def check_address(storage: str | None, tracking: Tracking) -> None:
    """Raise UserError if workers.storage is a database that workers cannot share, or the one of MLflow."""
    if storage is None:
        return
    if in_memory(storage):
        raise UserError(
            f"workers.storage: '{storage}' is a database in memory, which workers cannot share. Name a file: "
            "sqlite:///file.db."
        )
    if _database(storage) == _database(uri_of(tracking)):
        raise UserError(
            f"workers.storage is '{without_password(storage)}', the database of MLflow (tracking.uri), but Optuna and "
            "MLflow have tables of the same names. Give each a database of its own, such as .../optuna and .../mlflow."
        )


def _database(url: str) -> tuple[Any, ...]:
    """Return what tells databases apart in their URLs: of SQLite the file, of a server its host, port and database, and
    options such as PostgreSQL's search path.
    """
    if file := sqlite_file(url):
        return ("sqlite", file.resolve())
    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):  # ValueError where the port is not a number
        return (url,)
    kind = parts.get_backend_name()
    return (kind, parts.host, parts.port or PORTS.get(kind), parts.database, parts.query.get("options"))


def open_storage(url: str, heartbeat: int) -> RDBStorage:
    """Open Optuna's storage. heartbeat: seconds between two heartbeats. Raises UserError if it cannot be used."""
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("postgresql"):
        # Without a limit (in seconds) a connection to a machine that is off would wait for very long
        options["connect_args"] = {"connect_timeout": 10}
    file = sqlite_file(url)
    if file is not None:
        options = {"connect_args": {"timeout": 60}}
        _prepare_sqlite(file)
    try:
        with _quiet(), warnings.catch_warnings():
            # Optuna warns that heartbeats are experimental
            warnings.simplefilter("ignore")
            storage = _open_with_retries(url, options, heartbeat)
    except Exception as error:
        # SQLAlchemy, the driver and alembic raise errors of their own
        if no_room := files.as_disk_full(error, place_of(url)):
            raise no_room from error
        reason = without_password(shortened(error))
        raise UserError(
            f"workers.storage: '{without_password(url)}' cannot be used as Optuna's storage ({reason}). It has to be "
            "there and writable: sqlite:///file.db on one machine, postgresql://user:password@host/name for many."
        ) from error
    if file is not None:
        from sqlalchemy import event

        event.listen(storage.engine, "connect", lambda connection, _: connection.execute("pragma synchronous=normal"))
        storage.engine.dispose()  # of connections that were made before
    weakref.finalize(storage, _close, storage.engine, os.getpid()).atexit = False
    return storage


def _close(engine: Engine, process: int) -> None:
    """Close the connections of a storage that nothing refers to any more.

    Otherwise the garbage collector finds them open, which Python 3.13 warns of. A fork shares them with its parent, and
    must leave them alone. process: the one that opened them.
    """
    if os.getpid() == process:
        engine.dispose()


def _open_with_retries(url: str, options: dict[str, Any], heartbeat: int) -> RDBStorage:
    """Open the storage, up to five times: of several commands that create a new database at once, all but one fail."""
    for attempt in range(5):
        try:
            return RDBStorage(
                url, engine_kwargs=options, heartbeat_interval=heartbeat, grace_period=SILENCE * heartbeat
            )
        except Exception:
            if attempt == 4:
                raise
            time.sleep(0.2 * 2**attempt)
    raise AssertionError


def place_of(url: str) -> Path | str:
    """Return the folder of an SQLite file, or a server's URL without its password."""
    file = sqlite_file(url)
    return file.parent if file is not None else without_password(url)


def _prepare_sqlite(file: Path) -> None:
    """Create an SQLite file in WAL mode, in which readers and writers do not block each other.

    Raises UserError if it cannot be used.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # SQLite does not wait for another process that changes the mode of the same new file, but fails
        with files.locked(file.parent):
            connection = sqlite3.connect(file, timeout=60)
            try:
                connection.execute("pragma journal_mode=wal")
            finally:
                connection.close()
    except (OSError, sqlite3.Error) as error:
        if no_room := files.as_disk_full(error, file.parent):
            raise no_room from error
        if not os.access(file.parent, os.W_OK):
            raise UserError(
                f"{file.parent} cannot be written to. Choose another folder: paths.runs, or workers.storage."
            ) from error
        raise UserError(
            f"{file} cannot be used as a database ({error}). Move it away, or name another place: paths.runs, or "
            "workers.storage."
        ) from error


class Retrying:
    """Make calls to Optuna, and retry each while the database is unavailable.

    A call raises StorageUnavailable when that takes too long. Every call may safely be made twice: it reads, it sets
    something in one transaction, or it enqueues a trial, whose duplicate the queue drops. Where a lease was granted and
    the answer was lost, the lease expires.
    """

    def __init__(self, place: Path | str) -> None:
        """place: of the database, for the error about a full disk."""
        self.place, self.wait = place, True  # wait: False to make each call once
        self.missed = float("-inf")  # monotonic seconds when the database was last found to be unavailable

    def __call__(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if not self.wait:
            return call(*args, **kwargs)
        return retry_until_available(lambda: self._ask(call, *args, **kwargs))

    def _ask(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if no_room := files.as_disk_full(error, self.place):
                raise no_room from error
            if isinstance(error, StorageUnavailable) or not self.noticed(error):
                raise
            reason = shortened(error.__cause__ or error)
            if _is_lost(error):
                raise StorageLost(
                    f"workers.storage: the database in {self.place} was deleted or replaced while the sweep used it "
                    f"({reason}). Give the same command again: no finished trial is trained twice."
                ) from error
            raise StorageUnavailable(
                f"workers.storage: the database has not answered for {retry.PATIENCE:.0f} seconds ({reason}). Nothing "
                "is lost: when it is back, the same command continues."
            ) from error

    def noticed(self, error: Exception) -> bool:
        """Return whether an error means that the database is unavailable; if so, keep the time in `missed`."""
        unavailable = is_unavailable(error)
        if unavailable:
            self.missed = time.monotonic()
        return unavailable


def is_unavailable(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, means that a connection failed or broke."""
    from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError

    # PendingRollbackError: when a connection breaks while trials are read, Optuna takes the query for too long and
    # sends a shorter one on the broken connection
    reasons = (InterfaceError, OperationalError, PendingRollbackError)
    return error is not None and (isinstance(error, reasons) or is_unavailable(error.__cause__))


def _is_lost(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, means that an SQLite file is not the one of before."""
    of_sqlite = isinstance(getattr(error, "orig", None), sqlite3.Error)
    return error is not None and ((of_sqlite and "no such table" in str(error)) or _is_lost(error.__cause__))


class _quiet:  # noqa: N801 (used as a function)
    """Context in which alembic and SQLAlchemy do not log, as alembic does for each step of creating a database."""

    def __enter__(self) -> None:
        self.levels = {name: logging.getLogger(name).level for name in ("alembic", "sqlalchemy")}
        for name in self.levels:
            logging.getLogger(name).setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
