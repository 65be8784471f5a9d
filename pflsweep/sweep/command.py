"""The keys of a whole sweep: sweep, only, scale, reading, plan, retry, tune, workers; checked."""

from typing import Any, NamedTuple

from pflsweep.config.compose import unknown_key
from pflsweep.config.fields import Rule, require
from pflsweep.config.keys import flat
from pflsweep.sweep.sampling import PRUNERS, SAMPLERS
from pflsweep.util.errors import UserError

RULES = {
    "sweep": Rule((str,), null=True),
    "only": Rule((list,), items=str),
    "scale": Rule((str, int)),
    "reading": Rule((str,), empty=False),
    "plan": Rule((bool,)),
    "retry": Rule((bool,)),
    "tune.sampler": Rule((), choices=SAMPLERS),
    "tune.points": Rule((int,), low=1, high=100_000, null=True),
    "tune.split": Rule((), choices=("validation", "test")),
    "tune.validation": Rule((float,), above=0, below=1),
    "tune.view": Rule((), choices=("personal", "global", "trained")),
    "tune.round": Rule((), choices=("last", "best")),
    "tune.scale": Rule((str, int), null=True),
    "tune.seeds": Rule((int,), low=1),
    "tune.prune": Rule((), choices=PRUNERS),
    "tune.seed": Rule((int,), low=0, high=2**32 - 1),
    "tune.partial": Rule((bool,)),
    "workers.count": Rule((int,), low=1),
    "workers.stack": Rule((int,), low=1),
    "workers.backend": Rule((), choices=("processes", "dask")),
    "workers.address": Rule((str,), null=True, empty=False),
    "workers.storage": Rule((str,), null=True, empty=False),
    "workers.heartbeat": Rule((int,), low=1),
}


class Command(NamedTuple):
    """What is asked of a sweep."""

    sweep: str | None
    only: list[str]
    scale: str
    reading: str
    plan: bool
    retry: bool
    tune: dict[str, Any]
    workers: dict[str, Any]


def checked(values: dict[str, Any]) -> Command:
    """From the composed keys. Raises UserError."""
    given = flat(values)
    for key in given:
        if key not in RULES:
            raise UserError(unknown_key(key, list(RULES)))
    for key, rule in RULES.items():
        if key not in given:
            raise UserError(f"{key} is missing: add it to the option's YAML file.")
        require(key, given[key], rule)
    command = Command(**values)
    searched = command.tune["scale"]
    command = command._replace(  # a number of rounds is its own name
        scale=str(command.scale), tune={**command.tune, "scale": None if searched is None else str(searched)}
    )
    if command.workers["backend"] == "dask" and command.workers["address"] is None:
        raise UserError(
            "workers.backend=dask needs workers.address, such as tcp://host:8786 (see docs/many_machines.md)."
        )
    if command.reading != "paper" and command.sweep is None:
        raise UserError(f"reading={command.reading} is of a paper's table: name one, as in sweep=fedpg/table1.")
    if command.only and command.sweep is None:
        raise UserError("only=[..] chooses from a sweep file: name one, as in sweep=pgfed/table1.")
    if command.tune["sampler"] == "hyperband" and command.tune["prune"] != "none":
        raise UserError(f"tune.prune={command.tune['prune']}: tune=hyperband stops losers by itself. Leave it out.")
    if command.tune["sampler"] not in ("none", "grid") and command.tune["points"] is None:
        raise UserError(f"tune.points is null: {command.tune['sampler']} has no end of its own. Say how many to try.")
    return command
