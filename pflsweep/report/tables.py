"""A setting as tables of text: what stands in the report, on the terminal and in MLflow."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from pflsweep.records.record import Record
from pflsweep.report import markdown
from pflsweep.report.compare import PARTIAL, Row, Setting, score_keys, settings
from pflsweep.report.quantities import at_last, evaluated, rounds_to, view_in_words
from pflsweep.report.stats import Interval, gain, mean_std, rounded

NONE = "-"


def accuracy(setting: Setting, baseline: Row | None) -> pd.DataFrame:
    """Return accuracies in percent; one row per method."""
    against = f"minus {baseline.label}" if baseline else "minus baseline"
    intervals, gains = _spans(setting.rows), [_gain(row, baseline) for row in setting.rows]
    kinds = dict.fromkeys(got.kind for got in gains if isinstance(got, Interval))
    beside = f" [{next(iter(kinds))}]" if len(kinds) == 1 else ""
    lines = []
    for row, (heading, span), got in zip(setting.rows, intervals, gains, strict=True):
        lines.append({
            "method": row.label,
            "seeds": _seeds(row, setting.rows),
            "last round": percent(row.interval.mean),
            heading: span,
            f"{against}{beside}": got if isinstance(got, str) else _signed(got, named=len(kinds) > 1),
            "best round": _best(row),
            "std over clients": percent(row.mean("std")),
            "worst 10%": percent(row.mean("worst10")),
            "std over seeds": percent(mean_std([s.last for s in row.summaries])[1]),
            "global model": percent(row.mean("global_last")),
        })  # fmt: skip
    return pd.DataFrame(lines)


def others(setting: Setting, baseline: Row | None, goal: float | None = None) -> pd.DataFrame:
    """Return all other metrics of the last round; one row per method. goal: an accuracy that is to be reached."""
    heads = dict.fromkeys(head for row in setting.rows for head in further_scores(row))
    lines = []
    for row in setting.rows:
        line = {
            "method": row.label,
            "macro F1": percent(_last(row, "personal_f1")),
            "over samples": percent(_last(row, "personal_accuracy_weighted")),
        }
        own = {
            head: _with_std(_last(row, f"{name}_accuracy"), _last(row, f"{name}_std"))
            for head, name in further_scores(row).items()
        }
        line |= {head: own.get(head, NONE) for head in heads}
        if baseline:
            line[f"gain over {baseline.label}"] = _client_gain(row, baseline)
        if goal is not None:
            line[f"rounds to {100 * goal:g}%"] = _reached(row, goal)
        lines.append(line)
    return pd.DataFrame(lines)


def further_scores(row: Row) -> dict[str, str]:
    """Return the further scores of a row's runs: heading -> name. S-acc with whose data, as rows may differ in it."""
    metrics = score_keys(row.records[0])
    share = ", ".join(str(metrics[key]) for key in ("metrics.subset", "metrics.subset_size") if key in metrics)
    names = [n for n in evaluated(row.records) if n not in ("personal", "global")]
    return {view_in_words(n) + (f" ({share})" if share and n.endswith("_subset") else ""): n for n in names}


