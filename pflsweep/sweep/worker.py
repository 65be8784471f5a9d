"""A worker: it claims a slot of the plan, trains its trials, tells, and goes on until nothing is left."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from socket import gethostname
from typing import Any, Self

from pflsweep.config.options import Tracking
from pflsweep.engine.stack import Seat, at_once
from pflsweep.records.record import Record
from pflsweep.sweep.browse import labels_of
from pflsweep.sweep.plan import Job, Plan, alike
from pflsweep.sweep.queue import Lease, Queue
from pflsweep.sweep.storage import storage_url
from pflsweep.tracking.logging import Labels
from pflsweep.tracking.run import Listener, open_run, part_of
from pflsweep.trial.process import Stop, interruptible, process_wide, threads_each
from pflsweep.trial.progress import quietly
from pflsweep.trial.run import Diverged, LeaseLost, Pruned, Result, run_trial
from pflsweep.util.errors import UserError, shortened, without_password
from pflsweep.util.files import DiskFull, Locked
from pflsweep.util.retry import StorageUnavailable

log = logging.getLogger(__name__)
PAUSE = 1.0  # seconds between two looks where nothing is free


class NoWinner(Exception):  # noqa: N818 (no error of its own)
    """Every point of a final trial's search has lost."""


LOST = (
    "this worker was silent for too long (suspended, or cut off from the database), and another has taken the trial "
    "over. It is stopped here; what is trained is kept."
)


class LeasedListener:
    """Pass a trial's rounds on to tracking as long as this worker holds the trial's lease. After that another worker
    may be sending the same rounds.
    """

    def __init__(self, listener: Listener, held: Callable[[], bool]) -> None:
        self._listener, self._held = listener, held

    def __enter__(self) -> Self:
        self._listener.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if self._held():
            self._listener.__exit__(kind, *rest)

    def rows(self, record: Record) -> None:
        if self._held():
            self._listener.rows(record)

    def finish(self, record: Record, status: str) -> None:
        if self._held():
            self._listener.finish(record, status)


def work(plan: Plan, index: int = 0, stop: Stop = lambda: False, name: str = "") -> None:
    """Train until every slot of the plan is settled, by this worker or another.

    stop: whether who has started this worker is gone, or its time over. name: under which its command tells of its
    death. Raises KeyboardInterrupt on `stop`, Ctrl-C and SIGTERM; StorageUnavailable where a database is away for long;
    DiskFull.
    """
    _share_machine(index, plan.workers.count)
    queue = Queue(plan, worker=name)
    queue.refresh()
    if not any(slot.trial for slot in queue.slots.values()):
        raise UserError(
            f"{without_password(storage_url(plan))} on {gethostname()} is not the database of the command. Machines "
            "meet in one that all of them reach: workers.storage=postgresql://user:password@host/name."
        )
    # signals are heard between the steps of this loop and after rounds alone: an exception in the middle of a call to a
    # database leaves transactions open, and libraries swallow it
    with interruptible(stop) as over, quietly(), part_of(plan.id), _beating(queue) as holding:
        busy: set[Job] = set()  # slots whose trial another process trains
        while not queue.finished:
            if over():
                raise KeyboardInterrupt
            claims = _claims(queue, busy)
            if not claims:
                if not queue.finished:
                    time.sleep(PAUSE)
                    queue.revive()
                busy.clear()
                continue
            with holding(claims):
                busy |= _settle_all(queue, claims, over)


def _claims(queue: Queue, busy: set[Job]) -> list[Lease]:
    """What this worker trains next: a slot, or workers.stack of them whose trials can train as one cohort."""
    first, plan = queue.claim(busy), queue.plan
    if first is None:
        return []
    own, claims = plan.groups[first.job.group], [first]
    if plan.workers.stack == 1 or own.config.chooses("privacy"):  # each would train in a thread of its own
        return claims
    groups = {number for number, group in enumerate(plan.groups) if alike(own, group)}
    apart = {job for job in plan.jobs if job.group not in groups and not _of_one_point(job, first.job)}
    if own.search is not None:  # points are tried under another config
        apart |= {job for job in plan.jobs if job.final != first.job.final}
    try:
        while len(claims) < plan.workers.stack and (more := queue.claim(busy | apart)) is not None:
            claims.append(more)
    except BaseException:
        _release(queue, claims)
        raise
    return claims


