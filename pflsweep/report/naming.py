"""Names of settings: by dataset, partition, model, and those of their keys that tell them apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pflsweep.config.keys import PLUGS, as_override

Flat = Mapping[str, Any]  # a config by full key
OPTIONS = ("dataset", "partition", "model")  # groups whose option a name has, with what is set of it
NAMED = ("algorithm", *PLUGS, "study", *OPTIONS)
# Hashes, which nobody can read: what differs in them alone is numbered
HASHES = ("data_checksum", "data.prescribed")
REFERENCES = ("local", "fedavg")  # methods that every paper compares with
FEW = 3  # keys that a name has at least, if so many differ


def differing_keys(configs: Sequence[Flat]) -> list[str]:
    """Return the keys in which configs differ as a person would say it: a key of an option, such as partition.alpha,
    counts where configs of the same option differ in it. Hashes are never among them. Those of OPTIONS come first.
    """
    keys = {key for config in configs for key in config}.difference(HASHES)
    found = [key for key in sorted(keys) if _differs(key, configs)]
    order = {group: place for place, group in enumerate(OPTIONS)}
    return sorted(found, key=lambda key: order.get(key.partition(".")[0], len(order)))


def _differs(key: str, configs: Sequence[Flat]) -> bool:
    group = key.partition(".")[0]
    by_option: dict[str, set[str]] = {}
    for config in configs:
        option = str(config.get(group)) if group in NAMED and key != group else ""
        by_option.setdefault(option, set()).add(str(config.get(key)))
    return any(len(values) > 1 for values in by_option.values())


def names(options: Sequence[tuple[str, ...]], configs: Sequence[Flat]) -> list[str]:
    """Return a name for each config, no two the same for configs that differ. options: of each config the names of its
    OPTIONS. A name has the keys in which configs of the same three options differ: FEW of them, or as many as it takes.
    """
    found = []
    for own, config in zip(options, configs, strict=True):
        alike = [other for its, other in zip(options, configs, strict=True) if its == own]
        keys = [key for key in differing_keys(alike) if key not in OPTIONS]
        # First those that all have: a key that is null in some follows from another one
        keys.sort(key=lambda key: any(each.get(key) is None for each in alike))
        said = _name(own, config, _with_others(_enough(keys, alike), keys, config))
        found.append(f"{said}{_number(config, alike)}")
    return found


def _enough(keys: list[str], configs: Sequence[Flat]) -> list[str]:
    """Return the first FEW keys, or as many more as tell apart what all of them do."""

    def distinct(n: int) -> int:
        return len({tuple(str(config.get(key)) for key in keys[:n]) for config in configs})

    return keys[: next((n for n in range(FEW, len(keys)) if distinct(n) == distinct(len(keys))), len(keys))]


def _with_others(chosen: list[str], keys: list[str], config: Flat) -> list[str]:
    """Return the chosen keys, and for a config that lacks one of them all others of `keys` that it has: what is set in
    its place may be among them.
    """
    if all(config.get(key) is not None for key in chosen):
        return chosen
    return [key for key in keys if key in chosen or config.get(key) is not None]


def _name(options: tuple[str, ...], config: Flat, keys: list[str]) -> str:
    """Return `digits, dirichlet(alpha=0.1), mlp, lr=0.1`. What is not set, or null, is not said."""
    keys = [key for key in keys if config.get(key) is not None]
    short = Counter(key.rpartition(".")[2] for key in keys if key.partition(".")[0] not in OPTIONS)
    parts = []
    for group, option in zip(OPTIONS, options, strict=True):
        own = [f"{key.partition('.')[2]}={as_override(config[key])}" for key in keys if key.startswith(f"{group}.")]
        parts.append(f"{option}({', '.join(own)})" if own else option)
    for key in keys:
        if key.partition(".")[0] not in OPTIONS:
            last = key.rpartition(".")[2]
            parts.append(f"{last if short[last] == 1 else key}={as_override(config[key])}")
    return ", ".join(parts)


def _number(config: Flat, alike: Sequence[Flat]) -> str:
    """Return `, data 2` of a config that differs from another one in its data's hashes alone; "" for all others."""

    def rest(flat: Flat) -> dict[str, str]:
        return {key: str(value) for key, value in flat.items() if key not in HASHES and value is not None}

    same = dict.fromkeys(_hashes(other) for other in alike if rest(other) == rest(config))
    return f", data {list(same).index(_hashes(config)) + 1}" if len(same) > 1 else ""


def _hashes(config: Flat) -> tuple[str, ...]:
    return tuple(str(config.get(key)) for key in HASHES)
