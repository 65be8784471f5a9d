"""Find where the trials behind a table differ from what its paper states."""

import itertools
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from pflsweep.config.identity import RUNTIME, with_neutral
from pflsweep.config.keys import PLUGS, as_override, key_of, under
from pflsweep.config.options import sweep_rules
from pflsweep.report.compare import separates_settings
from pflsweep.report.markdown import code, inline
from pflsweep.report.paper import layout, published
from pflsweep.report.paper.comparison import Comparison

# what settings.csv calls it -> where a config has it
KEYS = {
    "clients": "partition.clients",
    "participation": "train.participation",
    "rounds": "train.rounds",
    "local_epochs": "train.epochs",
    "batch_size": "train.batch",
    "lr": "train.lr",
    "momentum": "train.momentum",
    "weight_decay": "train.weight_decay",
    "lr_decay": "train.lr_decay",
}
OWN = ("algorithm.", *(f"{group}." for group in PLUGS if group != "attack"))
CLASSES = r"(\d+) random classes|classes per client[^\d]*(\d+)|, (\d+) classes per client"
KINDS = {  # how a stated partition begins, or what it says, and the options that it may be
    r"dirichlet [\d.]+ inside each domain": ("domain",),
    "dirichlet": ("dirichlet",),
    "pathological|Pat-": ("pathological", "classes"),
    "latent distributions": ("latent",),
}
MODELS = {  # a paper's name of a model, where options have others: the authors' code has other layers than the text
    "cnn": ("cnn", "cnn_pg", "tf_cnn"),
    "nfresnet18": ("nfresnet18", "nfresnet_pg"),
}
PARTITIONS = {  # how a stated partition names its number, and the key that holds it
    r"dirichlet ([\d.]+)": "partition.alpha",
    CLASSES: "partition.classes_per_client",
    r"latent distributions: (\d+)": "partition.clusters",
}


def lines(comparison: Comparison) -> list[str]:
    """Return what differs, what the paper leaves open, and what of a method was reconstructed."""
    found = (_stated(comparison), _given(comparison), _uneven(comparison), _rounded(comparison))
    return [*itertools.chain(*found), *_reconstructed(comparison)]


def fewer_rounds(comparison: Comparison) -> set[tuple[int, int]]:
    """Return the rounds of our trials and those that the paper states, for each setting in which ours are fewer.

    Settings of which the paper states no number of rounds are left out.
    """
    stated = [(configs, _number(theirs["rounds"])) for _, theirs, configs in _settings_stated(comparison)]
    pairs = [(int(config["train.rounds"]), n) for configs, n in stated for config in configs if n is not None]
    return {(ours, int(theirs)) for ours, theirs in pairs if ours < theirs}


def _settings_stated(
    comparison: Comparison,
) -> Iterator[tuple[published.Printed, dict[str, str], list[dict[str, Any]]]]:
    """Yield a cell, what the paper states, and the configs of our trials, for each setting that has both."""
    said = _stated_settings(comparison.layout)
    for printed in {(p.dataset, p.model, p.setting): p for p in comparison.layout.printed}.values():
        theirs = next((lines for where, lines in said.items() if _is_about(printed, where)), None)
        configs = list(_configs(comparison, comparison.layout.setting_of(printed)).values())
        if theirs is not None and configs:
            yield printed, theirs, configs


def _stated(comparison: Comparison) -> list[str]:
    differs: dict[str, list[str]] = defaultdict(list)
    unsaid: dict[str, set[str]] = defaultdict(set)
    said = _stated_settings(comparison.layout)
    for printed, theirs, configs in _settings_stated(comparison):
        where = inline(f"{printed.dataset} {printed.setting}")
        for name, key in KEYS.items():
            ours = sorted({inline(as_override(config[key])) for config in configs if key in config})
            if _number(theirs[name]) is None:
                unsaid[name + (f" ({theirs[name]})" if theirs[name] not in ("ns", "") else "")] |= set(ours)
            elif any(_number(each) != _number(theirs[name]) for each in ours):
                differs[f"{name}: stated {theirs[name]}, here {', '.join(ours)}"].append(where)
        for difference in (
            *_data(printed, theirs, configs),
            *_classes(comparison, theirs, printed),
            *_seeds(comparison, theirs, printed),
        ):
            differs[difference].append(where)
    found = [f"{what} ({_places(where, len(said))})" for what, where in differs.items()]
    rest = [f"{name}: {', '.join(sorted(ours))}" for name, ours in unsaid.items() if ours]
    return [*found, *([f"not stated as one number in the paper, and here: {'; '.join(rest)}"] if rest else [])]


