"""Many machines: workers on a Dask cluster and commands on two machines, which meet in a real PostgreSQL. A worker is
killed in mid-trial, commands begin at once, and cluster and database become unavailable.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import pandas as pd
import pytest
import sqlalchemy

from pflsweep.sweep.storage import SILENCE
from tests.sweep.postgres import Postgres, binaries, free_port
from tests.sweep.sweeping import MAIN, database, numbers, require_same, run, run_here, start, states, wait_for

pytestmark = pytest.mark.slow

SWEEP = [
    "-m", "algorithm=local,fedavg", "seed=0,1,2,3", "partition.clients=6", "model.hidden=[16]", "train.epochs=1",
    "train.rounds=60", "checkpoint.every=0", "checkpoint.models=false", "workers.heartbeat=1",
]  # fmt: skip
SLOTS = 8
Begin = Callable[..., subprocess.Popen]  # type of the fixture `begin`


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    found = binaries()
    if found is None:
        why = "there is no PostgreSQL server here (Debian: apt-get install postgresql)"
        pytest.fail(why) if os.environ.get("PFLSWEEP_REQUIRE_POSTGRES") else pytest.skip(why)
    server = Postgres(found)
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the sweep with one worker on SQLite."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run_here(folder, *SWEEP, "checkpoint.every=60")
    assert done.returncode == 0, done.stderr
    assert len(numbers(folder)) == SLOTS
    return folder


class Lab(NamedTuple):
    """Two new databases on the server."""

    postgres: Postgres
    optuna: str
    mlflow: str

    @property
    def words(self) -> list[str]:
        return [f"workers.storage={self.optuna}", f"tracking.uri={self.mlflow}"]


@pytest.fixture
def lab(postgres: Postgres, request: pytest.FixtureRequest) -> Lab:
    name = request.node.name.removeprefix("test_").partition("[")[0]
    return Lab(postgres, postgres.database(f"optuna_{name}"[:60]), postgres.database(f"mlflow_{name}"[:60]))


class Cluster(NamedTuple):
    """A Dask scheduler and two workers with one thread each, which are not restarted."""

    address: str
    scheduler: subprocess.Popen
    workers: list[subprocess.Popen]

    @property
    def words(self) -> list[str]:
        return ["workers.backend=dask", f"workers.address={self.address}", "workers.count=2"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    address = f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "dask"]
    scheduler = [*command, "scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"]
    worker = [*command, "worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    processes = []
    for number, words in enumerate([scheduler, worker, worker]):
        # A Dask worker has another folder than the command
        folder = tmp_path / f"dask{number}"
        folder.mkdir()
        with open(folder / "log", "w") as log:
            processes.append(subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log))
    try:
        yield Cluster(address, processes[0], processes[1:])
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Yield a function that starts commands. Those that still run at the test's end are killed."""
    processes: list[subprocess.Popen] = []

    def beginning(*arguments: Any, **options: Any) -> subprocess.Popen:
        processes.append(start(*arguments, **options))
        return processes[-1]

    yield beginning
    for process in processes:
        process.kill()
        process.communicate()


def storage(url: str) -> optuna.storages.RDBStorage:
    """Return Optuna's storage without a connection that stays open."""
    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": sqlalchemy.NullPool})


def under_way(folder: Path) -> dict[Path, pd.DataFrame]:
    """Return the records with a checkpoint that are not finished, with their present rounds."""
    return {
        file.parent: pd.read_parquet(BytesIO((file.parent / "rounds.parquet").read_bytes()))  # it may be replaced
        for file in (folder / "runs").glob("*/checkpoint.pt")
        if '"finished"' not in (file.parent / "status.json").read_text()
    }


def rounds_of(folder: Path) -> dict[Path, int]:
    """Return the number of rounds of each record."""
    files = (folder / "runs").glob("*/status.json")
    return {file.parent: json.loads(file.read_text())["rounds"] for file in files}


def interrupted(folder: Path, seconds: float = 60) -> dict[Path, int]:
    """Wait until all slots are free again, for which workers on other machines need a moment. Return the rounds of each
    record.
    """
    until = time.monotonic() + seconds
    while {state for *_, state in states(database(folder))} != {"WAITING"}:
        assert time.monotonic() < until, states(database(folder))
        time.sleep(0.2)
    status = [json.loads(file.read_text())["status"] for file in (folder / "runs").glob("*/status.json")]
    assert set(status) == {"interrupted"}
    return rounds_of(folder)


def require_slots(url: str, slots: int, deaths: int) -> None:
    """Assert that each slot is complete once, after `deaths` deaths of workers in all, and that nothing is left open.
    Of two trials that commands enqueued at once for a slot, one was dropped and never ran.
    """
    found = states(url)
    assert sorted(count for (*_, state), count in found.items() if state == "COMPLETE") == [1] * slots
    assert {state for *_, state in found} <= {"COMPLETE", "FAIL"}
    opened = storage(url)
    trials = [trial for study in opened.get_all_studies() for trial in opened.get_all_trials(study._study_id)]
    dropped = [trial for trial in trials if trial.user_attrs.get("duplicate")]
    assert all(trial.datetime_start is None for trial in dropped)
    assert sum(count for (*_, state), count in found.items() if state == "FAIL") == deaths + len(dropped)


