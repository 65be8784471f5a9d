"""The status of a sweep by method and setting, for the live view, the end of a command and MLflow."""

from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from pflsweep.records.edges import describe_edges, describe_equal
from pflsweep.report.compare import PARTIAL
from pflsweep.report.stats import mean_std
from pflsweep.report.tables import NONE
from pflsweep.sweep.plan import Group, Slot
from pflsweep.sweep.search_space import Point, ranges
from pflsweep.sweep.slot_state import SETTLED, SlotState, point_of
from pflsweep.sweep.state import SweepState


class GroupStatus(NamedTuple):
    """The status of a group. done, total, failed: numbers of slots; accuracies are in [0, 1]."""

    done: int
    total: int
    failed: int
    without_result: list[str]  # reasons of the points of its search that have no result
    best: float | None  # accuracy of the search's best point
    point: Point  # the best point
    final: list[float]  # accuracies of the final trials

    @property
    def text(self) -> str:
        """Return the group's cell of a table: accuracy in percent, of final trials as soon as there are some."""
        count = f"{self.done}/{self.total}" + (f", {self.failed} failed" if self.failed else "")
        if self.final:
            return f"{spread(self.final)}{PARTIAL * bool(self.without_result)} ({count})"
        return f"{count}" if self.best is None else f"search {100 * self.best:.1f} ({count})"


def group_status(sweep: SweepState, group: int) -> GroupStatus:
    """Return the status of a group."""
    finals = [sweep.states[slot] for slot in sweep.plan.final_slots(group)]
    everything = [*(sweep.states[slot] for slot in sweep.plan.search_slots(group)), *finals]
    best = sweep.best(group)
    return GroupStatus(
        sum(state.status in SETTLED for state in everything),
        len(everything),
        sum(state.status in ("diverged", "failed") for state in everything),
        [state.reason for state in sweep.without_result(group)],
        None if best is None else best.value,
        {} if best is None else point_of(sweep.plan.groups[group], best),
        [state.value for state in finals if state.value is not None],
    )


def search_of(sweep: SweepState, group: int) -> dict[str, Any]:
    """Return a group's search as a ledger has it: what it may try, which points have a result, and which has won.

    winner: None before one is elected, and where nothing is searched.
    """
    planned, best = sweep.plan.groups[group], sweep.best(group)
    compared = [sweep.states[slot] for slot in sweep.plan.compared_slots(group)]
    return {
        "space": {key: axis.grid for key, axis in planned.space.items()},
        **({"ranges": drawn} if (drawn := ranges(planned.space, sweep.plan.tune.sampler)) else {}),
        "tried": [_tried_point(planned, state) for state in compared if state.value is not None],
        "winner": sweep.winner(group) if planned.is_searched and sweep.can_elect_winner(group) else None,
        "winner_value": None if best is None else best.value,
    }


def _tried_point(group: Group, state: SlotState) -> dict[str, Any]:
    """Return a point of a search with its score, and the mean test accuracy of its trials where workers reported it."""
    test = [result["test"] for result in state.results if "test" in result]
    return {"point": point_of(group, state), "value": state.value, **({"test": fmean(test)} if test else {})}


def table(sweep: SweepState) -> pd.DataFrame:
    """Return the table of a sweep, one row per method and one column per setting."""
    cells: dict[str, dict[str, str]] = {}
    for g, group in enumerate(sweep.plan.groups):
        cells.setdefault(group.method, {})[group.setting or "accuracy"] = group_status(sweep, g).text
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna(NONE)
    return frame.rename_axis("method").reset_index()


def winners(sweep: SweepState) -> pd.DataFrame:
    """Return one row for each search: the winner, its accuracy, and that of its final trials."""
    lines = []
    for g, group in enumerate(sweep.plan.groups):
        if group.is_searched:
            now = group_status(sweep, g)
            mark = PARTIAL * bool(now.without_result)
            point = " ".join(f"{key}={value}" for key, value in now.point.items()) or NONE
            elected = sweep.can_elect_winner(g) and now.best is not None
            equal = describe_equal(search_of(sweep, g))
            lines.append({
                "method": group.method,
                "setting": group.setting or NONE,
                "points": sweep.plan.point_count(g),
                "best": f"{point}{mark}{equal}" if elected else "no winner",
                f"on {sweep.plan.tune.split}": f"{100 * (now.best or 0):.1f}" if elected else NONE,
                "final, on test": f"{spread(now.final)}{mark}" if elected and now.final else NONE,
            })  # fmt: skip
    return pd.DataFrame(lines)


def at_ends(sweep: SweepState) -> str:
    """Return a paragraph on the winners that are at an end of what was tried; "" without any."""
    methods: dict[str, dict[str, None]] = {}
    for g, group in enumerate(sweep.plan.groups):
        for what in describe_edges(search_of(sweep, g)):
            methods.setdefault(what, {})[group.method] = None
    lines = [f"{what} ({', '.join(names)})" for what, names in methods.items()]
    return f"At an end of the search, where a wider range may be better: {'; '.join(lines)}." if lines else ""


def failure_lines(sweep: SweepState) -> list[str]:
    """Return a line for each slot that failed, and for each search that cannot elect a winner."""
    lines = [f"the trial {title(sweep, slot)} failed: {state.reason}" for slot, state in failed_slots(sweep)]
    return [*lines, *no_winner_lines(sweep)]


def failed_slots(sweep: SweepState) -> list[tuple[Slot, SlotState]]:
    """Return the slots that failed, and final trials that diverged, each with its state.

    A point that diverged has only lost its search.
    """
    return [
        (slot, state)
        for slot, state in sweep.states.items()
        if state.status == "failed" or (state.status == "diverged" and slot.final)
    ]


def no_winner_lines(sweep: SweepState) -> list[str]:
    """Return a line for each search that is over with some points without result."""
    lines = []
    for g, group in enumerate(sweep.plan.groups):
        reasons = [state.reason for state in sweep.without_result(g)]
        if not reasons or not sweep.search_over(g):
            continue
        n = len(reasons)
        what = f"{n} of {sweep.plan.point_count(g)} points {'has' if n == 1 else 'have'} no result ({reasons[0]})"
        if sweep.plan.tune.partial:
            lines.append(f"{group.name}:{PARTIAL} {what}; the winner was elected among the others (tune.partial=true)")
        else:
            lines.append(
                f"{group.name}: no winner: {what}, so its final trials wait. Give the same command again to "
                "retry these points, or add tune.partial=true to choose among the others"
            )
    return lines


def title(sweep: SweepState, slot: Slot) -> str:
    """Return a slot's name for messages, with its point as far as it is known."""
    plan = sweep.plan
    return plan.title(slot, plan.known_point(slot) or point_of(plan.groups[slot.group], sweep.states[slot]))


def spread(values: list[float]) -> str:
    """Return the mean of accuracies over seeds in percent; of several with ± the sample standard deviation."""
    mean, std = mean_std(values)
    return f"{100 * mean:.1f}" if len(values) < 2 else f"{100 * mean:.1f} ± {100 * std:.1f}"