def _stated_settings(table: layout.Layout) -> dict[tuple[str, str, str], dict[str, str]]:
    """Return what the paper says of training for a table; for a page of which it says nothing, what it says of the
    table that its trials are from.
    """
    known = layout.names()
    tables = [table.table, *(layout.read(name).table for name in table.sweeps if name in known)]
    return next((said for each in tables if (said := published.stated(table.paper, each))), {})


def _is_about(printed: published.Printed, where: tuple[str, str, str]) -> bool:
    """Return whether a statement is about a number's dataset, model and setting. Rows of our own name no model."""
    dataset, model, setting = where
    return (printed.dataset, printed.setting) == (dataset, setting) and printed.model in ("", model)


def _given(comparison: Comparison) -> list[str]:
    """Return the overrides with which commands change what the sweep's file has, with the columns that they change."""
    unchanged = ("seed", "hydra", *RUNTIME, *(key.partition(".")[0] for key in sweep_rules()))
    columns: dict[str, dict[str, None]] = defaultdict(dict)
    for trials in comparison.trials_by_cell:
        for word in itertools.chain(*(shlex.split(command) for command in trials.commands)):
            if (word.startswith("~") or re.match(r"[\w+@.]+=", word)) and not under(key_of(word), unchanged):
                columns[word][inline(trials.setting)] = None
    every = _settings(comparison)
    return [f"the command has {code(word)} ({_places(list(where), len(every))})" for word, where in columns.items()]


def _uneven(comparison: Comparison) -> list[str]:
    """Return the keys that differ between the rows of a column, but the methods' own and those that were searched."""
    found = []
    for setting in _settings(comparison):
        rows: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for method, group in _groups(comparison, setting).items():
            for key, value in with_neutral(group["config"]).items():
                if separates_settings(key, group["space"]) and key != "train.precision":
                    rows[key][inline(as_override(value))].append(inline(method))
        for key, values in rows.items():
            said = "; ".join(f"{value} for {', '.join(methods)}" for value, methods in sorted(values.items()))
            if len(values) > 1:
                found.append(f"**rows of one column differ in {code(key)}** ({inline(setting)}): {said}")
    return found


def fixed(comparison: Comparison) -> list[str]:
    """Return the hyperparameters of each method that no search chose, with the settings where they differ."""
    methods: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for trials in comparison.trials_by_cell:
        if trials.group:
            methods[inline(trials.method)][_own(trials.group)].append(inline(trials.setting))
    found = []
    for method, values in methods.items():
        said = [
            code(own) + (f" ({', '.join(where)})" if len(values) > 1 else "") for own, where in values.items() if own
        ]
        found += [f"{method}: {'; '.join(said)}"] if said else []
    return found


def _own(group: dict[str, Any]) -> str:
    """Return the hyperparameters of a method and its plug-ins that were not searched. An attack is its setting's."""
    own = {
        key.removeprefix("algorithm."): value
        for key, value in group["config"].items()
        if key.startswith(OWN) and key not in group["space"]
    }
    return " ".join(f"{key}={as_override(value)}" for key, value in own.items())


def _rounded(comparison: Comparison) -> list[str]:
    """Return precisions below fp32, with the columns that have them, and the rows where not all of those do."""
    places: dict[str, list[str]] = defaultdict(list)
    begun = {setting: configs for setting in _settings(comparison) if (configs := _configs(comparison, setting))}
    for setting, configs in begun.items():
        rows: dict[str, list[str]] = defaultdict(list)
        for method, config in configs.items():
            kind = with_neutral(config)["train.precision"]
            if kind != "fp32":
                rows[f"gradients in {inline(kind)} (`train.precision`)"].append(inline(method))
        for what, methods in rows.items():
            places[what].append(inline(setting) + ("" if len(methods) == len(configs) else f" of {', '.join(methods)}"))
    every = list(map(inline, begun))
    return [what if where == every else f"{what} ({'; '.join(where)})" for what, where in places.items()]


