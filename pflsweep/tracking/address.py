"""Find out where runs go: the address of an MLflow store, from options that the environment may have set."""

import os
from pathlib import Path
from urllib.parse import quote

from pflsweep.config.options import Tracking
from pflsweep.util.errors import without_password

HOST, PORT = "127.0.0.1", 5000  # where `pflsweep ui` serves a store that is a file or a database
DEFAULT = "sqlite:///mlflow.db"


def experiment_of(options: Tracking) -> str:
    """Return the name of the experiment. An environment variable that is set to "" counts as not set."""
    return str(options.experiment or "pflsweep")


def destination(options: Tracking) -> str:
    """Return a line that says where tracked runs go, and which environment variables say so."""
    variables = {"MLFLOW_TRACKING_URI": options.uri, "MLFLOW_EXPERIMENT_NAME": options.experiment}
    return f"Runs go to MLflow at {shown_uri(options)}, experiment {experiment_of(options)}{by_variables(variables)}"


def destination_of_records(options: Tracking, experiments: list[str]) -> str:
    """Return a line that says where imported runs go: to the experiments of their records, in the store of options."""
    by, several = by_variables({"MLFLOW_TRACKING_URI": options.uri}), "s" * (len(experiments) > 1)
    names = ", ".join(experiments)
    return f"Runs go to MLflow at {shown_uri(options)}{by}, experiment{several} {names} as their records say"


def shown_uri(options: Tracking) -> str:
    """Return the address of a store for messages."""
    return without_password(str(options.uri or DEFAULT))


def by_variables(given: dict[str, str | None]) -> str:
    """Return a note on which environment variables give these values; "" if none does. given: by variable."""
    said = [name for name, value in given.items() if value and os.environ.get(name) == value]
    return f" ({', '.join(said)})" if said else ""


def uri_of(options: Tracking) -> str:
    """Return the uri of a store. That of a file is made absolute and quoted for SQLAlchemy."""
    uri = str(options.uri or DEFAULT)
    file = sqlite_file(uri)
    if file is None:
        return uri
    dialect = uri.partition(":")[0]
    whole = f"{dialect}:///{file}"
    # `?` and `%` have a meaning in a uri. Slashes are quoted too: else MLflow would create a folder called `%3F`
    if sqlite_file(whole) != file:
        whole = f"{dialect}:///{quote(str(file), safe='')}"
    return whole + "".join(uri.partition("?")[1:])


def in_memory(uri: str) -> bool:
    """Return whether a uri names an SQLite database in memory, which ends with its process."""
    return uri.startswith(("sqlite:", "sqlite+")) and sqlite_file(uri) is None


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite uri, whose driver may be named (sqlite+pysqlite); None for others and for a database
    in memory. It is absolute, so that a later change of folder does not move it.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(uri)
    except (ArgumentError, ValueError):  # ValueError where the port is not a number
        return None
    file = parts.database if parts.get_backend_name() == "sqlite" else None
    return Path(file).absolute() if file and file != ":memory:" else None
