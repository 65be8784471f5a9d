"""The state of a sweep: how many slots are left, whether a search is over, and which point has won.

A search elects a winner only when each of its points has a result. A point that diverged or was pruned has one: it has
lost. A point that crashed, or whose worker was killed again and again, has none; until it is tried again the final
trials of its group are `blocked`, and so are the higher rungs of its bracket by hyperband, unless tune.partial is set.
"""

from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.sampling import results_needed
from pflsweep.sweep.search_space import Point
from pflsweep.sweep.slot_state import SETTLED, SlotState, identities, point_of, winner_trained

OVER = (*SETTLED, "blocked")  # states of slots that nobody trains any more in this command


class SweepState:
    """The states of a plan's slots. `Queue.refresh` reads them from the database."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.states: dict[Slot, SlotState] = {}

    @property
    def left(self) -> int:
        """Return how many slots can still be trained: neither settled nor blocked."""
        return sum(state.status not in OVER for state in self.states.values())

    @property
    def finished(self) -> bool:
        """Return whether no slot can be trained any more."""
        return not self.left

    @property
    def superseded(self) -> list[str]:
        """Return the identities of former final trials, whose points do not win any more."""
        return sorted({identity for slot, state in self.states.items() if slot.final for identity in state.superseded})

    def rounds(self, slot: Slot) -> int:
        """Return the rounds of a slot's trials, by default values until their point is known."""
        return self.plan.rounds(slot, point_of(self.plan.groups[slot.group], self.states[slot]))

    def search_over(self, group: int) -> bool:
        """Return whether every point of a group's search is settled or blocked."""
        return all(self.states[slot].status in OVER for slot in self.plan.search_slots(group))

    def without_result(self, group: int) -> list[SlotState]:
        """Return the states of a search's slots whose points have no result: they crashed, or their workers died."""
        return [state for slot in self.plan.search_slots(group) if (state := self.states[slot]).status == "failed"]

    def can_elect_winner(self, group: int) -> bool:
        """Return whether a group's search can elect a winner: it is over, and every point has a result."""
        return self.search_over(group) and (self.plan.tune.partial or not self.without_result(group))

    def best(self, group: int) -> SlotState | None:
        """Return the state of a search's best slot, the first of equal ones; None if no point is done."""
        states = [self.states[slot] for slot in self.plan.compared_slots(group)]
        done = (state for state in states if state.value is not None)
        return max(done, key=lambda state: state.value or 0.0, default=None)

    def winner(self, group: int) -> Point | None:
        """Return the best point of a group's search; {} where nothing is searched; None if no point is done."""
        planned, best = self.plan.groups[group], self.best(group)
        if not planned.is_searched:
            return {}
        return None if best is None else point_of(planned, best)

    def proposable(self, slot: Slot) -> bool:
        """Return whether the point of a search's slot is known, or all results from which it is proposed are there."""
        if self.plan.known_point(slot) is not None:
            return True
        searched = self.plan.search_slots(slot.group)
        rung = self.plan.rung(slot)
        needed = results_needed(slot.number) if rung is None else rung.below
        return all(self.states[searched[k]].status in OVER for k in needed) and not self._held_up(slot)

    def _held_up(self, slot: Slot) -> bool:
        """Return whether hyperband has to wait with a slot: a point below it has no result, and may be the best. With
        tune.partial the others are promoted, and only the slots that are left over wait.
        """
        rung = self.plan.rung(slot)
        if rung is None or not rung.below:
            return False
        searched = self.plan.search_slots(slot.group)
        without_result = sum(self.states[searched[k]].status in ("failed", "blocked") for k in rung.below)
        if self.plan.tune.partial:
            return slot.number - rung.numbers.start >= len(rung.below) - without_result
        return without_result > 0

    def adapt_to_search(self, slot: Slot, state: SlotState) -> SlotState:
        """Return a slot's state, adapted to its group's search. Those of earlier slots have to be adapted already."""
        if slot.final:
            return self._adapt_final(slot, state)
        held_up = state.status in ("waiting", "due") and self._held_up(slot)
        return state._replace(status="blocked") if held_up else state

    def _adapt_final(self, slot: Slot, state: SlotState) -> SlotState:
        """Return the state of a final trial, adapted to its group's search.

        While the search goes on again, a final trial that is done or has failed counts as waiting. When it is over, it
        is due again where another point has won, and blocked where no winner can be elected.
        """
        if not self.plan.groups[slot.group].is_searched or state.status == "running":
            return state
        trained = state.status in ("done", "failed", "diverged")
        if not self.search_over(slot.group):
            return state._replace(status="waiting") if trained else state
        if not self.can_elect_winner(slot.group):
            return state._replace(status="blocked")
        winner = self.winner(slot.group)
        if not trained or winner is None or winner_trained(state) == winner:
            return state
        return state._replace(status="due", superseded=(*state.superseded, *identities(state.trial)))
