"""Show a sweep while it runs: one live page on a terminal; in a log, a line for each trial that ends."""

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
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.slots import SETTLED, SlotState
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.status import groups
from pflsweep.trial.progress import duration
from pflsweep.util.errors import UserError, shortened

EVERY = 2.0  # seconds between two reads of the queue
QUIET = 10.0  # seconds between two reports of running trials in a log
BASIS = 60.0  # seconds of training before which, without a finished trial, nothing is said of the time that is left
RUNNING = 8  # running trials that are listed at most


def trained_before(slot: SlotState) -> bool:
    """Return whether a settled slot's trials were trained before: it took under a tenth of their training time."""
    said = sum(each["seconds"] for each in slot.trials)
    took = None if slot.trial is None else slot.trial.duration
    return took is not None and took.total_seconds() < said / 10


class View:
    """Context manager that reads and shows the queue in a thread of its own."""

    def __init__(self, plan: Plan, store: Callable[[SweepState], None] = lambda state: None) -> None:
        """store: called with the state of the sweep when trials have ended; after a UserError it is called again."""
        self.plan, self._store = plan, store
        self.console = Console(stderr=True)
        self._unstored = False
        self._over = threading.Event()
        self._queue = Queue(plan, retry=False)
        self._state = self._queue.state
        self._queue.refresh()
        self._began, self._training = time.monotonic(), False
        self._cost = {job: self._gradients(job) for job in plan.jobs}
        self._before = {job for job, slot in self._state.slots.items() if slot.status in SETTLED}
        self._there = {job: self._share(job) for job in plan.jobs}
        self._said = set(self._before)
        self._since: dict[Job, float] = {}
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        # The first report of running trials comes after two reads
        self._reported = time.monotonic() - QUIET + 2 * EVERY

    def __enter__(self) -> "View":
        count = len(self._state.slots)
        done = f", {len(self._before)} of them done before" if self._before else ""
        self._line(f"{self.plan.name}: {count} trial{'s' * (count > 1)}{done}")
        if self.console.is_terminal:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._over.set()
        self._thread.join()
        # Workers report a database that is unavailable
        with suppress(Exception):
            self._look()
        if self.console.is_terminal:
            self._live.stop()

    def _follow(self) -> None:
        """Read and show the queue until the end. Say when the database becomes unavailable and when it is back."""
        unavailable = False
        while not self._over.wait(EVERY):
            try:
                self._look()
                if unavailable:
                    self._line("The sweep's database is back.")
                unavailable = False
            except Exception as error:
                said = shortened(error.__cause__ or error)
                if not unavailable:
                    self._line(f"The sweep's database cannot be read now ({said}); workers wait for it.")
                unavailable = True

    def _look(self) -> None:
        """Read the queue once, and show what is new."""
        self._queue.refresh()
        new = (slot.status for job, slot in self._state.slots.items() if job not in self._before)
        self._training = self._training or any(status in ("running", *SETTLED) for status in new)
        # Workers take seconds to start, which says nothing of the speed of training
        if not self._training:
            self._began = time.monotonic()
        self._there = {job: min(there, self._share(job)) for job, there in self._there.items()}
        before = len(self._said)
        for job, slot in self._state.slots.items():
            if slot.status == "running":
                self._since.setdefault(job, time.monotonic())
            else:
                self._since.pop(job, None)
            if slot.status in SETTLED and job not in self._said:
                self._said.add(job)
                if not self.console.is_terminal:
                    self._line(self._end_of(job))
        if len(self._said) > before or self._unstored:
            self._store_outcomes()
        if self.console.is_terminal:
            self._live.update(self._page(), refresh=True)
        elif time.monotonic() - self._reported >= QUIET and not self._over.is_set():
            self._reported = time.monotonic()
            running = self._running()
            for text in running[:-1]:
                self._line(f"running: {text}")
            if running:
                self._line(f"running: {running[-1]}{self._rest()}")

    def _store_outcomes(self) -> None:
        """Call `store`. Say once that it failed; the next read calls it again."""
        try:
            self._store(self._state)
        except UserError as error:
            if not self._unstored:
                self._line(f"{error} It is tried again.")
            self._unstored = True
        else:
            self._unstored = False

    def _line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _end_of(self, job: Job) -> str:
        """Return the line about a slot that was settled."""
        slot, count = self._state.slots[job], len(self._state.slots)
        what = f"{100 * slot.value:.1f}%" if slot.value is not None else f"{slot.status}: {slot.reason or 'loses'}"
        return f"[{len(self._said)}/{count}] {groups.title(self._state, job)}: {what}{self._rest()}"

    def _page(self) -> RenderableType:
        """Return the live page: counts by status, running trials, table."""
        counts: dict[str, int] = {}
        for slot in self._state.slots.values():
            counts[slot.status] = counts.get(slot.status, 0) + 1
        said = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
        head = f"[bold]{self.plan.name}[/bold]: {said}{self._rest()}"
        return Group(head, *(f"  running {text}" for text in self._running()), self._table())

    def _running(self) -> list[str]:
        """Return a line for each running trial, at most RUNNING and the number of others."""
        lines = []
        for job, slot in self._state.slots.items():
            if slot.status == "running":
                done = slot.result.get("round")
                at = f" round {done[0]} of {done[1]}," if done else ""
                seconds = time.monotonic() - self._since.get(job, time.monotonic())
                lines.append(f"{groups.title(self._state, job)}:{at} {duration(seconds)}")
        more = [f"and {len(lines) - RUNNING} more"] if len(lines) > RUNNING else []
        return [*lines[:RUNNING], *more]

    def _table(self) -> Table:
        """Return the table of methods and settings, in percent."""
        found = groups.table(self._state)
        page = Table(*found.columns)
        for row in found.itertuples(index=False):
            page.add_row(*row)
        return page

    def _gradients(self, job: Job) -> float:
        """Return the gradients of a slot; 0 if its data cannot be read, which the trial will report."""
        with suppress(UserError):
            return cost.gradients(self.plan, job)
        return 0

    def _share(self, job: Job) -> float:
        """Return the share of a slot's rounds that are trained, over all seeds: in [0, 1]."""
        slot, rounds = self._state.slots[job], self.plan.rounds(job)
        if slot.status == "done":
            return 1.0
        reached = slot.result.get("reached", slot.result.get("before", 0))
        return min(1.0, reached / (rounds * (1 if job.final else len(self.plan.tuning_seeds))))

    def _rest(self) -> str:
        """Return the end of a line: the remaining time, "" if it is unknown."""
        left = self._left()
        return f"; about {duration(left)} left in all" if left else ""

    def _left(self) -> float | None:
        """Estimate the remaining seconds by the gradients per second since training began; None without a basis.

        The basis is a trial that has ended, or BASIS seconds of training. Trials that were trained before do not count
        towards the speed. Slots that were pruned or failed take no more time.
        """
        slots, shares = self._state.slots, {job: self._share(job) for job in self.plan.jobs}
        over = {job for job, slot in slots.items() if slot.status in SETTLED}
        known = {job for job in over if trained_before(slots[job])}
        gradients = sum(self._cost[job] * (shares[job] - self._there[job]) for job in shares.keys() - known)
        rest = sum(self._cost[job] * (1 - shares[job]) for job in shares.keys() - over)
        seconds = time.monotonic() - self._began
        # The first rounds of a trial carry its start, so that they alone would say many times too much
        if not gradients or not rest or (seconds < BASIS and not over - known - self._before):
            return None
        return seconds * rest / gradients
