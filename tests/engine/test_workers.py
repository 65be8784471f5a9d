"""Worker processes give the same bits as one process, for every method; and what happens when one of them fails."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from pflsweep.algorithms.fedavg import FedAvg
from pflsweep.commands.check import case_of
from pflsweep.config.compose import compose
from pflsweep.conformance.case import advance, assert_same, kept_states, models, packed, unpacked
from pflsweep.conformance.properties import (
    MOST,
    PROPERTIES,
    Property,
    another_device_changes_nothing,
    any_chunking_with_noise,
    hard_clients_are_survived,
)
from pflsweep.engine import workers as engine_workers
from pflsweep.engine.clients import Clients
from pflsweep.engine.evaluate import OWN
from pflsweep.engine.simulation import RoundResult, Simulation
from pflsweep.engine.workers import Workers
from pflsweep.methods.protocol import Verbs
from pflsweep.ops import memory
from pflsweep.plugins.privacy import DpSgd
from pflsweep.records.record import Record
from pflsweep.trial.build import build
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once
from tests.broken import SendsInTurns
from tests.conformance.test_methods import TABLE, TRIED, case
from tests.sweep.sweeping import MAIN, require_same

# Left out: a property that takes too long, and one of the CPU alone
NOT_OF_WORKERS = (hard_clients_are_survived, another_device_changes_nothing)

pytestmark = pytest.mark.skipif(
    not engine_workers.possible(torch.device("cpu")), reason="workers need Linux without a GPU"
)

FORK = engine_workers._fork


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Send all work to workers, however short it is, and yield their pids. At the end none of them is left."""
    pids: list[int] = []

    def counted(*args: Any) -> Any:
        pipe, pid = FORK(*args)
        pids.append(pid)
        return pipe, pid

    monkeypatch.setattr(engine_workers, "MARGIN", 0.0)
    monkeypatch.setattr(engine_workers, "CROWDED", 0.0)
    monkeypatch.setattr(engine_workers, "_fork", counted)
    yield pids
    assert gone(pids)


