"""Lines about the cells that a table lacks, by the command that fills them, and about what has failed."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pflsweep.config.reading import PAPER
from pflsweep.report.markdown import code, inline
from pflsweep.report.paper.comparison import Comparison, title
from pflsweep.report.paper.store import UNTRAINED, CellTrials

OWN = Path("runs")  # where a command's trials are, unless paths.runs says otherwise
FIRST = """\
Each command trains what is not yet in `{own}`. First run {command}: it copies the trials behind these numbers there.
"""


def lines(comparison: Comparison) -> list[str]:
    """Return what is missing, by the command that fills it, and each failed trial."""
    by_command: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    why: dict[str, None] = {}
    commands = _commands(comparison)
    for column, cell in comparison.by_column():
        for trials in filter(_trainable, cell.lacking):
            filled = by_command[commands[trials.setting, trials.method]]
            filled[title(comparison.layout.columns[column])][cell.trials.method] = None
        why |= dict.fromkeys(reason for trials in (cell.trials, *cell.against) for reason in _reasons(trials))
    runs = comparison.store.trials.runs
    elsewhere = runs != OWN and not all("paths.runs=" in command for command in by_command)
    copy = code(f"pflsweep record import {shlex.quote(str(runs))} --no-tracking")
    found = [FIRST.format(own=OWN, command=copy)] if elsewhere and comparison.trials else []
    for command, columns in by_command.items():
        found.append(f"{command} fills:")
        found += [f"  - {inline(f'{at}: {_rows(comparison, at, list(methods))}')}" for at, methods in columns.items()]
    failed = any(trials.failed for trials in comparison.trials_by_cell)
    return [*found, *why, *(["what failed is tried again by its command with `retry=true` alone"] if failed else [])]


def _rows(comparison: Comparison, column: str, methods: list[str]) -> str:
    every = {
        cell.trials.method for (_, k), cell in comparison.cells.items() if title(comparison.layout.columns[k]) == column
    }
    return "all rows" if set(methods) == every and len(methods) > 1 else ", ".join(methods)


def command_of(comparison: Comparison) -> str:
    """Return the command that trains a table at this scale."""
    reading = "" if comparison.store.reading == PAPER else f" reading={comparison.store.reading}"
    return f"pflsweep -m sweep={comparison.layout.sweeps[0]} scale={comparison.store.scale}{reading}"


def _trainable(trials: CellTrials) -> bool:
    """Return whether a command has something to train, without `retry=true`."""
    return bool(trials.open) or not trials.seeds


def _commands(comparison: Comparison) -> dict[tuple[str, str], str]:
    """Return what fills a cell, as markdown, by setting and method: the command that has begun it; else one for what a
    setting lacks, with the words by which its other rows, or other settings, were trained: those are compared with it.
    """
    every_begun = [trials.commands[0] for trials in comparison.trials_by_cell if trials.commands]
    cells, rows = [trials for trials in comparison.trials_by_cell if _trainable(trials)], defaultdict(list)
    found = {(cell.setting, cell.method): ", ".join(map(code, cell.commands)) for cell in cells if cell.commands}
    for cell in cells:
        if not cell.commands:
            rows[cell.setting].append(cell.method)
    own = comparison.layout.name == comparison.layout.sweeps[0]  # it has no other rows and columns
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for setting, lacked in rows.items():
        begun = [each.commands[0] for each in comparison.trials_by_cell if each.setting == setting and each.commands]
        like = next(iter([*begun, *every_begun]), command_of(comparison))
        alike[like, () if own and not begun else tuple(lacked)].append(setting)
    for (like, methods), settings in alike.items():
        every = own and len(settings) == len({trials.setting for trials in comparison.trials_by_cell})
        command = _for(like, comparison.layout.sweeps[0], [*([] if every else settings), *methods])
        found |= {(setting, method): code(command) for setting in settings for method in rows[setting]}
    return found


def _for(command: str, sweep: str, only: list[str]) -> str:
    """Return a command for a sweep's rows and columns of these names; for all of them where there are no names."""
    words = [word for word in shlex.split(command) if not word.startswith("only=")]
    at = next(number for number, word in enumerate(words) if word.startswith("sweep="))
    names = [name if re.fullmatch(r"[\w./*-]+", name) else f'"{name}"' for name in only]  # as Hydra asks for it
    chosen = [f"only=[{','.join(names)}]"] if names else []
    return shlex.join([*words[:at], f"sweep={sweep}", *chosen, *words[at + 1 :]])


def _reasons(trials: CellTrials) -> Iterator[str]:
    """Yield why seeds are without a number, where there is more to say than that nobody has trained them."""
    what = inline(f"{trials.method} {trials.setting}")
    points = f": {inline(trials.failed_points[0])}" if trials.failed_points else ""
    yield from (f"{what} seed {seed} failed: {inline(reason)}" for seed, reason in trials.failed.items())
    yield from (f"{what} seed {seed}: {reason}" for seed, reason in trials.open.items() if reason != UNTRAINED)
    if points:
        n = len(trials.failed_points)
        yield f"{what}: {'one point' if n == 1 else f'{n} points'} of its search failed{points}"
    if reasons := trials.without_result:
        lacking = (
            f"{len(reasons)} of {trials.group['points']} points of its search {'has' if len(reasons) == 1 else 'have'}"
        )
        elected = "† the winner is the best of the others" if trials.partial else "so there is no winner yet"
        yield f"{what}: {lacking} no result ({inline(reasons[0])}), {elected}; the sweep's command tries again"
