"""From a command's overrides to a plan: composed once for each combination of options, checked before anything runs.

Numbers that are swept (seed=0,1 train.lr=.1,.01) are set on copies: to compose a config takes a tenth of a second.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Transformer

from pflsweep.compose import Config, is_of_sweep, unknown_key
from pflsweep.config import check, target
from pflsweep.errors import UserError, nearest
from pflsweep.keys import PLUGS, flat
from pflsweep.record import method_name
from pflsweep.setting import own_code
from pflsweep.sweep import cost
from pflsweep.sweep.command import Command
from pflsweep.sweep.files import Scale, Table, read_scale, read_space, read_table
from pflsweep.sweep.plan import Group, Plan, changed, plan_id
from pflsweep.sweep.space import Space, points

Compose = Callable[[list[str]], Config]  # overrides -> a trial's config


class Words(NamedTuple):
    """A command's overrides, sorted."""

    fixed: list[str]  # of every trial
    options: list[list[str]]  # what is composed: for each swept option its overrides
    axes: dict[str, list[Any]]  # key -> swept numbers, but for the seed
    seeds: list[int] | None


def build(command: Command, overrides: Sequence[str], compose: Compose, parser: OverridesParser, name: str) -> Plan:
    """The plan. Raises UserError on the first trial whose config is wrong."""
    scale = read_scale(command.scale)
    words = sorted_words([word for word in overrides if not is_of_sweep(word)], parser)
    if command.sweep is None:
        groups = list(_of_command(words, compose, command, scale))
        table = None
    else:
        table = chosen(read_table(command.sweep), command.only)
        groups = list(_of_table(table, words, compose, command, scale))
    own = groups[0].config.values["seed"]
    seeds = words.seeds or ([own] if table is None else table.seeds)
    seeds = seeds[: scale.seeds]
    if command.tune["sampler"] != "none" and command.tune["seeds"] > len(seeds):
        raise UserError(f"tune.seeds is {command.tune['seeds']}, but the sweep has {len(seeds)}: {seeds}.")
    code = [_versions(group.config) for group in groups]
    plan = Plan(plan_id(groups, seeds, command.tune, code), name, groups, seeds, command.tune, command.workers)
    _check_all(plan)
    return plan


def sorted_words(overrides: list[str], parser: OverridesParser) -> Words:
    """Sweeps over numbers become axes, all other sweeps are composed. Raises UserError on a bad seed."""
    words = Words([], [], {}, None)
    for override in parser.parse_overrides(overrides):
        key = override.key_or_group
        if not override.is_sweep_override():
            words.fixed.append(str(override.input_line))
            continue
        numbers = _numbers(override)
        if key == "seed" and numbers:
            words = words._replace(seeds=numbers)
        elif numbers and override.package is None and not override.is_add():
            words.axes[key] = numbers
        else:
            words.options.append([f"{override.get_key_element()}={text}" for text in _texts(override)])
    return words


def _numbers(override: Override) -> list[Any]:
    """The values of a sweep of numbers or of true and false; empty where one is something else."""
    values = list(override.sweep_iterator(transformer=Transformer.identity))
    return values if all(isinstance(value, int | float) for value in values) else []


def _texts(override: Override) -> Iterator[str]:
    return override.sweep_string_iterator()


def _of_command(words: Words, compose: Compose, command: Command, scale: Scale) -> Iterator[Group]:
    """A group for each combination of what is swept, but for the seeds."""
    for chosen_words in itertools.product(*words.options):
        config = compose([*words.fixed, *chosen_words])
        rest = [word for word in chosen_words if word.partition("=")[0] not in ("algorithm", *PLUGS)]
        method = method_name(config.choices)
        for varied, label in _varied(config, words.axes, " ".join(chosen_words)):
            setting = " ".join([*rest, *label])
            yield _group(setting, method, varied, command, scale, [], "tune")


