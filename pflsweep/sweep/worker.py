"""The loop of a worker: lease a slot of the plan, train its trials, store the result, until nothing is left."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from socket import gethostname
from typing import Any, Self

import pandas as pd
from optuna.exceptions import UpdateFinishedTrialError

from pflsweep.config.options import Tracking
from pflsweep.engine.stack import StackMember, run_stack
from pflsweep.engine.workers import WorkerDied
from pflsweep.records.record import Record
from pflsweep.sweep import attributes
from pflsweep.sweep.mlflow_names import trial_labels
from pflsweep.sweep.plan import Plan, Slot, stackable
from pflsweep.sweep.queue import Lease, Queue
from pflsweep.sweep.storage import storage_url
from pflsweep.tracking.logging import Labels
from pflsweep.tracking.run import RunTracker, open_run, part_of
from pflsweep.trial.metadata import class_nodes, own_code_hashes
from pflsweep.trial.process import Stop, interruptible, process_wide, threads_each
from pflsweep.trial.progress import quietly
from pflsweep.trial.result import Result
from pflsweep.trial.run import LeaseLost, Pruned, run_trial
from pflsweep.util import trace
from pflsweep.util.errors import Diverged, UserError, shortened, without_password
from pflsweep.util.files import DiskFull, Locked
from pflsweep.util.retry import StorageUnavailable

log = logging.getLogger(__name__)
PAUSE = 1.0  # seconds until the queue is read again where no slot is free
LONGEST = 30.0  # seconds after which a trial that another process trains is looked at again, at most


class NoWinner(Exception):  # noqa: N818 (no error of its own)
    """A final trial cannot be trained, since every point of its search has lost."""


SILENT = "this worker was silent for too long (suspended, or cut off from the database)"
LOST = f"{SILENT}, and another has taken the trial over. It is stopped here; what is trained is kept."
EXPIRED = f"{SILENT}, so its outcome is not stored here. What is trained is kept, and the trial is enqueued again."


class LeasedTracker:
    """Pass a trial's rounds on to tracking while this worker holds the trial's lease.

    Later another worker may be sending the same rounds.
    """

    def __init__(self, tracker: RunTracker, held: Callable[[], bool]) -> None:
        self._tracker, self._held = tracker, held

    def __enter__(self) -> Self:
        self._tracker.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if self._held():
            self._tracker.__exit__(kind, *rest)

    def log_rounds(self, record: Record) -> None:
        if self._held():
            self._tracker.log_rounds(record)

    def finish(self, record: Record, status: str) -> None:
        if self._held():
            self._tracker.finish(record, status)


def work(plan: Plan, index: int = 0, stop: Stop = lambda: False, name: str = "") -> None:
    """Train until every slot of the plan is settled, by this worker or another.

    index: number of this worker on its machine. stop: returns True when the command is gone or the worker's time is
    over. name: by which the command reports this worker's death. Raises KeyboardInterrupt on `stop`, Ctrl-C and
    SIGTERM; StorageUnavailable where a database is unavailable for long; DiskFull.
    """
    _share_machine(index, plan.workers.count)
    _check_code(plan)
    queue = Queue(plan, worker=name)
    queue.refresh()
    if not any(state.trial for state in queue.sweep.states.values()):
        raise UserError(
            f"{without_password(storage_url(plan))} on {gethostname()} is not the database of the command. Machines "
            "meet in one that all of them reach: workers.storage=postgresql://user:password@host/name."
        )
    # Signals take effect between the steps of this loop and after rounds alone: an exception in the middle of a call to
    # a database would leave transactions open, or be swallowed by a library
    with interruptible(stop) as over, quietly(), part_of(plan.id), _heartbeats(queue) as holding:
        busy: set[Slot] = set()  # slots with a trial that another process trains, perhaps for another sweep
        again, wait = 0.0, PAUSE  # when these are tried again. Each try builds the trial's data, so that waits double
        while not queue.sweep.finished:
            if over():
                raise KeyboardInterrupt
            leases = _leases(queue, busy)
            if not leases:
                if not queue.sweep.finished:
                    time.sleep(PAUSE)
                    queue.revive()
                if time.monotonic() >= again:
                    busy.clear()
                continue
            with holding(leases):
                found = _train_and_store_all(queue, leases, over)
            wait = min(2 * wait, LONGEST) if found else PAUSE
            again = time.monotonic() + wait
            busy |= found


def _check_code(plan: Plan) -> None:
    """Raise UserError if code of the user's own was edited after the plan was made.

    A worker that starts later than the command, for a dead one or as a job of a cluster, would import the new code and
    put its results beside those of the old one.
    """
    for group, code in zip(plan.groups, plan.code, strict=False):
        if code and own_code_hashes(group.config) != code:
            named = ", ".join(f"{node}" for node in class_nodes(group.config))
            raise UserError(
                f"{group.name}: your own code ({named}) was edited after the command had begun. Its trials would be of "
                "two versions: stop the command if it still runs, and give it again."
            )


def _leases(queue: Queue, busy: set[Slot]) -> list[Lease]:
    """Lease what this worker trains next: a slot, or up to workers.stack slots whose trials can train as one cohort."""
    first, plan = queue.lease_next(busy), queue.plan
    if first is None:
        return []
    own, leases = plan.groups[first.slot.group], [first]
    # DP-SGD does not stack: each trial would train in a thread of its own
    if plan.workers.stack == 1 or own.config.chooses("privacy"):
        return leases
    groups = {number for number, group in enumerate(plan.groups) if stackable(own, group)}
    unstackable = {slot for slot in plan.slots if slot.group not in groups and not _of_one_point(slot, first.slot)}
    # The search has another config than final trials
    if own.search is not None:
        unstackable |= {slot for slot in plan.slots if slot.final != first.slot.final}
    try:
        while len(leases) < plan.workers.stack and (more := queue.lease_next(busy | unstackable)) is not None:
            leases.append(more)
    except BaseException:
        _release(queue, leases)
        raise
    return leases


def _of_one_point(slot: Slot, other: Slot) -> bool:
    """Return whether two slots are final trials of one group, which differ in seeds alone."""
    return slot.final and other.final and slot.group == other.group


def _release(queue: Queue, leases: list[Lease]) -> None:
    """Give slots back to the queue. Leases of those for which that fails expire."""
    for lease in leases:
        with suppress(Exception):
            queue.release(lease)


def _train_and_store_all(queue: Queue, leases: list[Lease], stop: Stop) -> set[Slot]:
    """Train the trials of some slots, several as a stack, and store the results. Return the slots with a trial that
    another process trains.

    Raises KeyboardInterrupt, StorageUnavailable, DiskFull and errors of the database, but only after it has tried to
    store all results.
    """
    if len(leases) == 1:
        return (
            set() if _train_and_store(queue, leases[0], partial(_train, queue, leases[0], stop)) else {leases[0].slot}
        )
    plan, slot = queue.plan, leases[0].slot
    try:
        train = plan.groups[slot.group].config.train
        with process_wide(train.threads, train.precision):
            ended, stack = run_stack([partial(_train, queue, lease, stop) for lease in leases])
    except BaseException:
        # A second Ctrl-C
        _release(queue, leases)
        raise
    if stack.refused:
        title = plan.title(slot, leases[0].point)
        log.warning("%s and %d more were trained one by one: %s", title, len(leases) - 1, stack.refused)
    busy, over = set(), None
    for lease, outcome in zip(leases, ended, strict=True):
        try:
            if not _train_and_store(queue, lease, partial(_result_or_raise, outcome)):
                busy.add(lease.slot)
        except BaseException as end:
            # The lease of a slot that is neither stored nor released expires
            over = end
    if over is not None:
        raise over
    return busy


def _result_or_raise(outcome: Any) -> Any:
    """Return the results of a stacked slot, or raise its exception."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _train_and_store(queue: Queue, lease: Lease, train: Callable[[], list[dict[str, Any]]]) -> bool:
    """Train a slot's trials by `train`, and store the result or the failure.

    Return False if another process trains one of them. Raises KeyboardInterrupt, StorageUnavailable, DiskFull.
    """
    try:
        results = train()
    except Locked:
        _release(queue, [lease])
        return False
    except LeaseLost as lost:
        log.warning("%s: %s", queue.plan.title(lease.slot, lease.point), lost)
        return False
    except (KeyboardInterrupt, StorageUnavailable, DiskFull):
        # These say nothing about the trial, so that its slot stays open
        _release(queue, [lease])
        raise
    except WorkerDied as death:
        log.warning("%s: %s", queue.plan.title(lease.slot, lease.point), death)
        _store(queue.plan, queue.retry_after_death, lease, f"exit status {death.status} of one of its processes")
    except Pruned as loser:
        _store(queue.plan, queue.prune, lease, {"reason": str(loser)})
    except Exception as error:
        kinds = {attributes.INPUT: UserError, attributes.DIVERGED: Diverged, attributes.NO_WINNER: NoWinner}
        more: dict[str, Any] = {kind: True for kind, cls in kinds.items() if isinstance(error, cls)}
        # Any other error is a bug, whose traceback is kept
        more = more or {attributes.TRACE: trace.text(error)[-4000:]}
        _store(queue.plan, queue.fail, lease, _reason(error), **more)
        _free_memory()
    else:
        value = sum(result["value"] for result in results) / len(results)
        _store(queue.plan, queue.complete, lease, value, {"trials": results})
    return True


