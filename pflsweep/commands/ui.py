"""`pflsweep ui`: show MLflow's own pages of the runs in a folder."""

import errno
import os
import sys
from typing import TYPE_CHECKING

from pflsweep.tracking.store import (
    HOST,
    PORT,
    TRAINING,
    check_file,
    check_server,
    explained,
    sqlite_file,
)
from pflsweep.util.errors import Parser, UserError, without_password

if TYPE_CHECKING:
    pass


def main(argv: list[str]) -> int:
    """Serve MLflow's own pages on the store of this folder until Ctrl-C."""
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
