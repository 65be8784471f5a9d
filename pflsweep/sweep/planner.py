"""Build a plan from a command's overrides, with every config checked before anything runs.

A config is composed once for each combination of options. Swept numbers (seed=0,1 train.lr=.1,.01) are set on copies,
since composing takes a tenth of a second.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser

from pflsweep.config.compose import Config, is_of_sweep, warn_without_effect
from pflsweep.config.fields import require
from pflsweep.config.hydra_errors import hydra_errors, unknown_key
from pflsweep.config.identity import method_name, raised
from pflsweep.config.keys import PLUGS, key_of
from pflsweep.config.options import rules
from pflsweep.sweep import cost
from pflsweep.sweep.command import Command
from pflsweep.sweep.hyperband import brackets_of, points_of, rungs
from pflsweep.sweep.overrides import SortedOverrides, divide, sort_overrides
from pflsweep.sweep.plan import Group, Plan, changed, plan_id
from pflsweep.sweep.plan_checks import (
    check_config,
    check_has_effect,
    check_keeps_table,
    check_plan,
    check_search_words,
    check_swept,
    warn_same_trials,
)
from pflsweep.sweep.reading import read_table_as
from pflsweep.sweep.sampling import first_points
from pflsweep.sweep.search_space import Space, grid_points
from pflsweep.sweep.spec import Scale, Table, read_scale, read_space
from pflsweep.trial.metadata import class_nodes, numerics, own_code_hashes
from pflsweep.util.errors import UserError, nearest

# A line of progress for so many cells of a table, which are composed in some ten seconds
REPORTED = 100
Compose = Callable[[list[str]], Config]  # overrides -> a trial's config


class Scales(NamedTuple):
    """The scale of final trials, and that of the search."""

    final: Scale
    search: Scale


def build(command: Command, overrides: Sequence[str], compose: Compose, parser: OverridesParser, name: str) -> Plan:
    """Build the plan of a sweep. compose: Hydra's composition of a trial. name: of the sweep, for messages and MLflow.

    Raises UserError on the first config that is wrong.
    """
    cost.clear_caches()
    scale, asked_scale = read_scale(command.scale), command.tune.scale
    scales = Scales(scale, scale if asked_scale is None else read_scale(str(asked_scale), "tune.scale"))
    for override in parser.parse_overrides([word for word in overrides if is_of_sweep(word)]):
        if override.is_sweep_override():
            raise UserError(
                f"'{override.input_line}' has several values, but a sweep has one: give each its own command."
            )
    words = sort_overrides([word for word in overrides if not is_of_sweep(word)], parser)
    check_search_words(overrides, command)
    check_swept(words)
    if command.sweep is None:
        groups = list(_groups_of_command(words, compose, command, scales))
        table = None
    else:
        table = select(read_table_as(command.sweep, command.scale, command.reading), command.only)
        search_table = table if asked_scale is None else read_table_as(command.sweep, str(asked_scale), command.reading)
        groups = list(_groups_of_table(table, search_table, words, compose, parser, command, scales))
    check_has_effect(words, groups)
    warn_same_trials(groups)
    config_seed = groups[0].config.seed
    seeds = words.seeds or ([config_seed] if table is None else table.seeds[: scale.seeds])
    for seed in seeds:
        require("seed", seed, rules()["seed"])
    own_codes = [own_code_hashes(group.config) for group in groups]
    versions = [_versions(group.config, seeds, own) for group, own in zip(groups, own_codes, strict=True)]
    identifier = plan_id(groups, seeds, command.tune, versions)
    plan = Plan(
        identifier, name, groups, seeds, command.tune, command.workers, command.scale, command.reading, own_codes
    )
    # More workers than slots would only wait
    count = min(command.workers.count, max(1, len(list(plan.slots))))
    plan = plan._replace(workers=replace(command.workers, count=count))
    check_plan(plan, command.only)
    warn_without_effect(_given_keys(words), [group.config for group in groups])
    return plan


def _groups_of_command(words: SortedOverrides, compose: Compose, command: Command, scales: Scales) -> Iterator[Group]:
    """Yield a group for each combination of swept values, seeds apart."""
    composed = [(options, compose([*words.fixed, *options])) for options in itertools.product(*words.options)]
    known = list(dict.fromkeys(key for _, config in composed for key in _keys(config)))
    for options, config in composed:
        rest = [word for word in options if key_of(word) not in ("algorithm", *PLUGS)]
        method = method_name(config.choices)
        for varied, label in _vary(config, words.axes, " ".join(options), known):
            setting = " ".join([*rest, *label])
            yield _group(setting, method, varied, varied, command, scales, [], _given_keys(words), "tune")


def _given_keys(words: SortedOverrides) -> dict[str, None]:
    """Return the keys that the command sets itself. They are neither searched nor scaled."""
    return {**dict.fromkeys(words.axes), **_keys_of(words.fixed), **_keys_of(options[0] for options in words.options)}


def _keys_of(overrides: Iterable[str]) -> dict[str, None]:
    """Return the keys that overrides set."""
    return dict.fromkeys(map(key_of, overrides))


def _keys(config: Config) -> list[str]:
    """Return the keys of a config that can be set."""
    return [key for key in config.flat if not key.endswith("._target_")]


def _groups_of_table(
    table: Table,
    search_table: Table,
    words: SortedOverrides,
    compose: Compose,
    parser: OverridesParser,
    command: Command,
    scales: Scales,
) -> Iterator[Group]:
    """Yield a group for each cell of a table. search_table: the same table at the scale of the search."""
    check_keeps_table(table, words, parser)
    composed: dict[tuple[str, ...], Config] = {}
    given = _given_keys(words)

    def compose_cell(setting: str, row: list[str], where: str) -> Config:
        overrides = [*table.settings[setting], *row, *words.fixed]
        try:
            with hydra_errors(overrides):
                options, numbers = divide(overrides, parser)
            config = _compose_once(options, compose, composed)
            return changed(config, numbers) if numbers.keys() <= config.flat.keys() else compose(overrides)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error

    for number, (setting, method) in enumerate(table.cells):
        if number and number % REPORTED == 0:
            print(f"{table.name}: composed the configs of {number} of {len(table.cells)} cells", file=sys.stderr)
        where = f"{table.file}: {method} in {setting}"
        row = table.words(setting, method)
        search_row = search_table.words(setting, method) if method in search_table.methods else row
        config = compose_cell(setting, row, where)
        search_config = config if search_row == row else compose_cell(setting, search_row, where)
        changes = [search_table.space.get("all", {}), _keys_of(search_row), search_table.space.get(method, {})]
        both = zip(*(_vary(each, words.axes, where, _keys(each)) for each in (config, search_config)), strict=True)
        for (varied, label), (search_varied, _) in both:
            name = " ".join([setting, *label])
            yield _group(name, method, varied, search_varied, command, scales, changes, given, table.file)


def _compose_once(options: list[str], compose: Compose, before: dict[tuple[str, ...], Config]) -> Config:
    """Compose overrides, or return the config of the same overrides from `before`."""
    if tuple(options) not in before:
        before[tuple(options)] = compose(options)
    return before[tuple(options)]


def _vary(
    config: Config, axes: dict[str, list[Any]], where: str, known: list[str]
) -> Iterator[tuple[Config, list[str]]]:
    """Yield the config with each combination of the axes' numbers, and its overrides as labels.

    where: the trial, for messages. known: keys of all configs, for the nearest name in a message.
    """
    for key in axes:
        if key not in config.flat:
            raise UserError(f"{unknown_key(key, known)}{f' (in the trial {where})' if where else ''}")
    evaluated = _evaluation_keys(config, axes["train.rounds"]) if "train.rounds" in axes else {}
    for values in itertools.product(*axes.values()):
        swept = dict(zip(axes, values, strict=True))
        yield changed(config, {**evaluated, **swept}), [f"{key}={value}" for key, value in swept.items()]


def _evaluation_keys(config: Config, rounds: list[Any]) -> dict[str, Any]:
    """Return the keys with which trials of several numbers of rounds, which share a record, are evaluated at each.

    They are empty if a value is not a number of rounds, which is refused later.
    """
    every = config.flat["train.eval_every"]
    numbers = all(type(value) is int and value > 0 for value in (every, *rounds))
    return {"train.eval_every": math.gcd(every, *rounds)} if numbers else {}


def _group(
    setting: str,
    method: str,
    config: Config,
    search_config: Config,
    command: Command,
    scales: Scales,
    changes: list[Any],
    given: dict[str, None],
    where: str,
) -> Group:
    """Build a group with its search.

    config: of final trials; search_config: of the search's trials; both not scaled yet. changes: of the search space.
    given: keys that the command sets. where: the file of `changes`, for messages.
    """
    # Checked first, since the functions below rely on valid values
    for each in (config, search_config):
        check_config(each, f"{method} {setting}".strip())
    config, search_config = _apply_scale(config, scales.final, given), _apply_scale(search_config, scales.search, given)
    space = _space(search_config, [*changes, given], where) if command.tune.sampler != "none" else {}
    if not space:
        return Group(setting, method, config, {}, [], 0)
    if (rounds := space.get("train.rounds")) is not None:
        drawn = rounds.range is not None and command.tune.sampler != "grid"
        search_config = changed(search_config, _evaluation_keys(search_config, [1] if drawn else rounds.grid))
    search = None if search_config.values == config.values else search_config
    limit = min((n for n in (command.tune.points, scales.search.points) if n is not None), default=None)
    if command.tune.sampler == "grid":
        grid = grid_points(space, limit)
        return Group(setting, method, config, space, grid, len(grid), search)
    assert limit is not None
    if command.tune.sampler == "hyperband":
        return _by_hyperband(Group(setting, method, config, space, [], 0, search), limit, command)
    first = first_points(command.tune, space, limit, f"{method} {setting}".strip())
    return Group(setting, method, config, space, first, limit, search)


def _by_hyperband(group: Group, points: int, command: Command) -> Group:
    """Return a group with its search by hyperband. points: how many it tries.

    Raises UserError if there are too few points or rounds.
    """
    train, what = group.search_config.train, group.name
    if "train.rounds" in group.space:
        raise UserError(f"tune=hyperband decides how many rounds points train: leave train.rounds out ({what}).")
    if brackets_of(points, train.rounds) == 1:
        raise UserError(
            f"tune=hyperband tries at least {sum(points_of(2))} points, for a third of all rounds and more: "
            f"{points} points and {train.rounds} rounds are too few ({what}). Use tune=random."
        )
    steps = rungs(points, train.rounds)
    count = steps[-1].numbers.stop
    known = sum(len(rung.numbers) for rung in steps if not rung.below)
    # Rungs end in evaluated rounds, so that a record which was continued still has the accuracy at its earlier rungs
    kept = {"train.eval_every": math.gcd(train.eval_every, steps[0].rounds), "checkpoint.keep": True}
    search_config = changed(group.search_config, kept)
    first = first_points(command.tune, group.space, known, what)
    search = None if search_config.values == group.config.values else search_config
    return group._replace(points=first, search_slot_count=count, search=search)


def _apply_scale(config: Config, scale: Scale, given: dict[str, None]) -> Config:
    """Return a config at a scale. Keys that the command gives keep their values."""
    known = config.flat.keys() - given.keys()
    config = changed(config, {key: value for key, value in scale.set.items() if key in known})
    if "train.rounds" in known:
        if scale.rounds is not None:
            config = cost.limit_rounds(config, scale.rounds)
        if scale.images is not None:
            config = cost.limit_images(config, scale.images)
    return config


def _space(config: Config, changes: list[Any], where: str) -> Space:
    """Return the search space of a method. Raises UserError if the config lacks one of its keys."""
    algorithm = config.choices["algorithm"]
    space, known = read_space(algorithm, changes, where), _keys(config)
    for key in space:
        if key not in known:
            file = f"sweeps/space/{algorithm}.yaml" + (f", {where}" if where != "tune" else "")
            raise UserError(f"The search space of {algorithm} ({file}): {unknown_key(key, known)}")
    return space


def select(table: Table, only: list[str]) -> Table:
    """Return a table with the rows and columns that match `only`. Raises UserError if a pattern matches none."""
    parts: dict[str, dict[str, list[str]]] = {}
    for pattern in only:
        if pattern in table.without_code:
            raise UserError(f"only: '{pattern}' has no public code: this reading of {table.file} cannot run it.")
        matches = {
            part: {name: words for name, words in getattr(table, part).items() if fnmatchcase(name, pattern)}
            for part in ("settings", "methods")
        }
        if not any(matches.values()):
            names = [*table.methods, *table.settings]
            raise UserError(
                f"only: '{pattern}' is not a row or column of {table.file}.{nearest(pattern, names)} "
                f"There are: {', '.join(names)}."
            )
        for part, found in matches.items():
            if found:
                parts[part] = {**parts.get(part, {}), **found}
    kept = {part: {k: v for k, v in getattr(table, part).items() if k in found} for part, found in parts.items()}
    left = table._replace(settings=kept.get("settings", table.settings), methods=kept.get("methods", table.methods))
    if not left.cells:
        rows = "; ".join(f"{row} in {', '.join(table.only[row])}" for row in left.methods)
        raise UserError(f"only: {table.file} runs none of these rows in these columns. It runs {rows}.")
    return left


def _versions(config: Config, seeds: list[int], own: list[str]) -> list[Any]:
    """Return what trials' identities depend on beside their config: versions, own code, checksum of data.

    own: hashes of the user's own code. The checksum is that of a user's own data, and of partitions in files, which
    may change. The path of a file may refer to the seed: then it is one checksum a seed.
    """
    follow = "partition.path" in config.interpolations
    each = [config, *(changed(config, {"seed": seed}) for seed in seeds if follow and seed != config.seed)]
    files = {one.node("partition").options.get("path"): one for one in each}
    checksums = [cost.partition_size(one).checksum for one in files.values()]
    versions = [node.load().version for node in class_nodes(config)]
    return [
        *versions,
        *map(list, raised(numerics(config)).items()),
        *own,
        *filter(None, checksums),
    ]