def numbers(setting: Setting, baseline: Row | None, goal: float | None = None) -> pd.DataFrame:
    """Return all numbers of a setting's tables, unrounded; one row per method. Accuracies and gains are in [-1, 1].

    goal: as for `others`. A number that a row does not have is NaN.
    """
    names = {head: name for row in setting.rows for head, name in further_scores(row).items()}
    lines = []
    for row in setting.rows:
        got, pairs = _gain(row, baseline), row.gains(baseline) if baseline and row is not baseline else []
        own = got if isinstance(got, Interval) else Interval(math.nan, math.nan, math.nan, "")
        scored = further_scores(row)
        line = {
            "setting": setting.name,
            "method": row.label,
            "seeds": len(row.records),
            "seeds_missing": len(row.missing),
            "accuracy": row.interval.mean,
            "std_over_seeds": mean_std([s.last for s in row.summaries])[1],
            "low": row.interval.low,
            "high": row.interval.high,
            "interval": row.interval.kind,
            "baseline": baseline.label if baseline else "",
            "gain": own.mean,
            "gain_low": own.low,
            "gain_high": own.high,
            "gain_interval": own.kind,
            "gain_std_over_clients": float(np.mean([pair.std() for pair in pairs])) if pairs else math.nan,
            "best": row.mean("best"),
            "best_round": row.mean("best_round"),
            "std_over_clients": row.mean("std"),
            "worst10": row.mean("worst10"),
            "global_accuracy": row.mean("global_last"),
            "macro_f1": _last(row, "personal_f1"),
            "accuracy_over_samples": _last(row, "personal_accuracy_weighted"),
        }
        for head, name in names.items():
            there = scored.get(head) == name
            line[f"{head} accuracy"] = _last(row, f"{name}_accuracy") if there else math.nan
            line[f"{head} std_over_clients"] = _last(row, f"{name}_std") if there else math.nan
        if goal is not None:
            reached = _reaching(row, goal)
            line[f"rounds_to_{100 * goal:g}%"] = float(np.mean(reached)) if reached else math.nan
            line[f"seeds_reaching_{100 * goal:g}%"] = len(reached)
        if setting.new_clients:
            curve = row.new_clients()
            line["new_clients"] = curve.mean[0] if curve else math.nan
            line["new_clients_tuned"] = curve.mean[-1] if curve else math.nan
        line |= {name: row.mean(name) for name in ("rounds", "seconds", "images_per_second")}
        line |= {name: row.mean(name) for name in ("floats_down", "floats_up")}
        lines.append(line | {"epsilon": _last(row, "epsilon")})
    return pd.DataFrame(lines)


def new_clients(setting: Setting) -> pd.DataFrame:
    """Return accuracies of new clients in percent, before and after fine-tuning; one row per method.

    New clients took part in no round.
    """
    return pd.DataFrame(
        {
            "method": curve.label,
            "global model": percent(curve.mean[0]),
            "after 1 epoch": percent(curve.mean[1]) if len(curve.mean) > 1 else NONE,
            f"after {curve.rounds[-1]:.0f} epochs": percent(curve.mean[-1]),
        }
        for curve in setting.new_clients
    )


def cost(setting: Setting) -> pd.DataFrame:
    """Return what the runs of a setting took; one row per method, means over its seeds."""
    private = any("epsilon" in record.rounds for row in setting.rows for record in row.records)
    return pd.DataFrame([
        {
            "method": row.label,
            "rounds": _span([s.rounds for s in row.summaries]),
            "seconds": f"{row.mean('seconds'):,.1f}",
            "minutes": f"{row.mean('seconds') / 60:,.2f}",
            "images/s": _count(row.mean("images_per_second")),
            "floats down": _count(row.mean("floats_down")),
            "floats up": _count(row.mean("floats_up")),
            **({"epsilon": _number(_last(row, "epsilon"))} if private else {}),
        }
        for row in setting.rows
    ])  # fmt: skip


def brief(
    records: Sequence[Record],
    searched: Collection[str] = (),
    partial: Collection[str] = (),
    names: Mapping[str, str] = {},
) -> pd.DataFrame:
    """Return the table that ends a multirun: one line per method and setting. Floats are for one client and round.

    searched, partial: as for `settings`. names: of rows that their sweep's file calls otherwise than by their method,
    by the identity of each trial.
    """
    found = settings(records, searched, partial)
    spans = iter(_spans([row for setting in found for row in setting.rows]))
    lines = []
    for setting in found:
        where = {"setting": setting.name} if len(found) > 1 else {}
        for row in setting.rows:
            heading, span = next(spans)
            sent = row.mean("floats_down") + row.mean("floats_up")
            given = names.get(row.records[0].meta["identity"])
            lines.append({
                **where,
                "method": given + PARTIAL * row.label.endswith(PARTIAL) if given else row.label,
                "seeds": _seeds(row, setting.rows),
                "accuracy %": percent(row.interval.mean),
                heading: span,
                "std over clients": percent(row.mean("std")),
                "rounds": _span([s.rounds for s in row.summaries]),
                "seconds": f"{row.mean('seconds'):,.1f}",
                "images/s": _count(row.mean("images_per_second")),
                "floats sent": _count(sent),
            })  # fmt: skip
    return pd.DataFrame(lines)


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table of text as a pipe table: the first column left, the others right."""
    rows = [map(markdown.inline, line) for line in table.itertuples(index=False)]
    return markdown.table(map(markdown.inline, table.columns), rows)


def differ_in_seeds(rows: Sequence[Row]) -> bool:
    """Return whether rows rest on other seeds than each other."""
    return len({tuple(row.accuracies) for row in rows}) > 1


def which_seeds(row: Row) -> str:
    """Return the seeds on which a row's numbers rest."""
    return ", ".join(map(str, row.accuracies))