def require_tracked(url: str, identities: set[str]) -> None:
    """Assert that MLflow has one run for each identity and one for the sweep, all of them finished."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:

        def ask(query: str) -> list[str]:
            return sorted(value for (value,) in connection.execute(sqlalchemy.text(query)))

        assert ask("select value from tags where key = 'identity'") == sorted(identities)
        assert len(ask("select value from tags where key = 'pflsweep.sweep'")) == 1
        assert ask("select status from runs") == ["FINISHED"] * (len(identities) + 1)


def test_a_dask_worker_killed_in_mid_trial(
    undisturbed: Path, lab: Lab, begin: Begin, cluster: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "command"
    process = begin(folder, *SWEEP, *cluster.words, *lab.words, tracking="mlflow")
    wait_for(lambda: len(now := under_way(folder)) == 2 and min(map(len, now.values())) > 2, process)
    cluster.workers[0].kill()
    before = under_way(folder)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    require_same(undisturbed, folder)
    require_slots(lab.optuna, SLOTS, deaths=1)
    require_tracked(lab.mlflow, set(numbers(folder)))
    # Trials were taken over from the checkpoint, and the rounds before it are unchanged
    for record, rounds in before.items():
        # Tables are written before the checkpoint, so the last round may have been trained again
        known = rounds.head(len(rounds) - 1)
        after = pd.read_parquet(record / "rounds.parquet")
        pd.testing.assert_frame_equal(after.head(len(known)), known, check_exact=True)


def test_a_dask_cluster_that_goes_away(begin: Begin, cluster: Cluster, tmp_path: Path) -> None:
    """On Ctrl-C, and when the scheduler dies, trials end after their round, and the same command continues them."""
    folder = tmp_path / "command"
    words = [*SWEEP, *cluster.words, "algorithm=fedavg", "seed=0,1", "train.rounds=100000"]
    process = begin(folder, *words)
    wait_for(lambda: len(under_way(folder)) == 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    before = interrupted(folder)
    again = begin(folder, *words)
    wait_for(lambda: all(rounds > before[record] for record, rounds in rounds_of(folder).items()), again)
    cluster.scheduler.kill()
    _, err = again.communicate(timeout=60)
    assert again.returncode == 2
    (line,) = [line for line in err.splitlines() if line.startswith("pflsweep: ")]
    assert "Traceback" not in err
    assert f"the Dask scheduler at {cluster.address} has gone" in line
    assert "the same command continues" in line
    after = interrupted(folder)
    assert all(after[record] > rounds for record, rounds in before.items())
    assert [worker.wait(timeout=60) for worker in cluster.workers] == [0, 0]


def test_a_dask_cluster_without_workers(begin: Begin, cluster: Cluster, tmp_path: Path) -> None:
    code = f"import pflsweep.sweep.launch.dask as dask; dask.JOINING = 1; {MAIN}"
    process = begin(tmp_path, *SWEEP, *cluster.words, "train.rounds=100000", code=code)
    wait_for(lambda: len(under_way(tmp_path)) == 2, process)
    for worker in cluster.workers:
        worker.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "has no worker left; one is waited for 1 seconds" in err
    assert err.splitlines()[-1].startswith("pflsweep: The Dask scheduler has no worker. Start some")
    assert "Traceback" not in err


def test_commands_on_two_machines(undisturbed: Path, lab: Lab, begin: Begin, tmp_path: Path) -> None:
    """Two commands begin at once, on empty databases, and share nothing else. In mid-trial the server is away for
    longer than heartbeats may be missed; no lease expires by that, and each slot is trained once between them.
    """
    folders = [tmp_path / "one", tmp_path / "other"]
    commands = [begin(folder, *SWEEP, *lab.words, tracking="mlflow") for folder in folders]
    wait_for(lambda: all(map(under_way, folders)), commands[0])
    with lab.postgres.away():
        time.sleep(SILENCE + 2)
        assert [command.poll() for command in commands] == [None, None]
    for command in commands:
        out, err = command.communicate(timeout=240)
        assert command.returncode == 0, err
        assert err.count("database cannot be read now") == err.count("database is back") == 1
        assert "Traceback" not in err
        assert "fedavg" in out
    one, other, whole = numbers(folders[0]), numbers(folders[1]), numbers(undisturbed)
    assert not one.keys() & other.keys()
    assert min(len(one), len(other)) > 1
    for identity, rounds in whole.items():
        pd.testing.assert_frame_equal({**one, **other}[identity], rounds, check_exact=True)
    require_slots(lab.optuna, SLOTS, deaths=0)
    require_tracked(lab.mlflow, set(whole))


def test_a_database_that_stays_away(undisturbed: Path, lab: Lab, begin: Begin, tmp_path: Path) -> None:
    """Nothing is lost: the running trial goes on to its end, and the same command does the rest."""
    few = ["-m", "algorithm=fedavg", "seed=2,3", *SWEEP[3:], lab.words[0]]
    process = begin(tmp_path, *few, code=f"import pflsweep.util.retry; pflsweep.util.retry.PATIENCE = 1; {MAIN}")
    wait_for(lambda: under_way(tmp_path), process)
    with lab.postgres.away():
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("pflsweep: ")]
    assert "the database has not answered for 1 seconds" in line
    assert "the same command continues" in line
    assert "Traceback" not in err
    (status,) = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/status.json")]
    assert (status["status"], status["rounds"]) == ("finished", 60)
    again = run(tmp_path, *few)
    assert again.returncode == 0, again.stderr
    assert len(numbers(tmp_path)) == 2
    for identity, rounds in numbers(tmp_path).items():
        pd.testing.assert_frame_equal(rounds, numbers(undisturbed)[identity], check_exact=True)
    require_slots(lab.optuna, 2, deaths=1)


def test_optuna_and_mlflow_need_databases_of_their_own(tmp_path: Path) -> None:
    same = "postgresql://lab@127.0.0.1:1/both"
    done = run(tmp_path, *SWEEP, f"workers.storage={same}", f"tracking.uri={same}", tracking="mlflow")
    assert done.returncode == 2
    assert "a database of its own" in done.stderr