def by_a_clock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let `map` fork where that pays, by a clock that a busy machine does not change: a fork takes 0.01 s.

    Returns what a job calls to take some seconds.
    """
    now, fork = [0.0], engine_workers._fork

    def take(seconds: float) -> None:
        now[0] += seconds
        time.sleep(seconds)

    def forked(*args: Any) -> Any:
        now[0] += 0.01
        return fork(*args)

    monkeypatch.setattr(engine_workers, "MARGIN", 2.0)
    monkeypatch.setattr(engine_workers, "perf_counter", lambda: now[0])
    monkeypatch.setattr(engine_workers, "_fork", forked)
    return take


def followed(sim: Simulation, rounds: int) -> dict[str, torch.Tensor]:
    """Train some rounds more, and return all that can be seen of a simulation."""
    results: list[RoundResult] = list(islice(sim.run(), rounds))
    seen = {**kept_states(sim), **models(sim)}
    for k, result in enumerate(results):
        columns = {f"{view} {name}": column for view, score in result.scores.items() for name, column in
                   score._asdict().items()}  # fmt: skip
        privacy = {} if result.privacy is None else result.privacy._asdict()
        counts = torch.tensor([result.images, *result.traffic], dtype=torch.float64)
        tensors = {**{name: torch.from_numpy(column) for name, column in columns.items()}, **result.shown, **privacy}
        seen |= {f"{name}, result {k}": value for name, value in {**tensors, "counts": counts}.items()}
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_workers_change_no_bit(name: str, forks: list[int]) -> None:
    """Two workers, then three in a simulation that continues from the checkpoint of the two."""
    of, how = replace(case(name), optimiser_state="kept"), {"participation": MOST, "eval_every": 1}
    one, two = of.simulation(**how), replace(of, workers=2).simulation(**how)
    assert_same(followed(two, 2), followed(one, 2), "two workers")
    assert len(forks) >= 2 * (1 + 1), "both rounds train and evaluate in forks"
    three = unpacked(replace(of, workers=3).simulation(**how), packed(two))
    assert_same(followed(three, 1), followed(one, 1), "three workers, resumed")


@pytest.mark.slow
@pytest.mark.parametrize("property_", [p for p in PROPERTIES if p not in NOT_OF_WORKERS])
@pytest.mark.parametrize("name", ["fedala", "fedfomo", "asks back", "fedavg private"])
def test_property(name: str, property_: Property) -> None:
    if DpSgd in TABLE[name].plugs and property_ is any_chunking_with_noise:
        pytest.skip("DP-SGD refuses batch norm")
    property_(replace(case(name), workers=2))


def test_evaluation_on_everybodys_rows(forks: list[int]) -> None:
    """G-acc, S-acc and the view before aggregation, with dropout and batch norm, in chunks of two."""
    metrics = replace(OWN, subset=0.5, all=True, trained=True)
    seen = []
    for workers in (1, 3):
        sim = replace(case("fedrod"), workers=workers).simulation(
            where={"images": True}, eval_every=1, participation=MOST, chunk=2
        )
        sim.metrics = metrics
        seen.append(followed(sim, 2))
    assert_same(seen[1], seen[0], "three workers")
    assert {"personal_all correct, result 1", "trained_subset loss, result 1"} <= seen[0].keys()
    assert forks


def test_an_upload_may_change_its_shape(forks: list[int]) -> None:
    of = case_of(SendsInTurns, {})
    one, two = (replace(of, workers=workers).simulation(participation=1.0) for workers in (1, 2))
    assert_same(followed(two, 4), followed(one, 4), "every second round sends more")
    assert len(forks) == 4


def test_what_the_server_keeps_of_an_upload_is_not_written_over(forks: list[int]) -> None:
    """The server's next model is a view of memory into which the next uploads might be written."""

    def first_of_cohort(verbs: Verbs) -> Verbs:
        return verbs._replace(aggregate=lambda server, up, turn: server._replace(w=up.w[0]))

    one, two = (
        replace(case_of(FedAvg, {}), workers=workers).simulation(watch=first_of_cohort, participation=1.0)
        for workers in (1, 2)
    )
    assert_same(followed(two, 4), followed(one, 4), "the server keeps a view")
    assert forks


# Failures


def failing(on: Callable[[], bool], fail: Callable[[], Any], workers: int = 2) -> Simulation:
    """FedAvg whose `fit` fails once, in a worker, where `on` says so."""
    here = os.getpid()

    def watch(verbs: Verbs) -> Verbs:
        def fit(given: Any, data: Any, work: Any) -> Any:
            if os.getpid() != here and on():
                fail()
            return verbs.fit(given, data, work)

        return verbs._replace(fit=fit)

    return replace(case_of(FedAvg, {}), workers=workers).simulation(watch=watch, participation=1.0)


class Particular(Exception):  # noqa: N818 (a name for a test)
    def __init__(self, place: str, number: int) -> None:
        super().__init__(place, number)
        self.place, self.number = place, number


def raise_(error: BaseException) -> None:
    raise error


def test_an_exception_arrives_as_itself_with_its_traceback() -> None:
    sim = failing(lambda: True, lambda: raise_(Particular("here", 7)))
    with pytest.raises(Particular) as caught:
        next(sim.run())
    assert (caught.value.place, caught.value.number) == ("here", 7)
    (note,) = caught.value.__notes__
    assert note.startswith("In a worker process:\nTraceback")
    assert "raise_(Particular" in note


def test_a_user_error_keeps_its_words() -> None:
    with pytest.raises(UserError) as caught:
        next(failing(lambda: True, lambda: raise_(UserError("use less"))).run())
    assert str(caught.value) == "use less"


def test_an_exception_that_cannot_travel_is_told_in_words() -> None:
    class LocalError(Exception):
        pass

    with pytest.raises(RuntimeError, match="LocalError: nobody else knows this class"):
        next(failing(lambda: True, lambda: raise_(LocalError("nobody else knows this class"))).run())