def _settings(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys(comparison.layout.setting_of(printed) for printed in comparison.layout.printed))


def _groups(comparison: Comparison, setting: str) -> dict[str, dict[str, Any]]:
    """Return the ledger's group of each method in a setting, of the ledger that has most of its results."""
    return {
        trials.method: trials.group
        for trials in comparison.trials_by_cell
        if trials.setting == setting and trials.group
    }


def _configs(comparison: Comparison, setting: str) -> dict[str, dict[str, Any]]:
    """Return the config of each method in a setting, with what its search chose."""
    return {
        method: {**group["config"], **(group["winner"] or {})} for method, group in _groups(comparison, setting).items()
    }


def _data(printed: published.Printed, theirs: dict[str, str], configs: list[dict[str, Any]]) -> list[str]:
    """Return how dataset, its size, model and partition differ from what is stated."""
    found = []
    model = MODELS.get(printed.model, (printed.model,) if printed.model else ())  # rows of our own name no model
    for what, said, same, key in (
        ("dataset", printed.dataset, (printed.dataset,), "dataset.name"),
        ("model", printed.model, model, "model"),
        ("partition", theirs["partition"], _kinds(theirs["partition"]), "partition"),
    ):
        ours = {str(config[key]) for config in configs if key in config}
        others = sorted(name for name in ours if _plain(name) not in map(_plain, same))
        if same and others:
            found.append(f"{what}: {said} in the paper, here {', '.join(map(inline, others))}")
    limits = {config["data.limit"] for config in configs if config.get("data.limit")}
    found += [f"data: only {inline(limit)} rows of the dataset" for limit in sorted(limits)]
    for like, key in PARTITIONS.items():
        stated = _named(like, theirs["partition"])
        ours = {str(config[key]) for config in configs if key in config}
        if stated is not None and (not ours or any(_number(each) != stated for each in ours)):
            found.append(
                f"partition: stated {theirs['partition']}, here {', '.join(map(inline, sorted(ours))) or 'another'}"
            )
    return found


def _classes(comparison: Comparison, theirs: dict[str, str], printed: published.Printed) -> list[str]:
    """Return that clients have fewer classes than is stated, where they do: a class may be dealt to a client twice."""
    stated, trials = _named(CLASSES, theirs["partition"]), comparison.trials_of(comparison.layout.setting_of(printed))
    least = min((trial.meta.get("statistics", {}).get("classes_min", math.inf) for trial in trials), default=math.inf)
    if stated is None or least >= stated:
        return []
    return [f"partition: stated {theirs['partition']}, here some clients have {inline(least)}, dealt more than once"]


def _seeds(comparison: Comparison, theirs: dict[str, str], printed: published.Printed) -> list[str]:
    """Return how many seeds the rows of a setting have, if some have others than the stated number."""
    stated, setting = _number(theirs["runs"]), comparison.layout.setting_of(printed)
    ours = {len(trials.finished) for trials in comparison.trials_by_cell if trials.setting == setting} - {0}
    if stated is None or ours <= {stated}:
        return []
    said = f"{min(ours)}" if len(ours) == 1 else f"{min(ours)} to {max(ours)}"
    return [f"runs: stated {theirs['runs']}, here {said} (seeds)"]


def _places(where: list[str], total: int) -> str:
    return "everywhere" if len(where) == total else ", ".join(where)


def _number(text: str) -> float | None:
    """Return the number with which a text begins."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return None


def _named(like: str, partition: str) -> float | None:
    """Return the number that a stated partition names."""
    found = re.search(like, partition)
    return None if found is None else _number(next(filter(None, found.groups())))


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _kinds(partition: str) -> tuple[str, ...]:
    """Return the options that a stated partition may be; none if it names no kind."""
    return next((options for like, options in KINDS.items() if re.match(like, partition)), ())


def _reconstructed(comparison: Comparison) -> list[str]:
    """Return what of the methods' code is not in their papers."""
    found = {
        (trials.method, str(trial.meta["reconstruction"])): None
        for trials in comparison.trials_by_cell
        for trial in trials.finished.values()
        if trial.meta.get("reconstruction")
    }
    return [f"reconstructed: {inline(method)}: {inline(what)}" for method, what in found]