def _of_one_point(job: Job, other: Job) -> bool:
    """Whether their trials differ in seeds alone, whatever was searched."""
    return job.final and other.final and job.group == other.group


def _release(queue: Queue, claims: list[Lease]) -> None:
    for claim in claims:
        with suppress(Exception):
            queue.release(claim)


def _settle_all(queue: Queue, claims: list[Lease], stop: Stop) -> set[Job]:
    """Train the trials of some slots, of several at once, and tell. The slots that are another process's in part.

    Raises KeyboardInterrupt, StorageUnavailable, DiskFull, and what the database raises, when it has been tried to tell
    of all.
    """
    if len(claims) == 1:
        return set() if _settle(queue, claims[0], partial(_trained, queue, claims[0], stop)) else {claims[0].job}
    plan, job = queue.plan, claims[0].job
    try:
        with process_wide(plan.groups[job.group].config):
            ended, stack = at_once([partial(_trained, queue, claim, stop) for claim in claims])
    except BaseException:  # a second Ctrl-C
        _release(queue, claims)
        raise
    if stack.refused:
        title = plan.title(job, claims[0].point)
        log.warning("%s and %d more were trained one by one: %s", title, len(claims) - 1, stack.refused)
    busy, over = set(), None
    for claim, outcome in zip(claims, ended, strict=True):
        try:
            if not _settle(queue, claim, partial(_what_came, outcome)):
                busy.add(claim.job)
        except BaseException as end:  # what is neither told nor released is missed by its heartbeat, as a slot alone is
            over = end
    if over is not None:
        raise over
    return busy


def _what_came(outcome: Any) -> Any:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _settle(queue: Queue, claim: Lease, train: Callable[[], list[dict[str, Any]]]) -> bool:
    """Tell what training a slot's trials has brought. Return False where another process has one of them in work."""
    try:
        results = train()
    except Locked:
        _release(queue, [claim])
        return False
    except LeaseLost as lost:
        log.warning("%s: %s", queue.plan.title(claim.job, claim.point), lost)
        return False
    except (KeyboardInterrupt, StorageUnavailable, DiskFull):  # no fault of the trial
        _release(queue, [claim])
        raise
    except Pruned as loser:
        _told(queue.prune, claim, {"reason": str(loser)})
    except Exception as error:
        kinds = {"input": UserError, "diverged": Diverged, "no_winner": NoWinner}
        more: dict[str, Any] = {kind: True for kind, cls in kinds.items() if isinstance(error, cls)}
        more = more or {"trace": traceback.format_exc()[-4000:]}  # a bug
        _told(queue.fail, claim, _reason(error), **more)
        _let_go_of_memory()
    else:
        value = sum(result["value"] for result in results) / len(results)
        _told(queue.tell, claim, value, {"trials": results})
    return True


def _trained(queue: Queue, claim: Lease, stop: Stop, seat: Seat | None = None) -> list[dict[str, Any]]:
    """The slot's trials, one a seed."""
    plan, job = queue.plan, claim.job
    if job.final and queue.winner(job.group) is None:
        lost = next((slot.reason for each in plan.searched(job.group) if (slot := queue.slots[each]).reason), "pruned")
        raise NoWinner(f"its search has no winner: every point has lost ({lost})")
    results = []
    for k, config in enumerate(plan.configs(job, claim.point)):
        before = k * config.train.rounds
        labels = labels_of(plan, job, claim.point, config.seed)
        watch, listen = _Watch(queue, claim, before), partial(_listen, queue, claim, before, labels)
        result = run_trial(config, listen, watch, stop, seat, beside=plan.workers.count, labels=labels)
        results.append(outcome(result, plan, job))
    return results


def _listen(queue: Queue, claim: Lease, before: int, labels: Labels, options: Tracking, record: Record) -> Listener:
    """Open a trial's run in tracking. before: rounds under earlier seeds."""
    queue.begin(claim, record.folder, before)
    # a machine that slept until here must not set a run to RUNNING that another worker has finished
    if not queue.holds(claim):
        raise LeaseLost(LOST)
    return LeasedListener(open_run(options, record, labels), partial(queue.holds, claim))


