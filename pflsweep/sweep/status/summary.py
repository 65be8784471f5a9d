"""The text that a sweep prints: before it runs, its cost; at its end, a table of its trials and where to look next."""

import math
import sys
from collections import Counter
from collections.abc import Container, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pflsweep.config.identity import method_name
from pflsweep.records.errors import Damaged
from pflsweep.report.terminal import table_with_legend
from pflsweep.sweep import attributes, cost
from pflsweep.sweep.plan import Plan, Slot
from pflsweep.sweep.queue import Queue
from pflsweep.sweep.search_space import Point
from pflsweep.sweep.slot_state import is_tried_again, point_of, rounds_on_disk
from pflsweep.sweep.state import SweepState
from pflsweep.sweep.status import groups as status_groups
from pflsweep.trial.progress import duration
from pflsweep.util.errors import UserError, counted
from pflsweep.util.once import warn_once

if TYPE_CHECKING:
    import pandas as pd

    from pflsweep.records.ledger import Ledger
    from pflsweep.records.record import Record
    from pflsweep.sweep.trained import Untrained
    from pflsweep.tracking.logging import Labels

LONG = 60  # seconds; a shorter sweep starts without a forecast
MANY = 100  # records that are read for a table at most; with more, the queue's results are shown


def estimate(plan: Plan) -> str:
    """Return the text of plan=true: the trials of a plan, how many are trained already, and what the others cost."""
    from pflsweep.sweep import trained

    ledgers = trained.ledgers_of(plan)
    untrained = list(trained.untrained(plan, trained.finished_records(plan.runs), ledgers))
    table, ways, unknown = _costs(plan, untrained)
    by_setting = table.groupby("setting", sort=False)
    totals = by_setting.agg(
        methods=("method", "size"), trials=("trials", "sum"), trained=("trained", "sum"), seconds=("seconds", _sum)
    )
    pages = [_page(table), *([_page(totals.reset_index())] if 1 < len(totals) < len(table) else [])]
    return "\n\n".join([*pages, _total(plan, table, ways, unknown, _searches(plan, untrained, ledgers))])


def forecast(plan: Plan) -> str:
    """Return a line on how long a sweep will take on this machine; "" if that is less than LONG or unknown."""
    from pflsweep.sweep import trained

    try:
        finished, ledgers = trained.finished_records(plan.runs), trained.ledgers_of(plan)
        table, ways, unknown = _costs(plan, list(trained.untrained(plan, finished, ledgers)))
    except UserError:
        # Data that cannot be read, which the trial will report
        return ""
    workers = plan.workers.count
    seconds = _sum(table["seconds"]) / workers
    if math.isnan(seconds) or seconds < LONG:
        return ""
    least = "at least" if unknown or ways[cost.PLAIN] else "about"
    known = _speed_sources(ways)
    return (
        f"{plan.name}: {least} {duration(seconds)} on this machine with {counted(workers, 'worker')}, by the "
        f"speed of {known}. Ctrl-C stops it and the same command goes on; plan=true shows each method's cost."
    )


def _costs(plan: Plan, untrained: "list[Untrained]") -> "tuple[pd.DataFrame, Counter[str], list[str]]":
    """Return one row per group with the cost of its untrained trials, and two facts about the groups' speeds.

    These are the counts of groups by the source of their speed, and why the speed of others is unknown.
    """
    import pandas as pd

    speeds = cost.known_speeds(plan.runs, [group.config for group in plan.groups])
    lines, ways, unknown = [], Counter[str](), list[str]()
    apart = any(group.search is not None for group in plan.groups)
    for g, (group, of_group) in enumerate(zip(plan.groups, untrained, strict=True)):
        configs = of_group.all
        count = group.search_slot_count * len(plan.tuning_seeds) + len(plan.seeds)
        seconds = math.nan
        try:
            speed = cost.speed(group.config, speeds, plan.workers.count)
        except UserError as error:
            # The trial will report it
            unknown.append(str(error))
        else:
            ways[speed.source] += 1
            seconds = cost.seconds(configs, speed.rate)
        lines.append({
            "method": group.method,
            "setting": group.setting or status_groups.NONE,
            "points": plan.point_count(g),
            **({"rounds a point": group.search_config.train.rounds if group.is_searched else 0} if apart else {}),
            "trials": count,
            "trained": count - len(configs),
            "rounds": group.config.train.rounds,
            "images a trial": cost.images_a_trial(group.config),
            "seconds": seconds,
        })  # fmt: skip
    return pd.DataFrame(lines), ways, unknown


