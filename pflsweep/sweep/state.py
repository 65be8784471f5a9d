"""The state of a sweep: how many slots are left, whether a search is over, and which point has won.

A search elects a winner only when each of its points has a result. A point that diverged or was pruned has one: it has
lost. A point that crashed, or whose worker was killed again and again, has none; until it is tried again the final
trials of its group are `blocked`, and so are the higher rungs of its bracket by hyperband, unless tune.partial is set.
"""

from pflsweep.sweep.plan import Job, Plan
from pflsweep.sweep.sampling import results_needed
from pflsweep.sweep.search_space import Point
from pflsweep.sweep.slots import POINT, SETTLED, SlotState, as_kept, identities, point_of

OVER = (*SETTLED, "blocked")  # states of slots that nobody trains any more in this command


class SweepState:
    """The states of a plan's slots. `Queue.refresh` reads them from the database."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slots: dict[Job, SlotState] = {}

    @property
    def left(self) -> int:
        """Return how many slots can still be trained: neither settled nor blocked."""
        return sum(slot.status not in OVER for slot in self.slots.values())

    @property
    def finished(self) -> bool:
        """Return whether no slot can be trained any more."""
        return not self.left

    def search_over(self, group: int) -> bool:
        """Return whether every point of a group's search is settled or blocked."""
        return all(self.slots[job].status in OVER for job in self.plan.searched(group))

    def without_result(self, group: int) -> list[SlotState]:
        """Return the slots of a search whose points have no result: they crashed, or their workers died."""
        return [slot for job in self.plan.searched(group) if (slot := self.slots[job]).status == "failed"]

    def electable(self, group: int) -> bool:
        """Return whether a group's final trials can begin: its search is over, and every point has a result."""
        return self.search_over(group) and (self.plan.tune.partial or not self.without_result(group))

    def best(self, group: int) -> SlotState | None:
        """Return the slot of a search's best point, the first of equal ones; None if no point is done."""
        slots = [self.slots[job] for job in self.plan.compared(group)]
        return max((slot for slot in slots if slot.value is not None), key=lambda s: s.value or 0.0, default=None)

    def winner(self, group: int) -> Point | None:
        """Return the best point of a group's search; {} where nothing is searched; None if no point is done."""
        of, best = self.plan.groups[group], self.best(group)
        if not of.tries:
            return {}
        return None if best is None else point_of(of, best)

    def proposable(self, job: Job) -> bool:
        """Return whether the point of a search's slot is known, or all results from which it is proposed are there."""
        if self.plan.foreseen(job) is not None:
            return True
        searched = self.plan.searched(job.group)
        rung = self.plan.rung(job)
        needed = results_needed(job.number) if rung is None else rung.below
        return all(self.slots[searched[k]].status in SETTLED for k in needed) and not self._held_up(job)

    def _held_up(self, job: Job) -> bool:
        """Return whether hyperband has to wait with a slot: a point below it has no result, and may be the best."""
        rung = self.plan.rung(job)
        if rung is None or self.plan.tune.partial:
            return False
        searched = self.plan.searched(job.group)
        return any(self.slots[searched[k]].status in ("failed", "blocked") for k in rung.below)

    def judged(self, job: Job, slot: SlotState) -> SlotState:
        """Return a slot with its status adapted to its group's search. The slots before it have to be judged already.

        While the search goes on again, a final trial that is done or has failed counts as waiting. When it is over, it
        is lost (to be trained again) where another point has won, and blocked where no winner can be elected.
        """
        if not job.final and slot.status in ("waiting", "lost") and self._held_up(job):
            return slot._replace(status="blocked")
        over = slot.status in ("done", "failed", "diverged")
        if not job.final or not self.plan.groups[job.group].tries or slot.status == "running":
            return slot
        if not self.search_over(job.group):
            return slot._replace(status="waiting") if over else slot
        if not self.electable(job.group):
            return slot._replace(status="blocked")
        winner = self.winner(job.group)
        if not over or winner is None or slot.result.get(POINT) == as_kept(winner):
            return slot
        return slot._replace(status="lost", superseded=(*slot.superseded, *identities(slot.trial)))