def test_a_method_that_leaves_the_process_is_no_result() -> None:
    with pytest.raises(SystemExit, match="3"):
        next(failing(lambda: True, lambda: raise_(SystemExit(3))).run())


def test_a_killed_worker_is_an_error_that_says_so() -> None:
    sim = failing(lambda: True, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(UserError, match=r"died \(exit status -9.*record is whole.*train.workers=1"):
        next(sim.run())


def test_a_signal_to_the_whole_process_group_is_for_the_command_alone(forks: list[int]) -> None:
    """`timeout` and Slurm send SIGTERM to all processes; the command ends the round, for which it needs its workers."""
    here = os.getpid()

    def do(k: int) -> int:
        if os.getpid() != here:
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
        return k

    workers = Workers(2)
    for _ in range(2):
        assert sorted(workers.map("any", [1.0] * 6, do)) == [(k, k) for k in range(6)]
    assert forks


def test_after_a_failure_a_checkpoint_brings_everything_back(tmp_path: Path) -> None:
    """The fourth round fails; after loading the checkpoint the same simulation continues bitwise."""
    once = tmp_path / "failed"
    sim = failing(lambda: sim.round == 4 and not once.exists(), lambda: once.touch() or os.kill(os.getpid(), 9))
    state = packed(advance(sim, 3))
    with pytest.raises(UserError, match="died"):
        next(sim.run())
    whole = case_of(FedAvg, {}).simulation(participation=1.0)
    advance(whole, 3)
    assert_same(followed(unpacked(sim, state), 2), followed(whole, 2), "after a worker was killed")


# What goes to workers


def test_jobs_are_all_done_once_and_the_largest_first(forks: list[int]) -> None:
    workers, here = Workers(3), os.getpid()
    done = dict(workers.map("x", [3, 1, 7, 5, 2, 6, 4], lambda k: (k, os.getpid())))
    assert {k: said for k, (said, _) in done.items()} == {k: k for k in range(7)}
    assert done[2][1] == here, "the very first is done here"
    assert (done[5][1], done[3][1]) == tuple(forks), "each worker begins with one of the largest"
    assert {pid for _, pid in done.values()} <= {here, *forks}
    again = dict(workers.map("x", [1.0, 2.0], lambda k: os.getpid()))
    assert again[1] == forks[2]
    assert again[0] in (here, forks[2])
    assert len(forks) == 3, "no more processes than jobs"
    assert dict(workers.map("x", [1.0], lambda k: os.getpid())) == {0: here}, "one job needs none"


def test_very_many_jobs_are_all_done_once(forks: list[int]) -> None:
    seen = list(Workers(3).map("x", [1.0] * 5000, lambda k: (k, os.getpid())))
    assert sorted(k for k, _ in seen) == list(range(5000))
    assert all(k == said for k, (said, _) in seen)
    assert {pid for _, (_, pid) in seen} >= set(forks)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["done", "closed", "fails here", "fails there"])
def test_nothing_is_left_of_workers(end: str) -> None:
    """No processes and no open files are left; workers that are done are collected when the next ones start."""
    here, workers = os.getpid(), Workers(3)
    others = set(children(here))
    # The very first map
    dict(workers.map("x", [1.0] * 9, lambda k: k))

    def do(k: int) -> int:
        time.sleep(0.02)
        if end == ("fails here" if os.getpid() == here else "fails there"):
            raise Particular(end, k)
        return k

    files = open_files()
    for _ in range(3):
        with suppress(Particular):
            answers = workers.map("x", [1.0] * 9, do)
            next(answers)
            answers.close() if end == "closed" else dict(answers)  # type: ignore[attr-defined]
            assert end in ("done", "closed")
        assert len(set(children(here)) - others) == (2 if end == "done" else 0)
    assert open_files() == files
    del workers, answers
    gc.collect()
    assert set(children(here)) <= others


