"""`pflsweep ui` on a store with a run: it serves MLflow's pages until Ctrl-C, and ends without a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pflsweep.config.compose import compose
from pflsweep.trial.run import run_trial
from tests.sweep.postgres import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("elsewhere"),
    pytest.mark.filterwarnings("ignore"),  # MLflow's and SQLAlchemy's own
]


@pytest.mark.parametrize("moment", ["MLflow starts", "MLflow answers"])
def test_ctrl_c_ends_the_server_without_a_traceback(moment: str) -> None:
    """Once MLflow's imports and uvicorn's event loop each printed one."""
    run_trial(compose(["partition.clients=6", "model.hidden=[16]", "train.rounds=1", "checkpoint.models=false"]))
    command = [sys.executable, "-m", "pflsweep", "ui", "--port", str(free_port()), "--no-browser"]
    log = Path("ui.log")
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while moment not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        # In the first case within the imports, which take seconds
        time.sleep(0.5)
        # As a terminal does: to all processes
        os.killpg(server.pid, signal.SIGINT)
        server.wait(60)
        assert "Traceback" not in log.read_text()
        while _is_alive(server.pid):
            assert time.monotonic() < end, "a process is left behind"
            time.sleep(0.05)
    finally:
        if _is_alive(server.pid):
            os.killpg(server.pid, signal.SIGKILL)


def _is_alive(group: int) -> bool:
    """Return whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