def _speed_sources(ways: Counter[str]) -> str:
    """Return the sources of speeds as text."""
    return ", ".join(f"{how} ({count})" for how, count in ways.most_common())


def _searches(plan: Plan, untrained: "list[Untrained]", ledgers: "list[Ledger]") -> str:
    """Say how many searches of a plan are trained already, and how many were trained with another config before.

    Return "" for a plan without searches.
    """
    from pflsweep.sweep import trained

    pairs = [
        (group, of_group.search) for group, of_group in zip(plan.groups, untrained, strict=True) if group.is_searched
    ]
    if not pairs:
        return ""
    open_ = [group for group, configs in pairs if configs]
    again = sum(trained.searched_with_other_config(plan, group, ledgers) for group in open_)
    trials = sum(len(configs) for _, configs in pairs)
    sentence = (
        f"Searches at scale {plan.tune.scale or plan.scale}: {len(pairs) - len(open_)} of {len(pairs)} are trained "
        f"already, {len(open_)} are to be trained ({trials:,} trials)"
    )
    before = f", {again} of them again, since their setting was another then" if again else ""
    return f"{sentence}{before}."


def _sum(seconds: "pd.Series") -> float:
    """Return the sum of the known numbers; NaN if none is known."""
    return float(seconds.sum(min_count=1))


def _page(table: "pd.DataFrame") -> str:
    """Return a table of costs as text, with durations such as `2 h` and thousands separated."""
    shown = table.assign(time=[_time(seconds) for seconds in table["seconds"]])
    for column in {"points", "rounds a point"} & {*shown}:
        shown[column] = [number or status_groups.NONE for number in shown[column]]
    formatters = {"images a trial": lambda images: f"{images:,}"}
    return shown.drop(columns="seconds").to_string(index=False, formatters=formatters)


def _time(seconds: float) -> str:
    return "unknown" if math.isnan(seconds) else duration(seconds)


def _total(plan: Plan, table: "pd.DataFrame", ways: Counter[str], unknown: list[str], searches: str) -> str:
    """Return the closing lines of an estimate."""
    workers, seeds = plan.workers.count, plan.seeds
    known = _speed_sources(ways)
    sentences = [f"Speeds are those of {known}."] if known else []
    if ways[cost.PLAIN]:
        sentences.append("Plain gradient steps are a lower bound: they leave out a method's own computations.")
    if known:
        sentences.append(f"Each trial's start counts as {cost.START:g} s.")
    if unknown:
        sentences.append(f"The time of {counted(len(unknown), 'row')} is unknown: {unknown[0]}")
    trials, trained = table["trials"].sum(), table["trained"].sum()
    left, many = trials - trained, "" if trials == 1 else "s"
    reading = "" if plan.reading == "paper" else f", reading {plan.reading}"
    return "\n".join(filter(None, [
        f"{plan.name} at scale {plan.scale}{reading}: {trials:,} trial{many}, seed{'s' * (len(seeds) > 1)} "
        f"{', '.join(map(str, seeds))}; {trained:,} of them trained already; time for the other {left:,} on "
        f"this machine with {counted(workers, 'worker')}: {_time(_sum(table['seconds']) / workers)}.",
        searches,
        " ".join(sentences),
        "Dry run (plan=true): nothing was started.",
    ]))  # fmt: skip