@pytest.mark.parametrize("granted", [0, 1])
def test_where_no_fork_is_granted_fewer_processes_do_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, granted: int
) -> None:
    """A limit on processes, memory or open files costs time and no trial: it once ended in a traceback."""
    workers, files, fork = Workers(3), open_files(), os.fork
    warn_once.cache_clear()
    dict(workers.map("x", [1.0] * 2, lambda k: k))
    left = [granted]

    def limited() -> int:
        left[0] -= 1
        if left[0] < 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    assert dict(workers.map("x", [1.0] * 9, lambda k: k)) == {k: k for k in range(9)}
    assert dict(workers.map("x", [1.0] * 9, lambda k: k)) == {k: k for k in range(9)}, "and none is tried again at once"
    assert left == [-1]
    assert [record.message for record in caplog.records] == [
        "Resource temporarily unavailable: no worker process could be forked, so that fewer work"
    ]
    assert dict(workers.map("x", [1.0] * 9, lambda k: k)) == {k: k for k in range(9)}
    del workers
    gc.collect()
    assert open_files() == files


def test_without_a_further_open_file_one_process_does_all(monkeypatch: pytest.MonkeyPatch, forks: list[int]) -> None:
    workers = Workers(3)
    dict(workers.map("x", [1.0] * 2, lambda k: k))
    before = len(forks)

    def no_files() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pipe", no_files)
    assert dict(workers.map("x", [1.0] * 9, lambda k: k)) == {k: k for k in range(9)}
    assert len(forks) == before


def test_an_exception_of_this_process_is_its_own() -> None:
    here, workers = os.getpid(), Workers(2)
    dict(workers.map("x", [1.0] * 2, lambda k: k))
    with pytest.raises(Particular) as caught:
        dict(
            workers.map(
                "x", [1.0] * 9, lambda k: raise_(Particular("", k)) if os.getpid() == here else time.sleep(0.05)
            )
        )
    assert not hasattr(caught.value, "__notes__")


def test_one_slow_map_does_not_make_short_ones_fork(monkeypatch: pytest.MonkeyPatch, forks: list[int]) -> None:
    take = by_a_clock_of_its_own(monkeypatch)
    workers = Workers(4)
    dict(workers.map("x", [1.0] * 9, lambda k: take(0.1)))
    assert len(forks) == 3
    for _ in range(3):
        dict(workers.map("x", [1.0] * 9, lambda k: take(0)))
    assert len(forks) <= 6, "the first short one shows what it takes"


@pytest.mark.parametrize(("core", "expected"), [(0.4, [1, 1, 0, 0, 1, 0, 0, 1, 0]), (0.9, [1] * 9)])
def test_on_a_crowded_machine_one_process_works_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch, forks: list[int], core: float, expected: list[int]
) -> None:
    """Two processes that get 0.4 of a core each are no faster than one. A single such map may be by chance."""
    monkeypatch.setattr(engine_workers, "CROWDED", 1.25)
    monkeypatch.setattr(engine_workers, "ALONE", 2)
    monkeypatch.setattr(engine_workers, "thread_time", lambda: core * time.perf_counter())
    workers, counts = Workers(2), []
    for _ in expected:
        before = len(forks)
        assert dict(workers.map("x", [1.0] * 4, lambda k: time.sleep(0.06) or k)) == {k: k for k in range(4)}
        counts.append(len(forks) - before)
    assert counts == expected


def test_what_forks_write_into_shared_memory_is_seen_here() -> None:
    theirs, shared = torch.zeros(4), memory.zeros((4,), torch.float32, torch.device("cpu"))
    here = os.getpid()

    def write(k: int) -> tuple[int, int]:
        theirs[k], shared[k] = k + 1, k + 1
        return os.getpid(), torch.get_num_threads()

    done = dict(Workers(2).map("x", [4, 3, 2, 1], write))
    assert {threads for pid, threads in done.values() if pid != here} == {1}
    assert shared.tolist() == [1, 2, 3, 4]
    assert theirs.tolist() == [k + 1 if done[k][0] == here else 0 for k in range(4)], "what jobs write here stays, too"


