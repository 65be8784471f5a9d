"""Run a sweep of twelve short trials as the real command in a process of its own, and read what it has left; open the
queue of a plan without a command.
"""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import chdir, closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import optuna
import pandas as pd
import pytest

from pflsweep.commands.main import main
from pflsweep.sweep.plan import Plan
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.storage import open_storage

TWELVE = [
    "-m", "algorithm=fedavg,pgfed", "seed=0,1", "tune=grid", "tune.points=2", "tune.seeds=2", "train.rounds=3",
    "partition.clients=6", "model.hidden=[16]", "checkpoint.every=0", "checkpoint.models=false", "workers.heartbeat=1",
]  # fmt: skip
MAIN = "import sys; from pflsweep.commands.main import main; sys.exit(main())"


def start(folder: Path, *arguments: str, code: str = MAIN, tracking: str = "none") -> subprocess.Popen:
    """Start the command in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments, f"tracking={tracking}"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip


def wait_for(what: Callable[[], object], process: subprocess.Popen, seconds: float = 180) -> None:
    """Wait until a condition holds. Fails where the command ends before, or where it takes too long."""
    until = time.monotonic() + seconds
    while not what():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{process.returncode}\n{out}\n{err}")
        time.sleep(0.1)


def workers_of(pid: int) -> list[int]:
    """Return the pids of a command's worker processes."""
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "worker_process"], capture_output=True, text=True).stdout
    return sorted(map(int, found.split()))


def run(folder: Path, *arguments: str, code: str = MAIN, tracking: str = "none") -> subprocess.CompletedProcess:
    """Run the command to its end."""
    process = start(folder, *arguments, code=code, tracking=tracking)
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run the command to its end in this process, which has all imports done."""
    folder.mkdir(parents=True, exist_ok=True)
    out, err = StringIO(), StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, "tracking=none"])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def numbers(folder: Path) -> dict[str, pd.DataFrame]:
    """Return each trial's rounds by its identity, without times."""
    found = {}
    for file in (folder / "runs").glob("*/meta.json"):
        assert json.loads((file.parent / "status.json").read_text())["status"] == "finished"
        rounds = pd.read_parquet(file.parent / "rounds.parquet")
        found[json.loads(file.read_text())["identity"]] = rounds.drop(columns=["seconds", "eval_seconds"])
    return found


def require_same(one: Path, other: Path, **within: float) -> None:
    """Assert that trials are the same and numbers equal to the last bit, or within rtol and atol; counts are always
    equal.
    """
    first, second = numbers(one), numbers(other)
    assert set(first) == set(second)
    for identity, rounds in first.items():
        pd.testing.assert_frame_equal(rounds, second[identity], check_exact=not within, **within)
        for count in ("round", "images"):
            assert rounds[count].tolist() == second[identity][count].tolist()


def states(url: str) -> Counter:
    """Return how often each slot is in each state: (study, slot, state) -> trials."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: Counter = Counter()
    storage = open_storage(url, 60)
    for name in optuna.get_all_study_names(storage):
        for trial in optuna.load_study(study_name=name, storage=storage).trials:
            found[name, trial.user_attrs["slot"], trial.state.name] += 1
    return found


def require_each_once(url: str, slots: int) -> None:
    """Assert that every slot is complete once, and that nothing is left open."""
    found = states(url)
    assert {count for (*_, state), count in found.items() if state == "COMPLETE"} == {1}
    assert sum(state == "COMPLETE" for *_, state in found) == slots
    assert [key for key in found if key[2] in ("RUNNING", "WAITING", "PRUNED")] == []


def database(folder: Path) -> str:
    return f"sqlite:///{folder / 'runs' / 'sweeps' / 'optuna.db'}"


def opened(plan: Plan) -> Queue:
    """Return a plan's queue, with all its slots enqueued."""
    queue = Queue(plan)
    queue.prepare()
    return queue


def age_heartbeats(queue: Queue) -> None:
    """Make all heartbeats in a queue's database a minute old, as if no worker had sent one since."""
    file = queue.database.storage.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("update trial_heartbeats set heartbeat = datetime('now', '-60 seconds')")
