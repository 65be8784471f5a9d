"""Check the keys of a whole sweep: sweep, only, scale, reading, plan, retry, tune, workers."""

from dataclasses import dataclass, replace
from typing import Any

from pflsweep.config.fields import require
from pflsweep.config.hydra_errors import unknown_key
from pflsweep.config.keys import flat
from pflsweep.config.options import Sweep, Tune, Workers, sweep_rules
from pflsweep.util.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Command(Sweep):
    """All keys of a sweep, checked. A scale that is given as a number of rounds is a string too."""

    scale: str
    tune: Tune
    workers: Workers


def check_command(values: dict[str, Any]) -> Command:
    """Return the composed keys of a sweep as a Command. Raises UserError if a value is not allowed."""
    given, rules = flat(values), sweep_rules()
    for key in given:
        if key not in rules:
            raise UserError(unknown_key(key, list(rules)))
    for key, rule in rules.items():
        if key not in given:
            raise UserError(f"{key} is missing ({rule.meaning}): add it to the option's YAML file.")
        require(key, given[key], rule)
    tune = Tune.of(values["tune"])
    if tune.scale is not None:
        tune = replace(tune, scale=str(tune.scale))
    own = {key: value for key, value in values.items() if key not in ("scale", "tune", "workers")}
    command = Command(**own, scale=str(values["scale"]), tune=tune, workers=Workers.of(values["workers"]))
    if command.workers.backend == "dask" and command.workers.address is None:
        raise UserError(
            "workers.backend=dask needs workers.address, such as tcp://host:8786 (see docs/many_machines.md)."
        )
    if command.reading != "paper" and command.sweep is None:
        raise UserError(f"reading={command.reading} needs a paper's table: name one, as in sweep=fedpg/table1.")
    if command.only and command.sweep is None:
        raise UserError("only=[..] chooses from a sweep file: name one, as in sweep=pgfed/table1.")
    if command.tune.sampler == "hyperband" and command.tune.prune != "none":
        raise UserError(f"tune.prune={command.tune.prune}: tune=hyperband stops losers by itself. Leave it out.")
    if command.tune.sampler not in ("none", "grid") and command.tune.points is None:
        raise UserError(f"tune.points is null: tune={command.tune.sampler} needs a number, as in tune.points=16.")
    return command
