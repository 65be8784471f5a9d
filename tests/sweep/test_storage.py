"""The storage of a sweep: which databases are taken, and calls to one that is away."""

import gc
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from pflsweep.sweep import storage as storages
from pflsweep.sweep.plan import Plan
from pflsweep.sweep.queue import Queue
from pflsweep.util import files, retry
from pflsweep.util.errors import UserError
from tests.sweep.sweeping import opened


@pytest.mark.parametrize("retried", [True, False])
def test_a_call_is_made_again_until_the_database_answers(
    retried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the live page makes each call once."""
    monkeypatch.setattr(retry, "PAUSE", 0)
    answers = iter([OperationalError("select", {}, Exception("gone")), 7])

    def asked() -> int:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    ask = storages.Retrying(tmp_path)
    ask.wait = retried
    if retried:
        assert ask(asked) == 7
    else:
        with pytest.raises(OperationalError):
            ask(asked)


def test_a_database_that_was_deleted_is_not_waited_for(plan: Plan) -> None:
    queue = opened(plan)
    queue.database.storage.engine.dispose()
    for file in plan.folder.glob("optuna.db*"):
        file.unlink()
    with pytest.raises(retry.StorageLost, match=rf"{plan.folder} was deleted or replaced .*no such table"):
        queue.refresh()


@pytest.mark.parametrize("address", ["sqlite:///{}/my.db", "sqlite+pysqlite:///{}/my.db"])
def test_sqlite_is_known_by_its_address_with_and_without_a_driver(address: str, plan: Plan, tmp_path: Path) -> None:
    """It grants a slot several times without the lock that is held for it."""
    queue = opened(given(plan, address.format(tmp_path), None))
    with queue.database.storage.engine.connect() as connection:
        assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
    with ThreadPoolExecutor() as pool:
        with files.locked(tmp_path):
            lease = pool.submit(queue.lease_next)
            assert not wait([lease], timeout=0.3).done
        assert lease.result() is not None


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:///:memory:", "sqlite+pysqlite:///"])
def test_a_database_in_memory_is_refused(address: str, plan: Plan) -> None:
    with pytest.raises(UserError, match=r"in memory, which workers cannot share\. Name a file"):
        Queue(given(plan, address, None))


def test_a_database_that_another_command_is_creating_is_waited_for(tmp_path: Path) -> None:
    began, end = threading.Event(), threading.Event()

    def create() -> None:
        with files.locked(tmp_path):
            connection = sqlite3.connect(tmp_path / "optuna.db")
            connection.execute("begin immediate")
            began.set()
            end.wait(60)
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(create)
        assert began.wait(60)
        opened = pool.submit(storages.open_storage, f"sqlite:///{tmp_path}/optuna.db", 10)
        done, _ = wait([opened], timeout=0.2)
        end.set()
        assert not done
        assert opened.result(60).get_all_studies() == []


def test_a_storage_that_nobody_holds_has_no_open_connection(tmp_path: Path) -> None:
    """Python 3.13 warns of a database that the garbage collector finds open."""
    storage = storages.open_storage(f"sqlite:///{tmp_path}/optuna.db", 10)
    optuna.create_study(storage=storage).enqueue_trial({})
    pool = storage.engine.pool
    closed: list[Any] = []
    event.listen(pool, "close", lambda connection, _: closed.append(connection))
    del storage
    gc.collect()
    assert closed


@pytest.mark.parametrize(
    ("storage", "mlflow"),
    [
        ("sqlite:///mlflow.db", None),
        ("sqlite:///./a/../mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite+pysqlite:///mlflow.db", None),
        ("postgresql://me:one@host/runs", "postgresql+psycopg://you:two@host:5432/runs?sslmode=require"),
    ],
)
def test_optuna_does_not_get_mlflows_database(plan: Plan, storage: str, mlflow: str | None) -> None:
    """Both keep the version of their tables in `alembic_version`, so that the second would ruin the first's."""
    with pytest.raises(UserError, match=r"the database of MLflow .* Give each a database of its own"):
        storages.storage_url(given(plan, storage, mlflow))


@pytest.mark.parametrize(
    ("storage", "mlflow"),
    [
        ("sqlite:///optuna.db", None),
        ("sqlite:///mlflow.db", "http://127.0.0.1:5000"),
        ("postgresql://me@host/optuna", "postgresql://me@host/mlflow"),
        ("postgresql://me@host:5433/runs", "postgresql://me@host/runs"),
        ("postgresql://me@host/runs?options=-csearch_path%3Doptuna", "postgresql://me@host/runs"),
        ("postgresql://me:a@b:c@host/runs", None),
    ],
)
def test_databases_of_their_own_are_used(plan: Plan, storage: str, mlflow: str | None) -> None:
    assert storages.storage_url(given(plan, storage, mlflow)) == storage


def given(plan: Plan, storage: str, mlflow: str | None) -> Plan:
    """Return the plan with other addresses of Optuna's and of MLflow's database."""
    group = plan.groups[0]
    values = {**group.config.values, "tracking": {**group.config.values["tracking"], "uri": mlflow}}
    config = replace(group.config, values=values)
    return plan._replace(groups=[group._replace(config=config)], workers=replace(plan.workers, storage=storage))