def _train(queue: Queue, lease: Lease, stop: Stop, member: StackMember | None = None) -> list[dict[str, Any]]:
    """Train a slot's trials, one a seed, and return their results. member: in a stack. Raises NoWinner."""
    plan, sweep, slot = queue.plan, queue.sweep, lease.slot
    if slot.final and sweep.winner(slot.group) is None:
        lost = next(
            (state.reason for each in plan.search_slots(slot.group) if (state := sweep.states[each]).reason),
            "pruned",
        )
        raise NoWinner(f"its search has no winner: every point has lost ({lost})")
    results = []
    for k, config in enumerate(plan.configs(slot, lease.point)):
        before = k * config.train.rounds
        labels = trial_labels(plan, slot, lease.point, config.seed)
        after_round, open_tracker = (
            _AfterRound(queue, lease, before),
            partial(_open_tracker, queue, lease, before, labels),
        )
        result = run_trial(
            config, open_tracker, after_round, stop, member, sweep_workers=plan.workers.count, labels=labels
        )
        # Of rounds that were trained before, it has seen none
        after_round.report(result.rounds)
        results.append(outcome(result, plan, slot))
    return results


def _open_tracker(
    queue: Queue, lease: Lease, before: int, labels: Labels, options: Tracking, record: Record
) -> RunTracker:
    """Open a trial's run in MLflow. before: rounds of the slot's earlier seeds. Raises LeaseLost."""
    queue.begin(lease, record.folder, before, record.done)
    # A machine that was suspended until here must not set a run to RUNNING that another worker has finished
    if not queue.holds(lease):
        raise LeaseLost(LOST)
    return LeasedTracker(open_run(options, record, labels), partial(queue.holds, lease))


