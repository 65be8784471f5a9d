"""The status of a sweep by method and setting, for the live view, the end of a command and MLflow."""

from typing import NamedTuple

import pandas as pd

from pflsweep.config.keys import as_override
from pflsweep.records.edges import describe_edge, find_edges
from pflsweep.report.compare import PARTIAL
from pflsweep.report.stats import mean_std
from pflsweep.report.tables import NONE
from pflsweep.sweep.plan import Job
from pflsweep.sweep.search_space import Point, ranges
from pflsweep.sweep.slots import SETTLED, SlotState, point_of
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


def group_status(state: SweepState, group: int) -> GroupStatus:
    """Return the status of a group."""
    finals = [state.slots[job] for job in state.plan.final(group)]
    everything = [*(state.slots[job] for job in state.plan.searched(group)), *finals]
    best = state.best(group)
    return GroupStatus(
        sum(slot.status in SETTLED for slot in everything),
        len(everything),
        sum(slot.status in ("diverged", "failed") for slot in everything),
        [slot.reason for slot in state.without_result(group)],
        None if best is None else best.value,
        {} if best is None else point_of(state.plan.groups[group], best),
        [slot.value for slot in finals if slot.value is not None],
    )


def table(state: SweepState) -> pd.DataFrame:
    """Return the table of a sweep, one row per method and one column per setting."""
    cells: dict[str, dict[str, str]] = {}
    for g, group in enumerate(state.plan.groups):
        cells.setdefault(group.method, {})[group.setting or "accuracy"] = group_status(state, g).text
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna(NONE)
    return frame.rename_axis("method").reset_index()


def winners(state: SweepState) -> pd.DataFrame:
    """Return one row for each search: the winner, its accuracy, and that of its final trials."""
    lines = []
    for g, group in enumerate(state.plan.groups):
        if group.tries:
            now = group_status(state, g)
            mark = PARTIAL * bool(now.without_result)
            point = " ".join(f"{key}={value}" for key, value in now.point.items()) or NONE
            elected = state.electable(g) and now.best is not None
            lines.append({
                "method": group.method,
                "setting": group.setting or NONE,
                "points": state.plan.points(g),
                "best": f"{point}{mark}" if elected else "no winner",
                f"on {state.plan.tune.split}": f"{100 * (now.best or 0):.1f}" if elected else NONE,
                "final, on test": f"{spread(now.final)}{mark}" if elected and now.final else NONE,
            })  # fmt: skip
    return pd.DataFrame(lines)


def at_ends(state: SweepState) -> str:
    """Return a paragraph on the winners that are at an end of what was tried; "" without any."""
    methods: dict[str, dict[str, None]] = {}
    for g, group in enumerate(state.plan.groups):
        point = group_status(state, g).point if group.tries and state.electable(g) else {}
        found = find_edges({
            "winner": point,
            "space": {key: axis.grid for key, axis in group.space.items()},
            "ranges": ranges(group.space, state.plan.tune.sampler),
        })  # fmt: skip
        for key, side in found.items():
            methods.setdefault(describe_edge(key, as_override(point[key]), side), {})[group.method] = None
    lines = [f"{what} ({', '.join(names)})" for what, names in methods.items()]
    return f"At an end of the search, where a wider range may be better: {'; '.join(lines)}." if lines else ""


def failures(state: SweepState) -> list[str]:
    """Return a line for each slot that failed, and for each search that cannot elect a winner."""
    lines = [f"the trial {title(state, job)} failed: {slot.reason}" for job, slot in failed(state)]
    return [*lines, *no_winner(state)]


def failed(state: SweepState) -> list[tuple[Job, SlotState]]:
    """Return the slots that failed, and final trials that diverged. A point that diverged has only lost its search."""
    return [
        (job, slot)
        for job, slot in state.slots.items()
        if slot.status == "failed" or (slot.status == "diverged" and job.final)
    ]


def no_winner(state: SweepState) -> list[str]:
    """Return a line for each search that is over with some points without result."""
    lines = []
    for g, group in enumerate(state.plan.groups):
        reasons = [slot.reason for slot in state.without_result(g)]
        if not reasons or not state.search_over(g):
            continue
        n = len(reasons)
        what = f"{n} of {state.plan.points(g)} points {'has' if n == 1 else 'have'} no result ({reasons[0]})"
        if state.plan.tune.partial:
            lines.append(f"{group.name}:{PARTIAL} {what}; the winner was elected among the others (tune.partial=true)")
        else:
            lines.append(
                f"{group.name}: no winner: {what}, so its final trials have not run. Give the same command again to "
                "retry these points, or add tune.partial=true to choose among the others"
            )
    return lines


def title(state: SweepState, job: Job) -> str:
    """Return a slot's name for messages, with its point as far as it is known."""
    return state.plan.title(job, state.plan.foreseen(job) or point_of(state.plan.groups[job.group], state.slots[job]))


def spread(values: list[float]) -> str:
    """Return the mean of accuracies over seeds in percent; of several with ± the sample standard deviation."""
    mean, std = mean_std(values)
    return f"{100 * mean:.1f}" if len(values) < 2 else f"{100 * mean:.1f} ± {100 * std:.1f}"