def _of_table(table: Table, words: Words, compose: Compose, command: Command, scale: Scale) -> Iterator[Group]:
    """A group for each row and column."""
    if words.options:
        raise UserError(
            f"sweep={table.name} has its own methods and settings; '{words.options[0][0]}' beside others makes it two "
            "sweeps. Choose rows and columns with only=[..], or run each by itself."
        )
    for (setting, of_setting), (method, of_method) in itertools.product(table.settings.items(), table.methods.items()):
        where = f"{table.file}: {method} in {setting}"
        try:
            config = compose([*of_setting, *of_method, *words.fixed])
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        changes = [table.space[row] for row in ("all", method) if row in table.space]
        for varied, label in _varied(config, words.axes, where):
            yield _group(" ".join([setting, *label]), method, varied, command, scale, changes, table.file)


def _varied(config: Config, axes: dict[str, list[Any]], where: str) -> Iterator[tuple[Config, list[str]]]:
    """The config with each combination of the axes' numbers, and what tells them apart."""
    known = flat(config.values)
    for key in axes:
        if key not in known:
            raise UserError(f"{unknown_key(key, list(known))} (in the trial {where})")
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        yield changed(config, point), [f"{key}={value}" for key, value in point.items()]


def _group(
    setting: str, method: str, config: Config, command: Command, scale: Scale, changes: list[Any], where: str
) -> Group:
    known = flat(config.values)
    config = changed(config, {key: value for key, value in scale.set.items() if key in known})
    if scale.images is not None:
        config = cost.cut(config, scale.images)
    space = _space(config, changes, where) if command.tune["sampler"] != "none" else {}
    if not space:
        return Group(setting, method, config, {}, [], 0)
    limit = min((n for n in (command.tune["points"], scale.points) if n is not None), default=None)
    if command.tune["sampler"] == "grid":
        grid = points(space, limit)
        return Group(setting, method, config, space, grid, len(grid))
    assert limit is not None
    return Group(setting, method, config, space, [], limit)


def _space(config: Config, changes: list[Any], where: str) -> Space:
    """The axes of a method. Raises UserError where one is over a key that the config lacks."""
    algorithm = config.choices["algorithm"]
    space, known = read_space(algorithm, changes, where), list(flat(config.values))
    for key in space:
        if key not in known:
            raise UserError(f"The search space of {algorithm} ({where}): {unknown_key(key, known)}")
    return space


def chosen(table: Table, only: list[str]) -> Table:
    """The rows and columns that match. Raises UserError on a pattern that matches none."""
    parts: dict[str, dict[str, list[str]]] = {}
    for pattern in only:
        matches = {
            part: {name: words for name, words in getattr(table, part).items() if fnmatchcase(name, pattern)}
            for part in ("settings", "methods")
        }
        if not any(matches.values()):
            names = [*table.methods, *table.settings]
            raise UserError(
                f"only: '{pattern}' is no row or column of {table.file}.{nearest(pattern, names)} "
                f"There are: {', '.join(names)}."
            )
        for part, found in matches.items():
            if found:
                parts[part] = {**parts.get(part, {}), **found}
    kept = {part: {k: v for k, v in getattr(table, part).items() if k in found} for part, found in parts.items()}
    return table._replace(settings=kept.get("settings", table.settings), methods=kept.get("methods", table.methods))


def _versions(config: Config) -> list[Any]:
    """What changes a trial's identity beside its config, as far as it is known without the data."""
    nodes = [(group, config.choices[group], config.values[group]) for group in ("algorithm", *PLUGS)]
    return [*(target(*node).version for node in nodes if node[2]), *own_code(config)]


def _check_all(plan: Plan) -> None:
    """Every config that is known now. Raises UserError, which names the trial."""
    for g, group in enumerate(plan.groups):
        candidates = group.points or [{key: axis.grid[0] for key, axis in group.space.items()}]
        for point in candidates:
            try:
                check(changed(group.config, point))
            except UserError as error:
                shown = " ".join(f"{key}={value}" for key, value in point.items())
                raise UserError(f"{error} (in the trial {plan.groups[g].name} {shown})".replace(" )", ")")) from error
