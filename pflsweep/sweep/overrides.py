"""Sort a command's overrides into those of every trial, swept options, swept numbers and seeds.

Hydra sets plain overrides before a sweep is planned. Those that it must not set yet are hidden from it first.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep, Transformer
from hydra.errors import HydraException

from pflsweep.config.hydra_loader import GROUPS
from pflsweep.config.overrides import no_interval
from pflsweep.util.errors import UserError

MOST_VALUES = 10_000  # that a range may have
HIDDEN, END = "=choice('=", "')"  # what `hide_from_hydra` puts around a value


class SortedOverrides(NamedTuple):
    """A command's overrides, sorted.

    fixed: those of every trial.
    options: for each swept option its overrides; each combination is composed by Hydra.
    axes: swept numbers by key, without seeds; they are set on copies of a composed config.
    seeds: None if the command gives none.
    """

    fixed: list[str]
    options: list[list[str]]
    axes: dict[str, list[Any]]
    seeds: list[int] | None


def hide_from_hydra(word: str) -> str:
    """Rewrite an override of a key in a config group as a choice among one value, which Hydra leaves to the sweeper.

    Hydra would set the value before the option is chosen: with algorithm=fedprox,pgfed algorithm.mu=0.1 there is no mu
    at that time. Other overrides are returned as they are.
    """
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        # `sort_overrides` raises the error, with all overrides
        return word
    head, _, key = override.key_or_group.partition(".")
    if not key or head not in GROUPS or override.is_sweep_override() or override.is_delete():
        return word
    return f"{override.get_key_element()}{HIDDEN}{quote(override.get_value_string(), safe='')}{END}"


def as_typed(word: str) -> str:
    """Return an override as the user typed it, the reverse of `hide_from_hydra`."""
    key, hidden, value = word.partition(HIDDEN)
    return f"{key}={unquote(value.removesuffix(END))}" if hidden else word


def sort_overrides(overrides: list[str], parser: OverridesParser) -> SortedOverrides:
    """Sort overrides. Sweeps over numbers become axes; all other sweeps are composed, also one over seeds that are no
    numbers. Where a key is given twice, the last word counts.

    Raises UserError if an override names no values, such as a pattern that matches nothing.
    """
    words = SortedOverrides([], [], {}, None)
    for override in parser.parse_overrides(overrides):
        _check_sweep(override)
        key, numbers = override.key_or_group, _numbers(override)
        words = _without(words, override)
        if key == "seed" and numbers:
            words = words._replace(seeds=numbers)
        elif not override.is_sweep_override():
            words.fixed.append(str(override.input_line))
        elif numbers and override.package is None and not override.is_add():
            words.axes[key] = numbers
        else:
            # Each value once, like numbers
            texts = dict.fromkeys(override.sweep_string_iterator())
            words.options.append([f"{override.get_key_element()}={text}" for text in texts])
            if not words.options[-1]:
                raise UserError(f"'{override.input_line}' matches nothing, so that there is no trial.")
    return words


def _check_sweep(override: Override) -> None:
    """Raise UserError if an override names no values: interval(), an empty range, glob() of a number's key."""
    value, word = override.value(), str(override.input_line)
    if override.is_interval_sweep():
        raise UserError(no_interval(word))
    if isinstance(value, RangeSweep):
        assert value.start is not None
        assert value.stop is not None
        count = (value.stop - value.start) / value.step if value.step else 0
        if not 0 < count <= MOST_VALUES:
            many = f"about {count:.0f} values, more than {MOST_VALUES}" if count > 0 else "no values"
            raise UserError(f"{word} has {many}: range(start,stop,step) has those from start to below stop.")
    if isinstance(value, Glob) and "." in override.key_or_group:
        raise UserError(f"{word}: glob() chooses among the options of a config group, as in algorithm=glob(fedp*).")


def _without(words: SortedOverrides, override: Override) -> SortedOverrides:
    """Return the overrides without earlier sweeps of the same key. Hydra itself replaces an earlier fixed value."""
    key, written = override.key_or_group, f"{override.get_key_element()}="
    return words._replace(
        axes={axis: values for axis, values in words.axes.items() if axis != key},
        options=[options for options in words.options if not options[0].startswith(written)],
        seeds=None if key == "seed" else words.seeds,
    )


def divide(overrides: Iterable[str], parser: OverridesParser) -> tuple[list[str], dict[str, Any]]:
    """Divide overrides into those that Hydra has to compose and numbers, by key, that can be set on a composed config.

    Raises UserError if one has several values.
    """
    parsed = parser.parse_overrides(list(overrides))
    for each in parsed:
        if each.is_sweep_override():
            raise UserError(f"'{each.input_line}' has several values: give each a row or a column of its own.")
    numbers = [each for each in parsed if _is_number(each)]
    heads = {_head(each) for each in parsed if each not in numbers}
    later = [each for each in numbers if _head(each) not in heads]
    return (
        [str(each.input_line) for each in parsed if each not in later],
        {each.key_or_group: each.value() for each in later},
    )


def _is_number(override: Override) -> bool:
    """Return whether an override sets a key inside a group to one number."""
    plain = not (override.is_sweep_override() or override.is_add() or override.is_delete() or override.package)
    return plain and "." in override.key_or_group and isinstance(override.value(), int | float)


def _head(override: Override) -> str:
    return override.key_or_group.partition(".")[0]


def _numbers(override: Override) -> list[Any]:
    """Return an override's values, each once, where all are numbers, true or false; else an empty list."""
    if override.is_delete():
        return []
    several = override.is_sweep_override()
    values = list(override.sweep_iterator(transformer=Transformer.identity)) if several else [override.value()]
    chosen = override.value()
    # Hydra adds up binary fractions, to 0.30000000000000004, and by that may reach the stop
    if isinstance(chosen, RangeSweep):
        values = [float(f"{value:.12g}") if isinstance(value, float) else value for value in values]
        values = [value for value in values if value != chosen.stop]
    if not all(isinstance(value, int | float) for value in values):
        return []
    return list({(isinstance(value, bool), value): value for value in values}.values())
