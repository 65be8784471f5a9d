"""Show a sweep while it runs: one live page on a terminal; in a log, a line for each trial that ends."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pflsweep.sweep import attributes, cost
from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.slot_state import SETTLED, SlotState
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.status import groups
from pflsweep.sweep.storage import is_unavailable
from pflsweep.trial.progress import duration
from pflsweep.util.errors import UserError, counted, shortened

EVERY = 2.0  # seconds between two reads of the queue
QUIET = 10.0  # seconds between two reports of running trials in a log
BASIS = 60.0  # seconds of training before which, without a finished trial, nothing is said of the time that is left
RUNNING = 8  # running trials that are listed at most


def trained_before(state: SlotState) -> bool:
    """Return whether a settled slot's trials were trained before: it took under a tenth of their training time."""
    trained = sum(each["seconds"] for each in state.results)
    took = None if state.trial is None else state.trial.duration
    return took is not None and took.total_seconds() < trained / 10


class LiveStatus:
    """Context manager that reads and shows the queue in a thread of its own."""

    def __init__(self, plan: Plan, store: Callable[[SweepState], None] = lambda sweep: None) -> None:
        """store: called with the state of the sweep when trials have ended; after a UserError it is called again."""
        self.plan, self._store = plan, store
        # Names may look like markup or emoji, such as dataset.files=[/data/a.csv]
        self.console = Console(stderr=True, markup=False, emoji=False)
        self._unstored = False
        self._over = threading.Event()
        self._queue = Queue(plan)
        self._sweep = self._queue.sweep
        self._queue.refresh()
        # Later `_follow` says that the database is unavailable, which it could not while a call waits
        self._queue.database.wait_no_more()
        self._began, self._training = time.monotonic(), False
        self._cost = {slot: self._gradients(slot) for slot in plan.slots}
        self._settled_before = {slot for slot, state in self._sweep.states.items() if state.status in SETTLED}
        self._shares_before = {slot: self._share_trained(slot) for slot in plan.slots}
        self._records_before = {slot: state.attrs.get(attributes.RECORD) for slot, state in self._sweep.states.items()}
        self._reported = set(self._settled_before)
        self._running_since: dict[Slot, float] = {}
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        # The first report of running trials comes after two reads
        self._last_report = time.monotonic() - QUIET + 2 * EVERY

    def __enter__(self) -> "LiveStatus":
        count = len(self._sweep.states)
        done = f", {len(self._settled_before)} of them done before" if self._settled_before else ""
        seeds = len(self.plan.tuning_seeds) if any(group.is_searched for group in self.plan.groups) else 1
        once = f"; a point of a search counts once for its {seeds} seeds" if seeds > 1 else ""
        self._line(f"{self.plan.name}: {counted(count, 'trial')}{done}{once}")
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
        unavailable = failed = False
        while not self._over.wait(EVERY):
            try:
                self._look()
                if unavailable:
                    self._line("The sweep's database is back.")
                unavailable = False
            except Exception as error:
                reason = shortened(error.__cause__ or error)
                if not is_unavailable(error):
                    if not failed:
                        self._line(f"The live status failed ({type(error).__name__}: {reason}); trials go on.")
                    failed = True
                    continue
                if not unavailable:
                    self._line(f"The sweep's database cannot be read now ({reason}); workers wait for it.")
                unavailable = True

    def _look(self) -> None:
        """Read the queue once, and show what is new."""
        self._queue.refresh()
        new = (state.status for slot, state in self._sweep.states.items() if slot not in self._settled_before)
        self._training = self._training or any(status in ("running", *SETTLED) for status in new)
        # Workers take seconds to start, which says nothing of the speed of training
        if not self._training:
            self._began = time.monotonic()
        for slot in self.plan.slots:
            self._update_share_before(slot)
        before = len(self._reported)
        for slot, state in self._sweep.states.items():
            if state.status == "running":
                self._running_since.setdefault(slot, time.monotonic())
            else:
                self._running_since.pop(slot, None)
            if state.status in SETTLED and slot not in self._reported:
                self._reported.add(slot)
                if not self.console.is_terminal:
                    self._line(self._end_of(slot))
        if len(self._reported) > before or self._unstored:
            self._store_outcomes()
        if self.console.is_terminal:
            self._live.update(self._page(), refresh=True)
        elif time.monotonic() - self._last_report >= QUIET and not self._over.is_set():
            self._last_report = time.monotonic()
            running = self._running()
            for text in running[:-1]:
                self._line(f"running: {text}")
            if running:
                self._line(f"running: {running[-1]}{self._time_left()}")

    def _store_outcomes(self) -> None:
        """Call `store`. Say once that it failed; the next read calls it again."""
        try:
            self._store(self._sweep)
        except UserError as error:
            if not self._unstored:
                self._line(f"{error} It is tried again.")
            self._unstored = True
        else:
            self._unstored = False

    def _line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def _end_of(self, slot: Slot) -> str:
        """Return the line about a slot that was settled."""
        state, count = self._sweep.states[slot], len(self._sweep.states)
        why = f": {state.reason}" if state.reason else " (stopped early by tune.prune)"
        what = f"{100 * state.value:.1f}%" if state.value is not None else f"{state.status}{why}"
        return f"[{len(self._reported)}/{count}] {groups.title(self._sweep, slot)}: {what}{self._time_left()}"

    def _page(self) -> RenderableType:
        """Return the live page: counts by status, running trials, table."""
        counts: dict[str, int] = {}
        for state in self._sweep.states.values():
            counts[state.status] = counts.get(state.status, 0) + 1
        by_status = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
        head = Text.assemble((self.plan.name, "bold"), f": {by_status}{self._time_left()}")
        return Group(head, *(f"  running {text}" for text in self._running()), self._table())

    def _running(self) -> list[str]:
        """Return a line for each running trial, at most RUNNING and the number of others."""
        lines = []
        for slot, state in self._sweep.states.items():
            if state.status == "running":
                done = state.attrs.get(attributes.ROUND)
                at = f" round {done[0]} of {done[1]}," if done else ""
                seconds = time.monotonic() - self._running_since.get(slot, time.monotonic())
                lines.append(f"{groups.title(self._sweep, slot)}:{at} {duration(seconds)}")
        more = [f"and {len(lines) - RUNNING} more"] if len(lines) > RUNNING else []
        return [*lines[:RUNNING], *more]

    def _table(self) -> Table:
        """Return the table of methods and settings, in percent."""
        found = groups.table(self._sweep)
        page = Table(*found.columns)
        for row in found.itertuples(index=False):
            page.add_row(*row)
        return page

    def _gradients(self, slot: Slot) -> float:
        """Return the gradients of a slot; 0 if its data cannot be read, which the trial will report."""
        with suppress(UserError):
            return cost.gradients_of_slot(self.plan, slot)
        return 0

    def _share_trained(self, slot: Slot) -> float:
        """Return the share of a slot's rounds that are trained, over all seeds: in [0, 1]."""
        state = self._sweep.states[slot]
        if state.status == "done":
            return 1.0
        return self._share(slot, state.rounds_reached)

    def _share(self, slot: Slot, rounds: int) -> float:
        """Return what share of a slot's rounds these are, over all seeds: in [0, 1]. Those of a rung below count."""
        below, total = self.plan.rounds_below(slot), self._sweep.rounds(slot)
        return min(1.0, max(below / total, rounds / (total * (1 if slot.final else len(self.plan.tuning_seeds)))))

    def _update_share_before(self, slot: Slot) -> None:
        """Correct the share of a slot's rounds that was trained before, by where its trial goes on.

        That may be a checkpoint behind the round that it had reached, or one that another sweep has left.
        """
        record = self._sweep.states[slot].attrs.get(attributes.RECORD)
        # Once for each slot: a later record is that of its next seed
        if record is not None and record != self._records_before.get(slot, record):
            del self._records_before[slot]
            self._shares_before[slot] = self._share(slot, record["before"] + record["done"])
        self._shares_before[slot] = min(self._shares_before[slot], self._share_trained(slot))

    def _time_left(self) -> str:
        """Return the end of a line: the remaining time, "" if it is unknown."""
        left = self._seconds_left()
        return f"; about {duration(left)} left in all" if left else ""

    def _seconds_left(self) -> float | None:
        """Estimate the remaining seconds by the gradients per second since training began; None without a basis.

        The basis is a trial that has ended, or BASIS seconds of training. Trials that were trained before do not count
        towards the speed. Slots that were pruned or failed take no more time.
        """
        states, shares = self._sweep.states, {slot: self._share_trained(slot) for slot in self.plan.slots}
        over = {slot for slot, state in states.items() if state.status in SETTLED}
        known = {slot for slot in over if trained_before(states[slot])}
        gradients = sum(self._cost[slot] * (shares[slot] - self._shares_before[slot]) for slot in shares.keys() - known)
        rest = sum(self._cost[slot] * (1 - shares[slot]) for slot in shares.keys() - over)
        seconds = time.monotonic() - self._began
        # The first rounds of a trial carry its start, so that they alone would say many times too much
        if not gradients or not rest or (seconds < BASIS and not over - known - self._settled_before):
            return None
        return seconds * rest / gradients