def _seeds(row: Row, rows: Sequence[Row]) -> str:
    """Return how many seeds the numbers rest on, and out of how many where some are missing; and which they are where
    not all rows have the same.
    """
    done, lost = len(row.records), len(row.missing)
    which = f" ({which_seeds(row)})" if differ_in_seeds(rows) else ""
    return (f"{done} of {done + lost}" if lost else str(done)) + which


def _best(row: Row) -> str:
    return f"{percent(row.mean('best'))} (round {_span([s.best_round for s in row.summaries])})"


def _spans(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return for each row the heading and the cell of its interval. What it is stands in the heading where it is the
    same for all rows, else in the cells.
    """
    kinds = dict.fromkeys(row.interval.kind for row in rows)
    heading = next(iter(kinds)) if len(kinds) == 1 else "interval"
    named = len(kinds) > 1
    return [
        (heading, " ".join([bounds(ci, percent) or NONE, *([ci.kind] if named else [])]))
        for ci in (row.interval for row in rows)
    ]


def _gain(row: Row, baseline: Row | None) -> Interval | str:
    """Return what a row gains over the baseline, or why there is no such number."""
    if baseline is None or row is baseline:
        return NONE
    pairs = row.gains(baseline)
    seeds = row.accuracies.keys() & baseline.accuracies.keys()
    return gain(pairs) if pairs else "no client in common" if seeds else "no seed in common"


def _signed(ci: Interval, named: bool) -> str:
    return " ".join(filter(None, [points(ci.mean), bounds(ci, points), ci.kind if named else ""]))


def bounds(ci: Interval, shown: Callable[[float], str]) -> str:
    """Return the bounds of an interval; "" where it has none. shown: a number as text."""
    return "" if math.isnan(ci.low) else f"[{shown(ci.low)}, {shown(ci.high)}]"


def points(value: float) -> str:
    """Return a difference of shares in points with two decimals and its sign."""
    return f"{rounded(100 * value, 2):+.2f}"


def _client_gain(row: Row, baseline: Row) -> str:
    """Return the mean over clients of what they gain, and the std over them; both are means over seeds."""
    pairs = [] if row is baseline else row.gains(baseline)
    if not pairs:
        return NONE
    mean, std = (sum(map(take, pairs)) / len(pairs) for take in (np.mean, np.std))
    return f"{points(mean)} ({percent(std)})"


def _reaching(row: Row, goal: float) -> list[float]:
    """Return the first round with an accuracy of at least `goal`, for each seed that has one."""
    return [value for record in row.records if not math.isnan(value := rounds_to(record, goal))]


def _reached(row: Row, goal: float) -> str:
    """Return the mean round over the seeds that reach an accuracy, and how many of them do not."""
    there, seeds = _reaching(row, goal), len(row.records)
    lost = f" ({seeds - len(there)} of {seeds} seeds never)" if len(there) < seeds else ""
    return f"{sum(there) / len(there):g}{lost}" if there else "never"


def _last(row: Row, column: str) -> float:
    """Return a column of the rounds in the last one, averaged over the seeds."""
    return sum(at_last(record, column) for record in row.records) / len(row.records)


def _with_std(mean: float, std: float) -> str:
    return NONE if math.isnan(mean) else f"{percent(mean)} ({percent(std)})"


def _number(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:.2f}"


def _count(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:,.0f}"


def percent(value: float) -> str:
    """Return a share in percent with two decimals; NONE without one."""
    return NONE if math.isnan(value) else f"{rounded(100 * value, 2):.2f}"


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
