"""kill -9 in each phase of a sweep of twelve trials: the same command brings it to the end of an undisturbed one."""

import json
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pflsweep.sweep.launch import processes
from pflsweep.sweep.plan import Plan
from pflsweep.sweep.queue import Queue
from pflsweep.util.errors import UserError
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
    workers_of,
)

pytestmark = pytest.mark.slow

# Places where the process kills itself: module, function, the n-th call
PHASES = {
    "before claim": ("pflsweep.sweep.queue", "Queue.lease_next", 4, "before"),
    "mid-round": ("pflsweep.engine.simulation", "run_round", 15, "after"),
    "mid-checkpoint": ("pflsweep.records.checkpoint", "write_torch", 9, "half"),
    "mid-record": ("pflsweep.util.files", "write_parquet", 24, "after"),
    "mid-tell": ("pflsweep.sweep.queue", "Queue._end", 3, "before"),
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
    assert rest.count("A worker died (SIGKILL (out of memory?)). A new one has been started") == 1
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
    assert "no worker of this command trains now\n2 of 2 trials are left; give the same command again to" in rest
    assert not out


def two_workers(plan: Plan) -> Queue:
    queue = Queue(plan._replace(workers=replace(plan.workers, count=2)))
    queue.prepare()
    return queue


def test_workers_that_are_killed_before_they_have_a_trial_end_the_command(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(processes, "BOOT", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    queue = two_workers(plan)
    with pytest.raises(UserError, match=r"had leased a trial \(SIGKILL \(out of memory\?\)\)"):
        processes.run(queue.plan, queue)
    assert capfd.readouterr().err.count("A new one has been started") == 2 * (processes.EARLY - 1)


RAISING = """
import json, pickle, sys
arguments = json.loads(sys.argv[1])
if arguments["number"] == 0:
    open(arguments["error_file"], "wb").write(pickle.dumps(ZeroDivisionError("it broke")))
    sys.exit(1)
"""


def test_what_one_worker_raises_does_not_end_the_others(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(processes, "BOOT", RAISING)
    queue = two_workers(plan)
    processes.run(queue.plan, queue)
    assert "A worker has ended, the others go on: it broke" in capfd.readouterr().err


# A worker that segfaults over one point of the search, a given number of times
DEADLY = """
import os, signal
from pathlib import Path
from pflsweep.sweep import worker
run_trial, deaths = worker.run_trial, Path("deaths")

def deadly(config, *arguments, **options):
    said = deaths.read_text() if deaths.exists() else ""
    if config.values["train"]["lr"] == 0.1 and config.values["data"]["validation"] and len(said) < {times}:
        deaths.write_text(said + ".")
        os.kill(os.getpid(), signal.SIGSEGV)
    return run_trial(config, *arguments, **options)

worker.run_trial = deadly
"""
ONE_SEARCH = ["-m", "algorithm=fedavg", "seed=0", *TWELVE[3:5], *TWELVE[6:], "workers.count=2"]


@pytest.mark.parametrize("times", [2, 3])
def test_deaths_that_a_command_outlives_count(times: int, tmp_path: Path) -> None:
    """The third death in a row leaves the point without a result, with the signal as the reason; two are forgotten."""
    boot = "from pflsweep.sweep.launch import processes\n"
    boot += f"processes.BOOT = {DEADLY.format(times=times)!r} + processes.BOOT\n"
    done = run(tmp_path, *ONE_SEARCH, code=boot + MAIN)
    if times == 3:
        assert done.returncode == 1
        reason = "its worker died 3 times in a row at round 0; the last time: SIGSEGV"
        assert f"fedavg: no winner: 1 of 2 points has no result ({reason})" in done.stderr
        # The same command tries that point again
        done = run(tmp_path, *ONE_SEARCH, code=boot + MAIN)
    assert done.returncode == 0, done.stderr
    assert "train.lr=0.1" in done.stdout, "the point that was killed is the best one"
    assert "no winner" not in done.stdout


def test_a_command_that_is_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    """The command is killed four times with its workers in mid-trial, without a further round on the disk; that fails
    no trial.
    """
    command = [*ONE_SEARCH, "train.rounds=400", "checkpoint.every=1000"]
    for _ in range(4):
        with start(tmp_path, *command) as process:
            wait_for(lambda: sum("RUNNING" in key for key in states_of(tmp_path)) == 2, process)
            for pid in (process.pid, *workers_of(process.pid)):
                os.kill(pid, signal.SIGKILL)
            process.communicate()
    done = run_here(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    require_each_once(database(tmp_path), 3)


def states_of(folder: Path) -> Counter:
    """Return the states of a sweep's slots; none before there is a database."""
    return states(database(folder)) if (folder / "runs" / "sweeps" / "optuna.db").exists() else Counter()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("early", [True, False], ids=["while it imports", "in mid-trial"])
def test_workers_end_within_two_heartbeats_of_their_command(early: bool, tmp_path: Path) -> None:
    with start(tmp_path, *ONE_SEARCH, "train.rounds=3000", "workers.heartbeat=4") as process:
        wait_for(lambda: len(workers_of(process.pid)) == 2, process)
        if not early:
            wait_for(lambda: sum("RUNNING" in key for key in states_of(tmp_path)) == 2, process)
        workers = workers_of(process.pid)
        process.kill()
        until = time.monotonic() + 8
        while any(map(alive, workers)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(alive, workers))
        process.communicate()


@pytest.mark.parametrize("workers", ["workers.count=1", "workers.count=2"])
def test_sigterm_ends_like_ctrl_c_with_an_exit_code_of_its_own(workers: str, tmp_path: Path) -> None:
    command = [*ONE_SEARCH[:-1], workers, "train.rounds=3000"]
    with start(tmp_path, *command) as process:
        count = int(workers[-1])
        wait_for(lambda: len(list((tmp_path / "runs").glob("*/status.json"))) == count, process)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert "Traceback" not in said
    records = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/status.json")]
    assert [record["status"] for record in records] == ["interrupted"] * count
    assert all((file.parent / "checkpoint.pt").exists() for file in (tmp_path / "runs").glob("*/status.json"))
    assert {state for *_, state in states(database(tmp_path))} == {"WAITING"}


@pytest.mark.parametrize(
    ("count", "cores", "memory", "words"),
    [
        (30, 8, 64e9, ["30 workers would start, and this command has 8 cores", "use workers.count=8"]),
        (2, 1, 64e9, ["has 1 core of"]),
        (30, 32, 4e9, ["30 workers need 30 x 0.5 GB = 15.0 GB", "4.0 GB are free", "Use workers.count=8"]),
    ],
)
def test_more_workers_than_the_machine_can_hold_are_refused_with_the_arithmetic(
    count: int, cores: int, memory: float, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: cores)
    monkeypatch.setattr(processes.memory, "available", lambda: memory)
    with pytest.raises(UserError) as refused:
        processes.check_count(count)
    assert [word for word in words if word not in str(refused.value)] == []
    processes.check_count(1)
