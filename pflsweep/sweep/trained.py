"""Find which trials of a plan are trained already, by the records and ledgers beside which they would be trained."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pflsweep.config.compose import Config
from pflsweep.config.schema import typed
from pflsweep.records.ledger import Ledger, ledgers
from pflsweep.records.record import FORMAT
from pflsweep.sweep import cost
from pflsweep.sweep.plan import Group, Plan, relevant
from pflsweep.sweep.search_space import Point
from pflsweep.trial.metadata import digest_of, own_code
from pflsweep.util import files
from pflsweep.util.errors import UserError

Known = dict[str, list[tuple[int, str]]]  # by config digest: rounds of a finished record, checksum of its data


def known_trials(runs: Path) -> Known:
    """Return what the finished records of a folder have trained. A damaged one counts as none: who trains says so."""
    found: Known = {}
    for file in runs.glob("*/meta.json"):
        try:
            meta, status = files.read_json(file), files.read_json(file.with_name("status.json"))
            if meta["format"] == FORMAT and status["status"] == "finished":
                found.setdefault(meta["config_digest"], []).append((int(status["rounds"]), meta["data_checksum"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def left(plan: Plan, known: Known, told: Iterable[Ledger]) -> Iterator[list[Config]]:
    """Yield for each group of a plan the configs of the trials that are not trained yet.

    A final trial of a search is known where a ledger names the winner of the same search.
    """
    told = list(told)
    for g, group in enumerate(plan.groups):
        code = own_code(group.config)
        won = _winner(plan, group, told) if group.tries else {}
        points = [(job, plan.foreseen(job)) for job in plan.searched(g) if group.points]
        finals = [(job, won) for job in plan.final(g) if won is not None]
        trials = [config for job, point in [*points, *finals] for config in plan.configs(job, point)]
        # of what a sampler will propose, and of a winner that is not known, the cost of the default values is told
        unknown = [job for job in [*plan.searched(g), *plan.final(g)] if job not in dict([*points, *finals])]
        rest = [config for job in unknown for config in plan.configs(job, {})]
        yield [config for config in trials if not _is_trained(config, code, known)] + rest


def ledgers_of(plan: Plan) -> list[Ledger]:
    """Return the ledgers beside a plan's records, none where one is damaged: who writes there says so."""
    try:
        return ledgers(plan.runs)
    except UserError:
        return []


def _winner(plan: Plan, group: Group, told: Iterable[Ledger]) -> Point | None:
    """Return the point that a search of the same points of the same trials has chosen last, None where none has."""
    asked = (relevant(typed(group.config)), {key: axis.grid for key, axis in group.space.items()})
    tune = {key: value for key, value in plan.tune.items() if key != "partial"}
    found: Point | None = None
    for ledger in told:
        of = ledger.groups.get((group.setting, group.method))
        same = of is not None and (of["config"], of["space"]) == asked and of["points"] == group.tries
        if of is not None and same and _is_same_search(ledger.tune, tune) and of["winner"] is not None:
            found = of["winner"]
    return found


def _is_same_search(told: dict[str, Any], tune: dict[str, Any]) -> bool:
    return {key: value for key, value in told.items() if key != "partial"} == tune


def _is_trained(config: Config, code: list[str], known: Known) -> bool:
    """Return whether a finished record has a trial's rounds. Where more rounds do not continue a method's trials, their
    number is part of what is known, so that both digests can be asked for.
    """
    own, rounds = typed(config), config.values["train"]["rounds"]
    data = cost.size_of(config).checksum  # "" for data that cannot change
    told = [trial for resumable in (True, False) for trial in known.get(digest_of(own, resumable, code), [])]
    return any(done >= rounds and data in ("", checksum) for done, checksum in told)
