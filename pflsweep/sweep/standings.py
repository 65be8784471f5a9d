"""How a sweep stands, per method and setting, read off the board: for the live view, the end and MLflow."""

import math
from typing import NamedTuple

import pandas as pd

from pflsweep.sweep.board import SETTLED, Board, Slot, point_of
from pflsweep.sweep.plan import Job, Point

NONE = "-"


class Standing(NamedTuple):
    """Of one group."""

    done: int
    total: int
    failed: int
    best: float | None  # of its search, in [0, 1]
    point: Point  # that it belongs to
    final: list[float]  # of its final trials, in [0, 1]

    @property
    def text(self) -> str:
        """A cell of the table: accuracy in percent, of final trials where there are some."""
        count = f"{self.done}/{self.total}" + (f", {self.failed} failed" if self.failed else "")
        if self.final:
            return f"{spread(self.final)} ({count})"
        return f"{count}" if self.best is None else f"search {100 * self.best:.1f} ({count})"


def standing(board: Board, group: int) -> Standing:
    finals = [board.slots[job] for job in board.plan.final(group)]
    everything = [*(board.slots[job] for job in board.plan.searched(group)), *finals]
    best = board.best(group)
    return Standing(
        sum(slot.status in SETTLED for slot in everything),
        len(everything),
        sum(slot.status == "failed" for slot in everything),
        None if best is None else best.value,
        {} if best is None else point_of(board.plan.groups[group], best),
        [slot.value for slot in finals if slot.value is not None],
    )


def table(board: Board) -> pd.DataFrame:
    """A row a method, a column a setting."""
    cells: dict[str, dict[str, str]] = {}
    for g, group in enumerate(board.plan.groups):
        cells.setdefault(group.method, {})[group.setting or "accuracy"] = standing(board, g).text
    frame = pd.DataFrame.from_dict(cells, orient="index").fillna(NONE)
    return frame.rename_axis("method").reset_index()


def winners(board: Board) -> pd.DataFrame:
    """A row for each search: what won, at what, and what it was chosen on."""
    lines = []
    for g, group in enumerate(board.plan.groups):
        if group.tries:
            now = standing(board, g)
            lines.append({
                "method": group.method,
                "setting": group.setting or NONE,
                "points": group.tries,
                "best": " ".join(f"{key}={value}" for key, value in now.point.items()) or NONE,
                f"on {board.plan.tune['split']}": NONE if now.best is None else f"{100 * now.best:.1f}",
                "final, on test": spread(now.final) if now.final else NONE,
            })  # fmt: skip
    return pd.DataFrame(lines)


def failures(board: Board) -> list[str]:
    """A line for each slot that failed."""
    return [f"the trial {title(board, job)} failed: {slot.reason}" for job, slot in failed(board)]


def failed(board: Board) -> list[tuple[Job, Slot]]:
    return [(job, slot) for job, slot in board.slots.items() if slot.status == "failed"]


def title(board: Board, job: Job) -> str:
    """A slot in a person's words, with its point as far as it is drawn."""
    group, slot = board.plan.groups[job.group], board.slots[job]
    if job.final:
        return board.plan.title(job, {})
    point = group.points[job.number] if group.points else point_of(group, slot)
    return board.plan.title(job, point)


def spread(values: list[float]) -> str:
    """Percent: the mean, and where there are several the standard deviation over seeds."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{100 * mean:.1f}"
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{100 * mean:.1f} ± {100 * std:.1f}"