def outcome(result: Result, plan: Plan, job: Job) -> dict[str, Any]:
    """A finished trial in a few numbers. value: what slots are compared by. test: the accuracy of the same models on
    test data, which chooses nothing unless tune.split says so, and lets a report tell what a search would have found
    with fewer points.
    """
    rounds, view = result.rounds, plan.tune.view
    column = selected_column(plan, job)
    scored = rounds[rounds[column].notna()] if column in rounds else rounds[:0]
    if scored.empty:
        method = plan.groups[job.group].method
        if f"{view}_accuracy" in rounds:
            raise UserError(
                f"No client of {method} has a validation row: its training rows times tune.validation "
                f"({plan.tune.validation}) round to none. Give clients more rows, or use a larger tune.validation."
            )
        raise UserError(f"tune.view is {view}, but {method} has no such model to be scored.")
    # a final trial's is on test data, which may not choose the round
    counted = scored.iloc[int(scored[column].argmax()) if plan.tune.round == "best" and not job.final else -1]
    return {
        "value": float(counted[column]),
        "test": float(counted[f"{view}_accuracy"]),
        "identity": result.record.meta["identity"],
        "folder": str(result.record.folder),
        "host": gethostname(),
        "seconds": float(rounds["seconds"].sum() + rounds["eval_seconds"].sum()),
    }


def selected_column(plan: Plan, job: Job) -> str:
    """The column of rounds.parquet whose numbers are compared: a search's may be on validation data."""
    held = "validation_" if plan.tune.split == "validation" and not job.final else ""
    return f"{plan.tune.view}_{held}accuracy"


class _Watch:
    """Called after each round: checks the lease, tells the round, and stops a loser. before: rounds under earlier
    seeds.
    """

    def __init__(self, queue: Queue, claim: Lease, before: int) -> None:
        self.queue, self.claim, self.before = queue, claim, before
        self.column = selected_column(queue.plan, claim.job)

    def __call__(self, record: Record) -> None:
        if not self.queue.holds(self.claim):
            raise LeaseLost(LOST)
        row = record.last_row
        done, total = int(row["round"]), int(record.config["train"]["rounds"])
        self.queue.note(self.claim, round=[done, total], reached=self.before + done)
        value = row.get(self.column)
        if self.claim.job.final or self.queue.plan.tune.prune == "none" or value is None or value != value:
            return
        if self.queue.report(self.claim, self.before + done, float(value)):
            raise Pruned(f"stopped in round {done} at {value:.1%}, behind others at that round")


def _told(tell: Any, claim: Lease, *what: Any, **more: Any) -> None:
    """Unless the slot was taken over meanwhile: what this worker has found is in the record."""
    try:
        tell(claim, *what, **more)
    except Exception as error:
        if type(error).__name__ not in ("UpdateFinishedTrialError", "ValueError"):
            raise
        log.warning("%s: taken over by another worker meanwhile", claim.job)


def _reason(error: Exception) -> str:
    """An error in a line, for summary and storage."""
    said = shortened(error, 500)
    return said if isinstance(error, UserError | NoWinner) else f"{type(error).__name__}: {said}"


def _let_go_of_memory() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _share_machine(index: int, count: int) -> None:
    """Threads are divided among the workers of a machine, GPUs assigned in turn."""
    if count == 1:
        return
    import torch

    torch.set_num_threads(threads_each(count))
    if torch.cuda.is_available():
        torch.cuda.set_device(index % torch.cuda.device_count())


@contextmanager
def _beating(queue: Queue) -> Iterator[Any]:
    """Gives `holding(claims)`, a context in which a thread beats for them."""
    current: list[Lease] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(queue.plan.workers.heartbeat):
            for claim in list(current):
                with suppress(Exception):  # a database that is away for a moment
                    queue.beat(claim)

    @contextmanager
    def holding(claims: list[Lease]) -> Iterator[None]:
        current.extend(claims)
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
        # a heartbeat that hangs in the database must not keep a command that was interrupted from ending
        thread.join(queue.plan.workers.heartbeat)
