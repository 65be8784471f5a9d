"""kill -9 in each phase of a sweep of twelve trials: the same command brings it to the end of an undisturbed one."""

import os
import signal
from pathlib import Path

import pytest

from pflsweep.errors import UserError
from pflsweep.sweep import start as starting
from pflsweep.sweep.plan import Plan
from tests.sweep.kills import workers_of
from tests.sweep.sweeping import (
    MAIN,
    TWELVE,
    database,
    require_each_once,
    require_same,
    run,
    run_here,
    start,
    states,
    wait_for,
)

# where the process kills itself, the n-th time that it comes there: module, function, when
PHASES = {
    "before claim": ("pflsweep.sweep.board", "Board.claim", 4, "before"),
    "mid-round": ("pflsweep.engine.simulation", "run_round", 15, "after"),
    "mid-checkpoint": ("pflsweep.disk", "write_torch", 9, "half"),
    "mid-record": ("pflsweep.disk", "write_parquet", 24, "after"),
    "mid-tell": ("pflsweep.sweep.board", "Board._end", 3, "before"),
    "between seeds": ("pflsweep.sweep.worker", "outcome", 3, "after"),
}
PATCH = """
import importlib, os, signal
module, name, count, when = {phase!r}
holder = importlib.import_module(module)
*path, last = name.split(".")
for step in path:
    holder = getattr(holder, step)
original, calls = getattr(holder, last), [0]

def killing(*args, **options):
    calls[0] += 1
    if calls[0] < count:
        return original(*args, **options)
    if when == "after":
        original(*args, **options)
    if when == "half":  # as much of a temporary file as is on the disk by then
        args[0].with_name("." + args[0].name + ".tmp").write_bytes(b"PK half of it")
    os.kill(os.getpid(), signal.SIGKILL)

setattr(holder, last, killing)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run_here(folder, *TWELVE)
    assert done.returncode == 0, done.stderr
    require_each_once(database(folder), 8)
    return folder


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_sweep_goes_on(phase: str, undisturbed: Path, tmp_path: Path) -> None:
    killed = run(tmp_path, *TWELVE, code=PATCH.format(phase=PHASES[phase]) + MAIN)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = run_here(tmp_path, *TWELVE)
    assert again.returncode == 0, again.stderr
    require_same(undisturbed, tmp_path)
    require_each_once(database(tmp_path), 8)
    assert again.stdout == run_here(tmp_path, *TWELVE).stdout


def test_a_killed_worker_leaves_the_others_their_trials(tmp_path: Path) -> None:
    slow = [*TWELVE[:2], "seed=0", *TWELVE[6:], "train.rounds=150", "workers.count=2"]
    with start(tmp_path, *slow) as process:
        wait_for(lambda: len(list((tmp_path / "runs").glob("*/status.json"))) == 2, process)
        os.kill(workers_of(process.pid)[0], signal.SIGKILL)
        _, rest = process.communicate(timeout=300)
    assert process.returncode == 0, rest
    assert rest.count("A worker was killed") == 1
    require_each_once(database(tmp_path), 2)
    assert sum(count for (*_, state), count in states(database(tmp_path)).items() if state == "FAIL") == 1


def test_workers_that_are_each_interrupted_end_in_no_table(tmp_path: Path) -> None:
    slow = [*TWELVE[:2], "seed=0", *TWELVE[6:], "train.rounds=150", "workers.count=2"]
    with start(tmp_path, *slow) as process:
        wait_for(lambda: len(list((tmp_path / "runs").glob("*/status.json"))) == 2, process)
        for worker in workers_of(process.pid):
            os.kill(worker, signal.SIGINT)
        out, rest = process.communicate(timeout=300)
    assert process.returncode == 130, rest
    assert "2 of 2 trials are left, and no worker of this command trains them now" in rest
    assert not out


def test_workers_that_are_killed_before_they_begin_end_the_command(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(starting, "_process", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(UserError, match="killed before it begins"):
        starting._in_processes(plan._replace(workers={**plan.workers, "count": 2}))
    assert capfd.readouterr().err.count("It starts anew") == 2 * (starting.EARLY - 1)


def test_what_one_worker_raises_does_not_end_the_others(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(starting, "_process", lambda plan, number, *_: 1 // number)
    starting._in_processes(plan._replace(workers={**plan.workers, "count": 3}))
    assert "A worker has ended, the others go on: integer division" in capfd.readouterr().err
