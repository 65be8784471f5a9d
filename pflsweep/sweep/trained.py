"""Find which trials of a plan are trained already, by the records and ledgers beside which they would be trained."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from pflsweep.config.compose import Config
from pflsweep.config.schema import typed
from pflsweep.records.content import FORMAT
from pflsweep.records.ledger import Ledger, ledgers, tried_config
from pflsweep.sweep import cost
from pflsweep.sweep.plan import Group, Job, Plan, changed, relevant
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


class Left(NamedTuple):
    """The trials of a group that are not trained yet, as their configs."""

    points: list[Config]
    final: list[Config]

    @property
    def all(self) -> list[Config]:
        return [*self.points, *self.final]


def left(plan: Plan, known: Known, told: Iterable[Ledger]) -> Iterator[Left]:
    """Yield for each group of a plan what is not trained yet.

    A final trial of a search is known where a ledger names the winner of the same search.
    """
    told = list(told)
    for g, group in enumerate(plan.groups):
        code = own_code(group.config)
        won = _winner(plan, group, told) if group.tries else {}

        def untrained(jobs: Iterable[tuple[Job, Point | None]], code: list[str] = code) -> list[Config]:
            return [
                config
                for job, point in jobs
                # of what a sampler will propose, and of a winner that is not known, the cost of the default values
                for config in (plan.configs(job, point) if point is not None else _unknown(plan, job))
                if point is None or not _is_trained(config, code, known)
            ]

        points = [(job, plan.foreseen(job)) for job in plan.searched(g)]
        yield Left(untrained(points), untrained((job, won) for job in plan.final(g)))


def _unknown(plan: Plan, job: Job) -> list[Config]:
    """Return trials of default values that cost what those of an unknown point will, which go on from a lower rung."""
    rung = plan.rung(job)
    if rung is None:
        return plan.configs(job, {})
    before = plan.rounds(Job(job.group, False, rung.below[0]))
    return [changed(config, {"train.rounds": rung.rounds - before}) for config in plan.configs(job, {})]


def ledgers_of(plan: Plan) -> list[Ledger]:
    """Return the ledgers beside a plan's records, none where one is damaged: who writes there says so."""
    try:
        return ledgers(plan.runs)
    except UserError:
        return []


def searched_otherwise(plan: Plan, group: Group, told: Iterable[Ledger]) -> bool:
    """Return whether the last search for a group at the same scale, as ledgers tell, was in another setting."""
    scale = plan.tune.scale or plan.scale
    cell = (group.setting, group.method)
    done = [
        of
        for ledger in told
        if (ledger.sweep, ledger.tune.get("scale") or ledger.scale) == (plan.name, scale)
        if (of := ledger.groups.get(cell)) is not None and of["points_settled"]
    ]
    return bool(done) and tried_config(done[-1]) != relevant(group.tried)


def _winner(plan: Plan, group: Group, told: Iterable[Ledger]) -> Point | None:
    """Return the point that a search of the same points of the same trials has chosen last, None where none has."""
    space = {key: axis.grid for key, axis in group.space.items()}
    asked = {"space": space, "points": group.tries}
    found: Point | None = None
    for ledger in told:
        of = ledger.groups.get((group.setting, group.method))
        if of is None or any(of[key] != value for key, value in asked.items()) or of["winner"] is None:
            continue
        # of which scale it is, its config says; whether it was partial does not matter
        same = {**ledger.tune, "partial": plan.tune.partial, "scale": plan.tune.scale} == asdict(plan.tune)
        if same and tried_config(of) == relevant(group.tried):
            found = of["winner"]
    return found


def _is_trained(config: Config, code: list[str], known: Known) -> bool:
    """Return whether a finished record has a trial's rounds. Where more rounds do not continue a method's trials, their
    number is part of what is known, so that both digests can be asked for.
    """
    if not known:
        return False
    own, rounds = typed(config), config.train.rounds
    data = cost.size_of(config).checksum  # "" for data that cannot change
    digests = (digest_of(own, resumable, code) for resumable in (True, False))
    told = (trial for digest in digests for trial in known.get(digest, []))
    return any(done >= rounds and data in ("", checksum) for done, checksum in told)