def test_memory_is_given_out_again_when_nothing_lies_in_it() -> None:
    pool = memory.Pool()
    first = pool.empty((4, 5), torch.float32)
    at, part = first.data_ptr(), first[1:3].flatten()[2:]
    del first
    other = pool.empty((4, 5), torch.float32)
    assert other.data_ptr() != at, "a part of it is still used"
    del part
    assert pool.empty((2, 5), torch.int64).data_ptr() == at, "as many bytes"
    assert pool.empty((0, 5), torch.float32).shape == (0, 5)


def test_memory_that_nobody_asks_for_again_is_let_go() -> None:
    """Uploads have another size in each round, two at a time."""
    before, pool = shared_memory(), memory.Pool()
    for megabytes in range(1, 20):
        two = [pool.empty((megabytes << 20,), torch.uint8).fill_(k) for k in (1, 2)]
    assert shared_memory() - before < 2 * 19 + 2 * 18 + 2, "those of the last round, and of the one before"
    assert [int(each[-1]) for each in two] == [1, 2]
    del two
    assert pool.empty((19 << 20,), torch.uint8).sum() == 2 * 19 << 20, "the newest is still there"


def test_workers_can_be_asked_from_a_thread() -> None:
    """A notebook or Dask may fork from a thread that is not the main one."""
    found: dict[int, int] = {}
    thread = threading.Thread(target=lambda: found.update(Workers(2).map("x", [3, 2, 1], lambda k: os.getpid())))
    thread.start()
    thread.join(60)
    assert len(set(found.values())) >= 2


def test_short_work_stays_here(monkeypatch: pytest.MonkeyPatch, forks: list[int]) -> None:
    take = by_a_clock_of_its_own(monkeypatch)
    workers = Workers(2)
    for _ in range(3):
        found = dict(workers.map("short", [1.0] * 5, lambda k: take(0.001) or os.getpid()))
        assert set(found.values()) == {os.getpid()}
    assert not forks
    found = dict(workers.map("long", [1.0] * 8, lambda k: take(0.05) or os.getpid()))
    assert len(set(found.values())) == 2


def test_rows_of_clients_that_were_never_sampled_take_no_memory() -> None:
    """A hundred thousand clients have a megabyte each, 100 GB, of which two rows are written and five are read."""
    before = shared_memory()
    clients = Clients(torch.zeros(2**18), 100_000)
    clients.put(torch.tensor([5, 70_000]), torch.ones(2, 2**18))
    assert clients.get(torch.tensor([5, 6, 7, 8, 70_000])).mean(1).tolist() == [1, 0, 0, 0, 1]
    assert clients.state()["ids"].tolist() == [5, 70_000]
    assert 1.9 < shared_memory() - before < 4


def shared_memory() -> float:
    """Return the MB of this process that are in shared memory or in files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssShmem", "RssFile"))) / 1024


# The setting


def workers_at(monkeypatch: pytest.MonkeyPatch, cores: int, *overrides: str) -> int:
    """Return the value of train.workers=auto for 10 clients, where this process has a number of cores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    few = ["partition.clients=10", "train.participation=1", "device=cpu"]
    return build(compose([*few, *overrides])).schedule.workers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cores", "overrides", "wanted"),
    [
        (2, [], 2),
        (1, [], 1),
        (16, [], 10),
        (16, ["train.participation=0.8"], 8),
        # More than two threads a client
        (16, ["train.participation=0.7"], 1),
        (2, ["train.threads=2"], 1),
        (2, ["train.threads=1"], 2),
        (2, ["train.workers=4"], 4),
        (2, ["train.workers=1"], 1),
        (1, ["train.workers=2"], 2),
    ],
)
def test_as_many_workers_as_cores_where_the_cohort_has_work_for_them(
    cores: int, overrides: list[str], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workers_at(monkeypatch, cores, *overrides) == wanted


def test_where_a_fork_cannot_train_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert workers_at(monkeypatch, 2) == workers_at(monkeypatch, 2, "train.workers=2") == 1
    assert not engine_workers.possible(torch.device("cuda"))


def test_workers_of_several_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"train.workers is 2 and train.threads 2.*use train.threads=1, or"):
        workers_at(monkeypatch, 2, "train.threads=2", "train.workers=2")