def outcome(result: Result, plan: Plan, slot: Slot) -> dict[str, Any]:
    """Return a finished trial's result as the queue stores it.

    value: the accuracy that slots are compared by. test: the accuracy of the same models on test data. It chooses
    nothing unless tune.split is test; reports use it to say what a search would have found with fewer points.
    """
    rounds, view = result.rounds, plan.tune.view
    column = selected_column(plan, slot)
    scored = rounds[rounds[column].notna()] if column in rounds else rounds[:0]
    if scored.empty:
        method = plan.groups[slot.group].method
        if f"{view}_accuracy" in rounds:
            raise UserError(
                f"No client of {method} has a validation row: its training rows times tune.validation "
                f"({plan.tune.validation}) round to none. Give clients more rows, or use a larger tune.validation."
            )
        raise UserError(f"tune.view is {view}, but {method} has no such model to be scored.")
    # A final trial's accuracy is on test data, which must not choose the round
    counted = scored.iloc[int(scored[column].argmax()) if plan.tune.round == "best" and not slot.final else -1]
    return {
        "value": float(counted[column]),
        "test": float(counted[f"{view}_accuracy"]),
        "identity": result.record.meta["identity"],
        "folder": str(result.record.folder),
        "host": gethostname(),
        "seconds": float(rounds["seconds"].sum() + rounds["eval_seconds"].sum()),
    }


