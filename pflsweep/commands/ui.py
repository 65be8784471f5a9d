"""`pflsweep ui`: serve MLflow's own pages for the runs of a folder."""

import argparse
import errno
import os
import subprocess
import sys
from typing import NoReturn

from pflsweep.commands.parser import Parser
from pflsweep.config.options import Tracking
from pflsweep.tracking.address import DEFAULT, HOST, PORT, sqlite_file
from pflsweep.tracking.failures import OF_UI, store_errors, with_advice
from pflsweep.tracking.store import check_file, check_server, runs_address
from pflsweep.util.errors import UserError, without_password

# A program that prints the address when the server answers, and opens it. It runs in a process of its own, since this
# one becomes MLflow, and ends with it. A proxy of the environment would not reach this machine.
ANNOUNCE = """
import os, sys, time, urllib.error, urllib.request, webbrowser
server, address, opens = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "open"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
while os.getppid() == server:
    try:
        opener.open(address.partition("#")[0], timeout=10).close()
    except urllib.error.HTTPError:
        pass
    except OSError:
        time.sleep(0.2)
        continue
    print(f"MLflow answers: {address}", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if opens:
        webbrowser.open(address)
    break
"""
# MLflow's command line. Ctrl-C ends the seconds of its imports without their traceback
SERVER = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
from mlflow.cli import cli
signal.signal(signal.SIGINT, signal.default_int_handler)
cli(prog_name="mlflow")
"""


def main(argv: list[str]) -> None:
    """Serve MLflow's own pages on the store of this folder until Ctrl-C, and open the list of runs."""
    parser = Parser(prog="pflsweep ui", description="Browse the runs of this folder in MLflow.")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the server ({PORT})")
    parser.add_argument("--host", default=HOST, help=f"address that the server listens on ({HOST})")
    parser.add_argument("--uri", help=f"the store, as in tracking.uri (MLFLOW_TRACKING_URI, else {DEFAULT})")
    parser.add_argument(
        "--experiment", metavar="NAME", help="as in tracking.experiment (MLFLOW_EXPERIMENT_NAME, else pflsweep)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    options = parser.parse_args(argv)
    uri = options.uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT
    experiment = options.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "pflsweep"
    asked = Tracking.of({"uri": uri, "experiment": experiment})
    with with_advice(OF_UI):
        _show(uri, options, asked)


def _show(uri: str, options: argparse.Namespace, asked: Tracking) -> None:
    """Print the address of the list of runs, and serve it unless a server does. Raises UserError."""
    if uri.startswith("http"):
        with store_errors(uri):
            address = f"{without_password(uri).rstrip('/')}/{runs_address(asked)}"
        print(f"This server has MLflow's pages itself: {address}", flush=True)
        if _opens(options.no_browser):
            quiet = subprocess.DEVNULL
            subprocess.Popen([sys.executable, "-m", "webbrowser", address], stdin=quiet, stdout=quiet, stderr=quiet)
    else:
        _serve(uri, options, asked)


def _serve(uri: str, options: argparse.Namespace, asked: Tracking) -> NoReturn:
    """Check the store and the port, and become MLflow's server, whose address is printed when it answers.

    Raises UserError.
    """
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        raise UserError(f"There is no store '{file}': no trial was tracked in this folder. Go to the one that has it.")
    with store_errors(uri):
        check_file(file) if file is not None else check_server(uri)
        _check_port(options.host, options.port)
        host = f"[{options.host}]" if ":" in options.host else options.host  # IPv6
        address = f"http://{host}:{options.port}/{runs_address(asked)}"
    print(
        f"MLflow starts on {without_password(uri)} (Ctrl-C ends it; a sweep's trials are behind its plus sign)",
        flush=True,
    )
    _announce(address, options.no_browser)
    _become_mlflow(uri, options.host, options.port)


def _become_mlflow(uri: str, host: str, port: int) -> NoReturn:
    """Replace this process by MLflow's server, so that signals reach it and no process is left behind."""
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-c", SERVER, "server", "--backend-store-uri", uri, "--workers", "1"]
    # With a lifespan, where MLflow only tidies up after its assistant, uvicorn ends by Ctrl-C with a traceback
    command += ["--host", host, "--port", str(port), "--uvicorn-opts", "--lifespan off"]
    os.execve(sys.executable, command, {**os.environ, **quiet})


def _announce(address: str, refused: bool) -> None:
    """Print an address when this process, by then MLflow's server, answers there, and open it unless `refused`."""
    command = [sys.executable, "-c", ANNOUNCE, str(os.getpid()), address, "open" if _opens(refused) else ""]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _opens(refused: bool) -> bool:
    """Return whether to open the user's browser: not where `refused`, nor without a display, where only text browsers
    would run.
    """
    shown = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return not refused and (sys.platform in ("darwin", "win32") or any(map(os.environ.get, shown)))


def _check_port(host: str, port: int) -> None:
    """Raise UserError if a port cannot be used. MLflow itself would say so on fifty lines."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        # As MLflow does: a port that was just released is free
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise UserError(f"port {port} is in use. Choose another, as in --port {port + 1}.") from error
            raise UserError(f"--host {host} --port {port} cannot be used ({error}).") from error