def print_results(queue: Queue, track: bool) -> int:
    """Print the results of a sweep, and send them to MLflow where `track`.

    Return the exit code: 0 without failures, 2 where all that failed had bad input, else 1.
    """
    from pflsweep.report.paper import layout
    from pflsweep.sweep import pictures
    from pflsweep.sweep.mlflow_names import group_results
    from pflsweep.tracking.sweep_run import finish_sweep

    plan, sweep = queue.plan, queue.sweep
    records = records_of(sweep)
    searched = any(group.is_searched for group in plan.groups)
    tables = {"status": status_groups.table(sweep)} | ({"winners": status_groups.winners(sweep)} if searched else {})
    # MLflow first, since printing fails where the reader of a pipe is gone
    if track:
        lines, figures = status_groups.failure_lines(sweep), pictures.search_figures(queue)
        finish_sweep(
            plan.groups[0].config.tracking, plan.id, records, lines, tables, figures, group_results(sweep, records)
        )
    if searched:
        print(tables["winners"].to_string(index=False) + f"\n\n{_chosen_on(plan)}\n")
        if at_ends := status_groups.at_ends(sweep):
            print(f"{at_ends}\n")
    keys = {key for group in plan.groups for key in group.space}
    partial: set[str] = set()
    names: dict[str, str] = {}
    for g, group in enumerate(plan.groups):
        finals = {one["identity"] for slot in plan.final_slots(g) for one in sweep.states[slot].results}
        if sweep.without_result(g):
            partial |= finals
        if group.method != method_name(group.config.choices):
            names |= dict.fromkeys(finals, group.method)
    page = plan.name if plan.name in layout.names() else None
    tracked = plan.groups[0].config.tracking.backend != "none"
    shown = table_with_legend(records, keys, partial, names, page, tracked) if records else None
    print(shown or tables["status"].to_string(index=False))
    if elsewhere := _elsewhere(sweep):
        print(f"Records on other machines: {elsewhere}. Copy them into one folder for `pflsweep report`.")
    return _name_failures(sweep)


def _name_failures(sweep: SweepState) -> int:
    """Print each failure, with its traceback where that is another than before, and return the exit code."""
    bad = status_groups.failed_slots(sweep)
    failed = [state for _, state in bad]
    # The failures are first the failed slots, then searches without a winner, which have no traceback
    shown: set[str] = set()
    traces = (state.attrs.get(attributes.TRACE) for state in failed)
    for line, trace in zip_longest(status_groups.failure_lines(sweep), traces):
        # A method with a bug fails at every point, and an error that is shown as its message alone has no frames
        new = trace and trace not in shown and not line.endswith(trace)
        print(f"pflsweep: {line}" + (f"\n{trace}" if new else ""), file=sys.stderr)
        shown.add(trace or "")
    if not failed:
        return 0
    by_itself = all(is_tried_again(slot, state) for slot, state in bad)
    again = f"; {'the same command' if by_itself else 'retry=true'} tries them again"
    if all(state.status == "diverged" for state in failed):
        again = ", since their loss diverged; with the same settings it will again"
    print(f"{len(failed)} of {len(sweep.states)} trials failed{again}.", file=sys.stderr)
    # A final trial without a winner is a consequence of its search, not a cause
    causes = [state for state in failed if not state.attrs.get(attributes.NO_WINNER)]
    return 2 if causes and all(state.attrs.get(attributes.INPUT) for state in causes) else 1


def _chosen_on(plan: Plan) -> str:
    """Return a sentence on how the winners were chosen."""
    tune = plan.tune
    how = {"last": "the last round", "best": "the best round"}[tune.round]
    if tune.split == "validation":
        where = f"validation data ({tune.validation:.0%} of each client's training rows); winners are trained on all"
    else:
        where = "TEST data, as the paper did: its numbers are optimistic"
    scale = "" if tune.scale is None else f" at scale {tune.scale}"
    return f"best: the highest {tune.view} accuracy in {how}{scale} on {where}."


def records_of(sweep: SweepState) -> list["Record"]:
    """Return the records of all final trials; none if they are more than MANY, or one is damaged or not here."""
    folders = _folders(sweep)
    records = [record for record, _ in final_records(sweep)] if len(folders) <= MANY else []
    return records if len(records) == len(folders) else []


