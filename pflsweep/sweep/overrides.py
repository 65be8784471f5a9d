"""A command's overrides: past Hydra, which wants to set them before a sweep is planned; then sorted."""

from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep, Transformer
from hydra.errors import HydraException

from pflsweep.config.compose import GROUPS
from pflsweep.config.overrides import no_interval
from pflsweep.util.errors import UserError

MOST_VALUES = 10_000  # of a range
PAST, END = "=choice('=", "')"  # what is written about a value that is meant for trials alone


class SortedOverrides(NamedTuple):
    """Overrides, sorted."""

    fixed: list[str]  # of every trial
    options: list[list[str]]  # what is composed: for each swept option its overrides
    axes: dict[str, list[Any]]  # key -> swept numbers, but for the seed
    seeds: list[int] | None


def handed_past(word: str) -> str:
    """An override of a group's key, as the only one of several choices: Hydra leaves those to the sweeper.

    It would set the value before it knows of which option: algorithm=fedprox,pgfed algorithm.mu=0.1 has no mu then.
    """
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        return word  # said where all is parsed
    head, _, key = override.key_or_group.partition(".")
    if not key or head not in GROUPS or override.is_sweep_override() or override.is_delete():
        return word
    return f"{override.get_key_element()}{PAST}{quote(override.get_value_string(), safe='')}{END}"


def shown(word: str) -> str:
    """An override as it was typed."""
    key, past, value = word.partition(PAST)
    return f"{key}={unquote(value.removesuffix(END))}" if past else word


def sorted_overrides(overrides: list[str], parser: OverridesParser) -> SortedOverrides:
    """Sweeps over numbers become axes, all other sweeps are composed; so is a seed that is no number. The
    last word of a key counts. Raises UserError on a pattern that matches nothing.
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
            texts = dict.fromkeys(override.sweep_string_iterator())  # each once, as numbers are
            words.options.append([f"{override.get_key_element()}={text}" for text in texts])
            if not words.options[-1]:
                raise UserError(f"'{override.input_line}' matches nothing, so that there is no trial.")
    return words


def _check_sweep(override: Override) -> None:
    """Raises UserError where an override names no values: interval(), a range without any, glob() of a number's key."""
    value, said = override.value(), str(override.input_line)
    if override.is_interval_sweep():
        raise UserError(no_interval(said))
    if isinstance(value, RangeSweep):
        assert value.start is not None
        assert value.stop is not None
        count = (value.stop - value.start) / value.step if value.step else 0
        if not 0 < count <= MOST_VALUES:
            many = f"about {count:.0f} values, more than {MOST_VALUES}" if count > 0 else "no values"
            raise UserError(f"{said} has {many}: range(start,stop,step) has those from start to below stop.")
    if isinstance(value, Glob) and "." in override.key_or_group:
        raise UserError(f"{said}: glob() chooses among the options of a config group, as in algorithm=glob(fedp*).")


def _without(words: SortedOverrides, override: Override) -> SortedOverrides:
    """Without earlier sweeps of the same key; what was fixed before is overridden when it is composed."""
    key, written = override.key_or_group, f"{override.get_key_element()}="
    return words._replace(
        axes={axis: values for axis, values in words.axes.items() if axis != key},
        options=[options for options in words.options if not options[0].startswith(written)],
        seeds=None if key == "seed" else words.seeds,
    )


def divided(overrides: Iterable[str], parser: OverridesParser) -> tuple[list[str], dict[str, Any]]:
    """What has to be composed, and the numbers that can be set on a copy of that. Raises UserError."""
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
    plain = not (override.is_sweep_override() or override.is_add() or override.is_delete() or override.package)
    return plain and "." in override.key_or_group and isinstance(override.value(), int | float)


def _head(override: Override) -> str:
    return override.key_or_group.partition(".")[0]


def _numbers(override: Override) -> list[Any]:
    """The values where they are all numbers or true and false, each once; else none."""
    if override.is_delete():
        return []
    several = override.is_sweep_override()
    values = list(override.sweep_iterator(transformer=Transformer.identity)) if several else [override.value()]
    chosen = override.value()
    if isinstance(chosen, RangeSweep):  # Hydra adds binary fractions up, to 0.30000000000000004, and may reach the stop
        values = [float(f"{value:.12g}") if isinstance(value, float) else value for value in values]
        values = [value for value in values if value != chosen.stop]
    if not all(isinstance(value, int | float) for value in values):
        return []
    return list({(isinstance(value, bool), value): value for value in values}.values())