# The whole command

# On a crowded machine the command would compute in one process
UNCROWDED = "from pflsweep.engine import workers; workers.CROWDED = 0.0\n"
# Rounds of half a second, half of it in workers
LONG = [
    "dataset=digits", "model=mlp", "partition.clients=10", "train.participation=1", "train.epochs=25", "train.rounds=6",
    "checkpoint.every=0", "tracking=none",
]  # fmt: skip


def start(folder: Path, workers: int) -> subprocess.Popen:
    """Start the command in its own process group, as a terminal would."""
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(
        [sys.executable, "-c", UNCROWDED + MAIN, *LONG, f"train.workers={workers}"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen) -> None:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return list(map(int, found.split()))


def workers_of(process: subprocess.Popen, folder: Path) -> list[int]:
    """Return the command's workers, as soon as it has one and a checkpoint."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        # Without those that have ended and are not collected yet
        found = [pid for pid in children(process.pid) if alive(pid)]
        if found and list(folder.glob("runs/*/checkpoint.pt")):
            return found
        time.sleep(0.005)
    raise AssertionError(f"there were no workers: {process.communicate()}")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.01)
    return False


def alive(pid: int) -> bool:
    """Return whether a process exists and is not just an exit status that was not collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the trial in one process."""
    folder = tmp_path_factory.mktemp("one")
    finish(start(folder, 1))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ctrl-c", "twice", "kill -9", "kill -9 of a worker"])
def test_what_ends_the_command_or_a_worker_loses_nothing(what: str, tmp_path: Path, undisturbed: Path) -> None:
    process = start(tmp_path, 2)
    pids = workers_of(process, tmp_path)
    if what == "kill -9":
        process.kill()
    elif what == "kill -9 of a worker":
        os.kill(pids[0], signal.SIGKILL)
    else:
        # A terminal sends the signal to workers too
        os.killpg(process.pid, signal.SIGINT)
    if what == "twice":
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert gone(pids), "no worker outlives the command"
    wanted = {"kill -9": -9, "kill -9 of a worker": 2}.get(what, 130)
    assert process.returncode == wanted, said
    assert ("worker process has died" in said) == (what == "kill -9 of a worker")
    (record,) = (tmp_path / "runs").iterdir()
    (status,) = [json.loads((record / "status.json").read_text())["status"]]
    assert status == {"kill -9": "running", "kill -9 of a worker": "failed"}.get(what, "interrupted")
    assert 1 <= Record(record).done < 6
    finish(start(tmp_path, 3))
    require_same(undisturbed, tmp_path)


@pytest.mark.slow
def test_a_thread_that_writes_while_a_worker_is_forked_does_not_hold_it_up(tmp_path: Path) -> None:
    """A fork has a copy of the lock that the thread holds on its stream, and not the thread that would release it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, threading, time\n"
        "from pflsweep.engine.workers import Workers\n"
        "over = threading.Event()\n"
        "def write():\n"
        "    while not over.is_set():\n"
        "        print('x' * 3000, file=sys.stderr, flush=True)\n"
        "thread = threading.Thread(target=write)\n"
        "thread.start()\n"
        "workers = Workers(4)\n"
        "for _ in range(20):\n"
        "    assert dict(workers.map('job', [1.0] * 8, lambda k: time.sleep(0.02) or k)) == dict(enumerate(range(8)))\n"
        "    workers._alone = 0\n"
        # Python aborts at its end where a thread still holds that lock
        "over.set()\n"
        "thread.join()\n"
    )
    # Unbuffered streams have no such lock
    env = {
        **{k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    with open(tmp_path / "stderr", "w") as stderr:
        subprocess.run([sys.executable, program], env=env, stderr=stderr, check=True, timeout=120)
