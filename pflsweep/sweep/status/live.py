"""What a person sees while a sweep runs: one live page on a terminal; in a log a line for each trial that ends."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from pflsweep.sweep import cost
from pflsweep.sweep.plan import Job, Plan
from pflsweep.sweep.queue import SETTLED, Queue, SweepTask
from pflsweep.sweep.status import groups
from pflsweep.trial.progress import duration
from pflsweep.util.errors import UserError, shortened

EVERY = 2.0  # seconds between two looks at the storage
QUIET = 10.0  # seconds between two lines on what is running, in a log
RUNNING = 8  # running trials that are named


def trained_before(slot: SweepTask) -> bool:
    """Whether a settled slot's trials were there already: it took a small part of the time that they say."""
    said = sum(each["seconds"] for each in slot.trials)
    took = None if slot.trial is None else slot.trial.duration
    return took is not None and took.total_seconds() < said / 10


class View:
    """Looks at the queue in a thread of its own, from `with` to its end."""

    def __init__(self, plan: Plan, tell: Callable[[Queue], None] = lambda queue: None) -> None:
        """tell: called when trials have ended."""
        self.plan, self._tell = plan, tell
        self.console = Console(stderr=True)
        self._untold = False
        self._over = threading.Event()
        self._queue = Queue(plan, patient=False)
        self._queue.refresh()
        self._began = time.monotonic()
        self._cost = {job: self._gradients(job) for job in plan.jobs}
        self._before = {job for job, slot in self._queue.slots.items() if slot.status in SETTLED}
        self._there = {job: self._share(job) for job in plan.jobs}
        self._said = set(self._before)
        self._since: dict[Job, float] = {}
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._reported = time.monotonic() - QUIET + 2 * EVERY  # the first line on what is running comes soon

    def __enter__(self) -> "View":
        count = len(self._queue.slots)
        done = f", {len(self._before)} of them done before" if self._before else ""
        self._line(f"{self.plan.name}: {count} trial{'s' * (count > 1)}{done}")
        if self.console.is_terminal:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._over.set()
        self._thread.join()
        with suppress(Exception):  # where a database is away, that is said by who needs it
            self._look()
        if self.console.is_terminal:
            self._live.stop()

    def _follow(self) -> None:
        away = False
        while not self._over.wait(EVERY):
            try:
                self._look()
                if away:
                    self._line("The sweep's database is back.")
                away = False
            except Exception as error:  # the workers have more patience
                said = shortened(error.__cause__ or error)
                if not away:
                    self._line(f"The sweep's database cannot be read now ({said}); workers wait for it.")
                away = True

    def _look(self) -> None:
        self._queue.refresh()
        self._there = {job: min(there, self._share(job)) for job, there in self._there.items()}
        before = len(self._said)
        for job, slot in self._queue.slots.items():
            if slot.status == "running":
                self._since.setdefault(job, time.monotonic())
            if slot.status in SETTLED and job not in self._said:
                self._said.add(job)
                if not self.console.is_terminal:
                    self._line(self._end_of(job))
        if len(self._said) > before or self._untold:
            self._pass_on()
        if self.console.is_terminal:
            self._live.update(self._page(), refresh=True)
        elif time.monotonic() - self._reported >= QUIET and not self._over.is_set():
            self._reported = time.monotonic()
            running = self._running()
            for text in running[:-1]:
                self._line(f"running: {text}")
            if running:
                self._line(f"running: {running[-1]}{self._rest()}")

    def _pass_on(self) -> None:
        try:
            self._tell(self._queue)
        except UserError as error:
            if not self._untold:
                self._line(f"{error} It is tried again.")
            self._untold = True
        else:
            self._untold = False

    def _line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _end_of(self, job: Job) -> str:
        slot, count = self._queue.slots[job], len(self._queue.slots)
        what = f"{100 * slot.value:.1f}%" if slot.value is not None else f"{slot.status}: {slot.reason or 'loses'}"
        return f"[{len(self._said)}/{count}] {groups.title(self._queue, job)}: {what}{self._rest()}"

    def _page(self) -> RenderableType:
        counts: dict[str, int] = {}
        for slot in self._queue.slots.values():
            counts[slot.status] = counts.get(slot.status, 0) + 1
        said = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
        head = f"[bold]{self.plan.name}[/bold]: {said}{self._rest()}"
        return Group(head, *(f"  running {text}" for text in self._running()), self._table())

    def _running(self) -> list[str]:
        lines = []
        for job, slot in self._queue.slots.items():
            if slot.status == "running":
                done = slot.result.get("round")
                at = f" round {done[0]} of {done[1]}," if done else ""
                seconds = time.monotonic() - self._since.get(job, time.monotonic())
                lines.append(f"{groups.title(self._queue, job)}:{at} {duration(seconds)}")
        more = [f"and {len(lines) - RUNNING} more"] if len(lines) > RUNNING else []
        return [*lines[:RUNNING], *more]

    def _table(self) -> Table:
        """Best so far of each method and setting, in percent."""
        found = groups.table(self._queue)
        page = Table(*found.columns)
        for row in found.itertuples(index=False):
            page.add_row(*row)
        return page

    def _gradients(self, job: Job) -> float:
        with suppress(UserError):  # its data cannot be read: the trial says so
            return cost.gradients(self.plan, job)
        return 0

    def _share(self, job: Job) -> float:
        """Of a slot's rounds, under all seeds of its trials, those that are trained."""
        slot, rounds = self._queue.slots[job], self.plan.rounds(job)
        if slot.status == "done":
            return 1.0
        reached = slot.result.get("reached", slot.result.get("before", 0))
        return min(1.0, reached / (rounds * (1 if job.final else len(self.plan.tuning_seeds))))

    def _rest(self) -> str:
        left = self._left()
        return f"; about {duration(left)} left in all" if left else ""

    def _left(self) -> float | None:
        """Seconds, by the gradients that were taken since the command began; known trials take no time, and what was
        pruned, or failed, will take no more.
        """
        slots, shares = self._queue.slots, {job: self._share(job) for job in self.plan.jobs}
        over = {job for job, slot in slots.items() if slot.status in SETTLED}
        known = {job for job in over if trained_before(slots[job])}
        gradients = sum(self._cost[job] * (shares[job] - self._there[job]) for job in shares.keys() - known)
        rest = sum(self._cost[job] * (1 - shares[job]) for job in shares.keys() - over)
        return (time.monotonic() - self._began) * rest / gradients if gradients and rest else None
