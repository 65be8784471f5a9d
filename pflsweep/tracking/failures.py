"""Say in words for people why an MLflow store cannot be used, and tell errors that pass from those that do not."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from pflsweep.records.errors import Damaged
from pflsweep.tracking.address import sqlite_file
from pflsweep.util import files
from pflsweep.util.errors import UserError, shortened, without_password
from pflsweep.util.retry import StorageUnavailable

log = logging.getLogger(__name__)


class Advice(NamedTuple):
    """How the user of a command chooses another store or does without, for messages."""

    uri: str  # what names the store
    experiment: str  # what names the experiment; "" where the records do
    other: str
    without: str  # "" for a command that is for a store alone
    later: str  # how to go on while the store is away; "" where nothing could

    @property
    def instead(self) -> str:
        """All that can be done in place of using this store, as the end of a sentence."""
        return f"{self.other}{f', or {self.without}' if self.without else ''}."


TRAINING = Advice(
    "tracking.uri",
    "tracking.experiment",
    "choose another store with tracking.uri=sqlite:///other.db",
    "train without: tracking=none",
    "send runs to it later (tracking.required=false)",
)
OF_IMPORT = Advice(
    "--uri", "", "choose another store with --uri sqlite:///other.db", "import without MLflow: --no-tracking", ""
)
OF_UI = Advice("--uri", "--experiment", "choose another store with --uri sqlite:///other.db", "", "")
# Set by a command for all that it calls
_advice: ContextVar[Advice] = ContextVar("_advice", default=TRAINING)
# Parts of messages by which stores say that a run or their tables are gone
GONE = (
    *("no such table", "unable to open database file", "must be in the 'active' state", "RESOURCE_DOES_NOT_EXIST"),
    *('" does not exist', "doesn't exist", "database disk image is malformed"),
)
# Parts of errors that mean a wrong uri, and of errors for which there is better advice than to check the place
NO_STORE = ("unsupported URI", "filesystem tracking backend", "load plugin", "Could not parse")
ADVICE = {
    ("schema", "revision"): "Another version of MLflow made it: take a copy of the file, then `mlflow db upgrade` it.",
    ("not a database", "malformed"): "The file is not a database, or a damaged one: move it away.",
    ("File name too long",): "Give its file, or its folder, a shorter name.",
    ("locked",): "Another program holds it: wait for it or end it.",
    ("Invalid Host header",): "The server answers to names that it was started with: give `pflsweep ui` (or `mlflow "
    "server`) MLFLOW_SERVER_ALLOWED_HOSTS=NAME:PORT,localhost:PORT in the environment, with name and port of this uri.",
    ("deleted",): "The experiment was deleted in MLflow: restore it there.",
}


# MLflow's codes for what it will refuse again. It also gives the second one to SQLAlchemy's errors that pass: a lost
# connection, a busy pool, two processes that write one row
REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
PASSING = re.compile("connection|InterfaceError|IntegrityError", re.IGNORECASE)


class Gone(Exception):  # noqa: N818 (a state)
    """The store's file was deleted or replaced since it was opened."""


def advice() -> Advice:
    """Return what users of the present command can do where a store cannot be used."""
    return _advice.get()


@contextmanager
def with_advice(given: Advice) -> Iterator[None]:
    """Context within which messages give a command's own advice, in place of that for training."""
    before = _advice.set(given)
    try:
        yield
    finally:
        _advice.reset(before)


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turn any error that a store raises into a UserError, see `as_user_error`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # sqlite3, SQLAlchemy, MLflow and requests raise errors of their own
        raise as_user_error(uri, error) from error