def selected_column(plan: Plan, slot: Slot) -> str:
    """Return the column of rounds.parquet by which slots are compared: on validation data for most searches."""
    held = "validation_" if plan.tune.split == "validation" and not slot.final else ""
    return f"{plan.tune.view}_{held}accuracy"


class _AfterRound:
    """Callback after each round: check the lease, note the progress, and stop a point that the pruner rejects.

    before: rounds of the slot's earlier seeds. Raises LeaseLost, Pruned.
    """

    def __init__(self, queue: Queue, lease: Lease, before: int) -> None:
        self.queue, self.lease, self.before = queue, lease, before
        self.column = selected_column(queue.plan, lease.slot)
        self._reports = queue.plan.tune.prune != "none" and not lease.slot.final
        self._reported = 0  # rounds whose scores the pruner knows

    def __call__(self, record: Record) -> None:
        if not self.queue.holds(self.lease):
            raise LeaseLost(LOST)
        row = record.last_row
        done, total = int(row["round"]), int(record.config["train"]["rounds"])
        reached = self.before + done
        self.queue.note(self.lease, {attributes.ROUND: [done, total], attributes.ROUNDS_REACHED: reached})
        if self._reports and self.report(pd.DataFrame([row]) if self._reported == done - 1 else record.rounds):
            raise Pruned(f"stopped in round {done} at {row[self.column]:.1%}, behind others at that round")

    def report(self, rounds: pd.DataFrame) -> bool:
        """Report the scores of those rounds that the pruner does not know. Return whether it would stop the point.

        A trial that is taken over is a new one in the database, and has to be told of the rounds of before: the pruner
        goes by a point's best one.
        """
        if not self._reports or self.column not in rounds:
            return False
        known, self._reported = self._reported, int(rounds["round"].iloc[-1])
        new = rounds[(rounds["round"] > known) & rounds[self.column].notna()]
        values = {
            self.before + int(done): float(score) for done, score in zip(new["round"], new[self.column], strict=True)
        }
        stops = bool(values) and self.queue.report(self.lease, values)
        return stops and self.before + self._reported in values


def _store(plan: Plan, write: Any, lease: Lease, *what: Any, **more: Any) -> None:
    """Store a slot's outcome by `write`. Warn if its lease has expired meanwhile: then the record alone has it."""
    try:
        write(lease, *what, **more)
    except UpdateFinishedTrialError:
        log.warning("%s: %s", plan.title(lease.slot, lease.point), EXPIRED)


def _reason(error: Exception) -> str:
    """Return an error as one line, for the summary and the database."""
    text = shortened(error, 500)
    return text if isinstance(error, UserError | NoWinner) else f"{type(error).__name__}: {text}"


def _free_memory() -> None:
    """Free the memory of a trial that failed, which may have been out of it."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _share_machine(index: int, count: int) -> None:
    """Divide a machine's threads among its workers, and assign its GPUs in turn. index: of this worker, of `count`."""
    if count == 1:
        return
    import torch

    torch.set_num_threads(threads_each(count))
    if torch.cuda.is_available():
        torch.cuda.set_device(index % torch.cuda.device_count())


@contextmanager
def _heartbeats(queue: Queue) -> Iterator[Any]:
    """Yield `holding(leases)`, a context manager within which a thread sends heartbeats for these slots."""
    current: list[Lease] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(queue.plan.workers.heartbeat):
            for lease in list(current):
                # The next heartbeat may reach a database that is unavailable for a moment
                with suppress(Exception):
                    queue.beat(lease)

    @contextmanager
    def holding(leases: list[Lease]) -> Iterator[None]:
        current.extend(leases)
        try:
            yield
        finally:
            current.clear()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield holding
    finally:
        over.set()
        # With a limit, since a heartbeat that hangs in the database must not keep an interrupted command from ending
        thread.join(queue.plan.workers.heartbeat)
