"""Checks of a plan: bad input is refused, with the trial's name, before anything runs."""

import json
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser

from pflsweep.config.compose import Config
from pflsweep.config.identity import RUNTIME, without_effect
from pflsweep.config.keys import key_of, under
from pflsweep.config.schema import check
from pflsweep.methods import stock
from pflsweep.sweep import cost
from pflsweep.sweep.command import Command
from pflsweep.sweep.overrides import SortedOverrides
from pflsweep.sweep.plan import Group, Plan, changed, relevant
from pflsweep.sweep.search_space import Point
from pflsweep.sweep.spec import Table
from pflsweep.trial.metadata import class_nodes
from pflsweep.util.errors import UserError
from pflsweep.util.once import warn_once

# Keys of RUNTIME that still tell trials apart: they choose data, whose checksum is in a trial's identity
OF_DATA = ("data.root", "dataset.path")


def check_search_words(overrides: Sequence[str], command: Command) -> None:
    """Raise UserError if overrides are of a search (tune.*) and nothing is searched."""
    search = next((word for word in overrides if word.startswith("tune.")), None)
    if search and command.tune.sampler == "none":
        raise UserError(f"{search}: nothing is searched. Add how, as in tune=grid.")


def check_swept(words: SortedOverrides) -> None:
    """Raise UserError if a sweep is over a key that changes no trial: all its values are the same trial."""
    counts = [(key, len(values)) for key, values in words.axes.items()]
    for key, count in [*counts, *((key_of(options[0]), len(options)) for options in words.options)]:
        if count > 1 and under(key, RUNTIME) and key not in OF_DATA:
            raise UserError(
                f"{key} has several values, but it says how a trial runs and not what it computes: all of them are the "
                "same trial, which is trained once. Give it one value."
            )


def check_keeps_table(table: Table, words: SortedOverrides, parser: OverridesParser) -> None:
    """Raise UserError if overrides would change what a table's rows and columns are."""
    fixed = parser.parse_overrides(words.fixed)
    own = [str(word.input_line) for word in fixed if word.key_or_group in ("algorithm", "setting")]
    if stray := [*own, *(options[0] for options in words.options)]:
        raise UserError(
            f"sweep={table.name} has its own methods and settings; '{stray[0]}' beside them makes it two "
            "sweeps. Choose rows and columns with only=[..], or run each by itself."
        )


def check_config(config: Config, name: str, point: Point | None = None) -> None:
    """Check a trial's config. name: of its group. point: of its search. Raises UserError, which names the trial."""
    try:
        check(config)
    except UserError as error:
        tried = "".join(f" {key}={value}" for key, value in (point or {}).items())
        of = ", of the search space that `pflsweep list spaces` shows" if point else ""
        raise UserError(f"{error} (in the trial {name}{tried}{of})") from error


def check_has_effect(words: SortedOverrides, groups: Sequence[Group]) -> None:
    """Raise UserError if a key that is swept or searched has no effect beside the others: all values are one trial."""
    tried = {key for key, values in words.axes.items() if len(values) > 1}.union(*(group.space for group in groups))
    for key, condition in without_effect(tried, [group.config.flat for group in groups]).items():
        raise UserError(
            f"{key} has several values, and no effect beside the other keys of these trials: all of them are the "
            f"same trial. Give it one value, or add what it needs: {condition}."
        )


def warn_same_trials(groups: list[Group]) -> None:
    """Warn about rows of a table that train the same trials in a column: they are shown as one row."""
    seen: dict[str, str] = {}
    for group in groups:
        what = [relevant(group.config), {key: axis._asdict() for key, axis in group.space.items()}, group.setting]
        first = seen.setdefault(json.dumps(what, sort_keys=True, default=str), group.method)
        if first != group.method:
            warn_once(
                __name__, f"rows '{first}' and '{group.method}' are the same trials: comparisons show one of them"
            )


def check_plan(plan: Plan, only: Sequence[str]) -> None:
    """Check a plan, with every config that is known before the sweep. only: the rows and columns that were asked for.

    Raises UserError.
    """
    searched, count = plan.tune.sampler != "none", len(plan.seeds)
    if searched and plan.tune.seeds > count:
        raise UserError(
            f"tune.seeds is {plan.tune.seeds}, but the sweep has {count}: {plan.seeds}. Use tune.seeds={count} or "
            "less, or give more seeds."
        )
    _check_configs(plan)
    _check_new_clients(plan)
    # A row of a table may search nothing, beside others that do
    if searched and not only and not any(group.space for group in plan.groups):
        raise UserError(
            f"tune={plan.tune.sampler} has nothing to search: all keys of the methods' search spaces are set by "
            "the command or taken away by the sweep file. Say tune=none, or let a key be searched."
        )


def _check_configs(plan: Plan) -> None:
    """Check every config that is known before the sweep. Raises UserError, which names the trial."""
    for group in plan.groups:
        if plan.tune.sampler != "none":
            _check_scored(plan, group)
        for point in _points_to_check(group):
            for config in [group.config, *([] if group.search is None else [group.search])]:
                check_config(changed(config, point), group.name, point)


def _points_to_check(group: Group) -> list[Point]:
    """Return the points to check: the known ones, and where a sampler will propose others the ends of each axis."""
    if len(group.points) == group.search_slot_count:
        return group.points or [{}]
    first = {key: axis.grid[0] for key, axis in group.space.items()}
    ends = [{**first, key: end} for key, axis in group.space.items() for end in axis.range or axis.grid]
    return [*group.points, *ends]


def _check_scored(plan: Plan, group: Group) -> None:
    """Raise UserError if a group's trials would lack the score by which points and methods are compared."""
    config, view = group.config, plan.tune.view
    if view == "trained" and not config.metrics.trained:
        raise UserError("tune.view is trained, which is scored with metrics.trained=true alone: add that.")
    method = config.node("algorithm").load()
    if view == "global" and method.global_model is stock.no_global_model:
        raise UserError(f"tune.view is global, but {group.name} has no global model. Search it by tune.view=personal.")
    if group.is_searched and plan.tune.split == "validation":
        if config.data.validation:
            raise UserError(f"data.validation is a trial's own; a search holds tune.validation back ({group.name}).")
        # A partition that is made to find its size may bring validation rows, beside which none can be held back
        cost.partition_size(changed(config, {"data.validation": plan.tune.validation}))


def _check_new_clients(plan: Plan) -> None:
    """Raise UserError if trials with new clients would share a record as of several numbers of rounds.

    New clients are measured after the last round alone, so such a record lacks what was not trained last.
    """
    known: dict[str, int] = {}  # rounds of a group's trials, by all else that they depend on
    for group in plan.groups:
        config = group.config
        # Where more rounds do not continue a trial, each number of them has a record of its own
        if not config.data.new or any(node.load().resumable is False for node in class_nodes(config)):
            continue
        others = {key: value for key, value in relevant(config).items() if key != "train.rounds"}
        rounds = known.setdefault(json.dumps(others, sort_keys=True), config.train.rounds)
        by_hyperband = plan.tune.sampler == "hyperband" and group.is_searched
        if by_hyperband or "train.rounds" in group.space or rounds != config.train.rounds:
            raise UserError(
                f"data.new with several numbers of rounds ({group.name}): new clients are measured after the last "
                "round alone, so trials that go on lose what was measured. Give one train.rounds and do not search it "
                "(tune=hyperband does), or use data.new=0."
            )
