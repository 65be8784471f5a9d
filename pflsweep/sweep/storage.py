"""Optuna's storage: opened by many at once, waited for while its database is away."""

import logging
import sqlite3
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from optuna.storages import RDBStorage
from sqlalchemy.engine import URL, make_url

from pflsweep.sweep.plan import Plan
from pflsweep.util import files, retry
from pflsweep.util.errors import UserError, shortened, without_password
from pflsweep.util.retry import StorageUnavailable, retry_until_available

SILENCE = 5  # heartbeats that may be missed
T = TypeVar("T")


def storage_url(plan: Plan) -> str:
    """Where the workers of a sweep meet. Raises UserError where that is MLflow's place."""
    storage = plan.workers.storage
    if storage is not None and storage == plan.groups[0].config.tracking.uri:
        raise UserError(
            f"workers.storage and tracking.uri are both '{without_password(storage)}', but Optuna and MLflow have "
            "tables of the same names. Give each a database of its own, such as .../optuna and .../mlflow."
        )
    file = URL.create("sqlite", database=str(plan.folder / "optuna.db"))  # a folder's name may be `q?x`
    return storage or file.render_as_string()


def opened(url: str, heartbeat: int) -> RDBStorage:
    """Optuna's storage. Raises UserError where it cannot be used."""
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("postgresql"):
        options["connect_args"] = {"connect_timeout": 10}  # seconds; by itself a machine that is off is waited for
    if url.startswith("sqlite:///"):
        options = {"connect_args": {"timeout": 60}}
        _prepare_sqlite(Path(make_url(url).database or ""))
    try:
        with _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heartbeats are experimental
            storage = _first_of_many(url, options, heartbeat)
    except Exception as error:  # SQLAlchemy, a driver, alembic: each has its own
        if no_room := files.full(error, place_of(url)):
            raise no_room from error
        said = without_password(shortened(error))
        raise UserError(
            f"workers.storage: '{without_password(url)}' cannot be used as Optuna's storage ({said}). It has to be "
            "there and writable: sqlite:///file.db on one machine, postgresql://user:password@host/name for many."
        ) from error
    if url.startswith("sqlite:///"):
        from sqlalchemy import event

        event.listen(storage.engine, "connect", lambda connection, _: connection.execute("pragma synchronous=normal"))
    return storage


def _first_of_many(url: str, options: dict[str, Any], heartbeat: int) -> RDBStorage:
    """Several commands may open a new database at once: the losers of that race try again."""
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
    """Return the folder of an SQLite storage, the address of a server without its password."""
    if url.startswith("sqlite:///"):
        return Path(make_url(url).database or "").absolute().parent
    return without_password(url)


def _prepare_sqlite(file: Path) -> None:
    """Readers and writers that do not block each other."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(file, timeout=60)
        try:
            connection.execute("pragma journal_mode=wal")
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        if no_room := files.full(error, file.parent):
            raise no_room from error
        raise UserError(
            f"{file} cannot be used as a database ({error}). Move it away, or name another file."
        ) from error


class Retrying:
    """Make calls to Optuna, each of which waits while its database is away. They raise StorageUnavailable when that
    takes too long.

    Each call bears being done twice: it reads, it sets something in one transaction, or it enqueues a trial, whose
    double the queue drops. A claim that was granted without our hearing of it goes silent, and is taken over.
    """

    def __init__(self, place: Path | str, patient: bool = True) -> None:
        """place: of the database, for the error of a disk that is full. patient: calls wait at all."""
        self.place, self._patient = place, patient
        self.missed = float("-inf")  # when the database was last found to be away

    def __call__(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if not self._patient:
            return call(*args, **kwargs)
        return retry_until_available(lambda: self._ask(call, *args, **kwargs))

    def _ask(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if no_room := files.full(error, self.place):
                raise no_room from error
            if isinstance(error, StorageUnavailable) or not self.noticed(error):
                raise
            said = shortened(error.__cause__ or error)
            raise StorageUnavailable(
                f"workers.storage: the database has not answered for {retry.PATIENCE:.0f} seconds ({said}). Nothing "
                "is lost: when it is back, the same command continues."
            ) from error

    def noticed(self, error: Exception) -> bool:
        """Whether it says that the database is away; if so, when that was is kept."""
        away = _is_away(error)
        if away:
            self.missed = time.monotonic()
        return away


def _is_away(error: BaseException | None) -> bool:
    """Whether a connection could not be had, or broke: what Optuna raises then has the reason behind it."""
    from sqlalchemy.exc import InterfaceError, OperationalError, PendingRollbackError

    # the last: when a look at trials is cut, Optuna takes it for too long a query and looks again on what is left
    reasons = (InterfaceError, OperationalError, PendingRollbackError)
    return error is not None and (isinstance(error, reasons) or _is_away(error.__cause__))


class _quiet:  # noqa: N801 (used as a function)
    """alembic tells about each step of making a database."""

    def __enter__(self) -> None:
        self.levels = {name: logging.getLogger(name).level for name in ("alembic", "sqlalchemy")}
        for name in self.levels:
            logging.getLogger(name).setLevel(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
