"""Run workers on an existing Dask cluster."""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from socket import gethostname
from typing import Any
from uuid import uuid4

from pflsweep.sweep.plan import Plan
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.worker import work
from pflsweep.trial.process import Stop, interruptible
from pflsweep.trial.progress import say
from pflsweep.util.errors import UserError

LOOK = 2.0  # seconds between two checks of the cluster
JOINING = 60  # seconds for which a cluster may be without a Dask worker


def run(queue: Queue) -> None:
    """Train on the workers of a running Dask scheduler. Raises UserError, KeyboardInterrupt.

    Dask gives the task of a worker that dies to another one. After several deaths in a row it gives up; that counts as
    one death against the task's trial. Dask's own client is used, since joblib would train in this process where the
    cluster has one slot.
    """
    plan = queue.plan
    try:
        from distributed import CancelledError, Client, KilledWorker
        from distributed.comm import CommClosedError
    except ImportError as error:
        raise UserError("workers.backend=dask needs Dask: pip install distributed.") from error
    address, count = plan.workers.address, plan.workers.count
    try:
        client = Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"workers.address: there is no Dask scheduler at '{address}' ({error}).") from error
    # The error below says that the scheduler has gone
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    # Dask's callbacks may swallow a KeyboardInterrupt, so Ctrl-C sets a flag
    with client, interruptible() as pressed:
        _require_worker(client, pressed)
        shared = plan._replace(workers=replace(plan.workers, count=min(count, _most_on_a_machine(client))))
        while True:
            names = [uuid4().hex for _ in range(count)]
            tasks = [
                client.submit(_task, shared, number, name, os.getcwd(), pure=False) for number, name in enumerate(names)
            ]
            try:
                _wait(client, tasks, pressed)
                return
            except KilledWorker as killed:
                say("Dask workers were killed again and again (out of memory?). What they trained is taken over.")
                for task, name in zip(tasks, names, strict=True):
                    if task.key == killed.task:
                        queue.record_death(name, "its Dask workers were killed (out of memory?)")
            except (CommClosedError, CancelledError) as error:
                raise UserError(
                    f"workers.address: the Dask scheduler at {address} has gone. What is trained is kept: when it is "
                    "back, the same command continues."
                ) from error


def _wait(client: Any, tasks: Sequence[Any], pressed: Stop) -> None:
    """Wait until all tasks are done, by polling: Ctrl-C in one of Dask's own waits prints its tracebacks.

    Raises the exception of a task, CancelledError without a scheduler, UserError without workers, KeyboardInterrupt.
    """
    from distributed import CancelledError

    while not all(task.done() for task in tasks):
        time.sleep(LOOK)
        if pressed():
            raise KeyboardInterrupt
        if client.status != "running":
            raise CancelledError(client.status)
        if not client.nthreads():
            say(f"The Dask scheduler has no worker left; one is waited for {JOINING} seconds.")
            _require_worker(client, pressed)
    for task in tasks:
        task.result()


def _require_worker(client: Any, pressed: Stop) -> None:
    """Wait until the scheduler has a worker. Raises UserError after JOINING seconds, KeyboardInterrupt."""
    until = time.monotonic() + JOINING
    while client.status == "running" and not client.nthreads():
        if pressed():
            raise KeyboardInterrupt
        if time.monotonic() > until:
            raise UserError(
                "The Dask scheduler has no worker. Start some (dask worker ADDRESS --nthreads 1) and give the same "
                "command."
            )
        time.sleep(LOOK / 4)


def _most_on_a_machine(client: Any) -> int:
    """Return the largest number of Dask workers on one machine. Raises UserError if one has several threads, in
    which it would train several trials.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if any(worker["nthreads"] > 1 for worker in workers):
        raise UserError(
            "A Dask worker would train several trials in one process. Start them with a thread each, as many as are to "
            "train at once: dask worker ADDRESS --nworkers 4 --nthreads 1."
        )
    return max(Counter(worker["host"] for worker in workers).values())


def _task(plan: Plan, number: int, name: str, folder: str) -> None:
    """Run a worker in a Dask task, in the command's folder, until the plan is settled or the task is not wanted."""
    from distributed import get_worker
    from distributed.worker import thread_state

    host, key, here = get_worker(), thread_state.key, os.getcwd()
    try:
        # Relative paths in configs refer to the command's folder
        os.chdir(folder)
    except OSError as error:
        raise UserError(
            f"The Dask worker on {gethostname()} cannot go to {folder}, where the command was given "
            f"({error.strerror}). Give it in a folder that all machines have, shared if records are to be in one place."
        ) from error
    if folder not in sys.path:
        # The user's own methods may be modules in that folder
        sys.path.append(folder)
    try:
        with suppress(KeyboardInterrupt):
            work(plan, number, lambda: not _wanted(host, key), name)
    finally:
        os.chdir(here)


def _wanted(host: Any, key: Any) -> bool:
    """Return whether a connected Dask worker still has the task `key` to do."""
    task = host.state.tasks.get(key)
    return task is not None and task.state != "cancelled" and host.status.name not in ("closing", "closed", "failed")