def as_user_error(uri: str, error: Exception) -> UserError:
    """Return the error for users where a store cannot be used: StorageUnavailable where it may answer later, DiskFull,
    or a plain UserError.
    """
    file, said, shown, can = sqlite_file(uri), shortened(error), without_password(uri), advice()
    if isinstance(error, UserError):
        return error
    if any(text in said for text in NO_STORE):
        return no_store(uri)
    if (full := files.as_disk_full(error, file.parent if file is not None else Path.cwd(), can.uri)) is not None:
        if file is not None or _cause(error, OSError):
            return files.DiskFull(f"The MLflow store {shown}: {full}")
        return files.DiskFull(
            f"The MLflow store {shown} has no space left, or is read-only ({without_password(said)}). Make space on "
            "its server and give the same command again: it goes on where it was."
        )
    text = without_password(f"The MLflow store {uri} cannot be used ({said}).")
    for words, known in ADVICE.items():
        if any(word in said for word in words):
            named = (
                f" Or choose another experiment ({can.experiment})." if "deleted" in words and can.experiment else ""
            )
            kind = StorageUnavailable if "locked" in words else UserError
            return kind(f"{text} {known}{named} Or {can.instead}")
    if _is_refused(error):
        named = f" ({can.experiment})" if said.startswith("'name'") and can.experiment else ""
        without = f", or {can.without}" if can.without else ""
        said = without_password(said)
        return UserError(f"The MLflow store {shown} refuses what it was sent: {said}{named}. Correct that{without}.")
    refused = _cause(error, PermissionError | NotADirectoryError | FileExistsError)
    if file is not None and (refused or not _may_write(file)):
        return UserError(
            f"{text} {file.parent} must be a folder in which you may write; {files.free(file.parent)} are free there. "
            f"Or {can.instead}"
        )
    later = f"{can.later}, " if can.later else ""
    return StorageUnavailable(f"{text} Its place must be there, reachable and writable. Or {later}{can.instead}")


def no_store(uri: str) -> UserError:
    """Return the error to raise where a uri names no store."""
    can = advice()
    without = f" Or {can.without}." if can.without else ""
    return UserError(
        f"'{without_password(uri)}' ({can.uri}{_by_variable(uri)}) is not the address of an MLflow store. Use a "
        "file (sqlite:///mlflow.db, sqlite:////data/mlflow.db), a database (postgresql://user@host/name) or a server "
        f"of MLflow's (http://host:5000).{without}"
    )


def _is_refused(error: Exception) -> bool:
    """Return whether MLflow has answered, and would refuse the same request again."""
    code = getattr(error, "error_code", "")
    return code in REFUSED and not (code == "BAD_REQUEST" and PASSING.search(str(error)))


def _by_variable(uri: str) -> str:
    """Return a note that the environment gives a uri; "" if it does not."""
    return ", by the environment's MLFLOW_TRACKING_URI" if os.environ.get("MLFLOW_TRACKING_URI") == uri else ""


def _cause(error: BaseException | None, kind: Any) -> bool:
    """Return whether an error, or one in its chain of causes, is of a class."""
    return error is not None and (isinstance(error, kind) or _cause(error.__cause__ or error.__context__, kind))


def _may_write(file: Path) -> bool:
    """Return whether the user may write a store's file and its folder."""
    new = not os.path.exists(file)
    return os.access(file.parent, os.W_OK | os.X_OK) and (new or os.access(file, os.R_OK | os.W_OK))


def is_gone(error: Exception) -> bool:
    """Return whether an error says that the store has lost a run or its tables: it was deleted or replaced."""
    if isinstance(error, Gone):
        return True
    said = f"{getattr(error, 'error_code', '')} {error}"
    return any(text in said for text in GONE)


@contextmanager
def errors_as_warnings(what: str) -> Iterator[None]:
    """Turn a store's error into a warning: the record has everything and can be sent again. what: what is sent."""
    try:
        yield
    except Damaged:
        # The record that is sent is damaged, so it does not have everything
        raise
    except Exception as error:
        said = reason(error)
        log.warning("MLflow did not take %s: %s. Nothing is lost: the same command sends it again.", what, said)


def reason(error: BaseException) -> str:
    """Return an error's text for a warning: short and without passwords."""
    return without_password(shortened(error))