def final_records(sweep: SweepState, but: Container[str] = ()) -> Iterator[tuple["Record", "Labels"]]:
    """Yield the records of final trials on this machine as of the sweep's rounds, with their names for MLflow.

    but: identities of those that are left out.
    """
    for (folder, rounds), slot in _folders(sweep).items():
        if folder.name not in but:
            yield from _labelled(sweep, folder, rounds, slot, sweep.winner(slot.group) or {})


def search_records(sweep: SweepState, but: Container[str] = ()) -> Iterator[tuple["Record", "Labels"]]:
    """Yield the records of searches' trials that are done, as `final_records` does.

    A record that several rungs share is yielded once, as of the last rung that is done.
    """
    last: dict[Path, Slot] = {}
    for slot, state in sweep.states.items():
        for one in () if slot.final else state.results:
            folder = _folder(sweep, slot, one)
            if folder.name not in but:
                last[folder] = max(last.get(folder, slot), slot, key=sweep.rounds)
    for folder, slot in last.items():
        point = point_of(sweep.plan.groups[slot.group], sweep.states[slot])
        yield from _labelled(sweep, folder, sweep.rounds(slot), slot, point)


def _labelled(
    sweep: SweepState, folder: Path, rounds: int, slot: Slot, point: Point
) -> Iterator[tuple["Record", "Labels"]]:
    """Yield a trial's record as of some rounds, with its name for MLflow, if it is on this machine.

    A damaged one is named once: it must not hide the others.
    """
    from pflsweep.records.record import Record
    from pflsweep.sweep.mlflow_names import trial_labels

    if (folder / "meta.json").exists():
        try:
            record = Record.as_of(folder, rounds)
        except Damaged as error:
            warn_once(__name__, str(error))
            return
        # A record of more rounds may never have been evaluated in that one
        if rounds in record.evaluated:
            yield record, trial_labels(sweep.plan, slot, point, record.meta["seed"])


def _folders(sweep: SweepState) -> dict[tuple[Path, int], Slot]:
    """Return by folder and rounds of each final trial one of its slots."""
    return {(_folder(sweep, slot, one), sweep.rounds(slot)): slot for slot, one in _final_results(sweep)}


def _folder(sweep: SweepState, slot: Slot, result: dict[str, Any]) -> Path:
    """Return the folder of a trial's record: in the sweep's folder of runs, or where it was trained.

    It may have been copied here with the folder, or from another machine. A record here that has too few rounds is not
    the result's.
    """
    here = sweep.plan.runs / result["identity"]
    done = rounds_on_disk(here)
    return here if done is not None and done >= sweep.rounds(slot) else Path(result["folder"])


def _final_results(sweep: SweepState) -> Iterator[tuple[Slot, dict[str, Any]]]:
    """Return pairs of a slot and a result for all final trials that are done."""
    return ((slot, one) for slot, state in sweep.states.items() if slot.final for one in state.results)


def missing(sweep: SweepState, shown: int) -> str:
    """Return a line on the final trials of a sweep that are done and not among the `shown` ones; "" if all are."""
    done = len(_folders(sweep))
    if shown == done:
        return ""
    where = f" ({found})" if (found := _elsewhere(sweep)) else ""
    return (
        f"{done - shown} of {done} final trials are left out: their records are not in {sweep.plan.runs}{where}, or "
        "another sweep trained them for more rounds, without an evaluation in this one's last. Copy folders of runs "
        "together to have all."
    )


def _elsewhere(sweep: SweepState) -> str:
    """Return how many final trials' records are in which folders of other machines; "" if all are here."""
    folders = {(one["host"], _folder(sweep, slot, one)) for slot, one in _final_results(sweep)}
    places = Counter(f"{host}:{folder.parent}" for host, folder in sorted(folders) if not folder.exists())
    return ", ".join(f"{count} in {place}" for place, count in places.items())
