"""A comparison of runs as CSV and LaTeX."""

import math
from collections.abc import Sequence

import pandas as pd

from pflsweep.report import tables
from pflsweep.report.compare import Row, Setting
from pflsweep.report.latex import tabular
from pflsweep.report.stats import gain, mean_std, standard_error
from pflsweep.report.terminal import scored_on

EMPTY = "--"
RULE = (
    "Bold: the best mean of a column, only where it is above the second by more than the standard error of their "
    "difference, sqrt(s1^2 / n1 + s2^2 / n2), s and n being the two rows' standard deviation and number of seeds; "
    "nothing is bold where it is not, or where one of the two has a single seed."
)


def as_csv(settings: Sequence[Setting], baseline: str | None, goal: float | None = None) -> str:
    """Return all numbers of a comparison, unrounded: one line per setting and method. Unknown numbers are empty.

    Accuracies and gains are shares, as in `pflsweep.load`, and not percent. baseline, goal: as for `page.write`.
    """
    found = [tables.numbers(setting, setting.baseline(baseline), goal) for setting in settings]
    table = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    return str(table.to_csv(index=False, lineterminator="\n"))


def as_latex(settings: Sequence[Setting], baseline: str | None) -> str:
    """Return a tabular in the style of booktabs, in percent: a row per method, and for each setting two columns.

    They are the mean accuracy with its std over seeds, and the gain over the baseline. Comments before it say what a
    caption has to.
    """
    bases = [setting.baseline(baseline) for setting in settings]
    labels = list(dict.fromkeys(row.label for setting in settings for row in setting.rows))
    heads = [["Accuracy", f"Gain over {base.label}" if base else "Gain"] for base in bases]
    # A single setting needs no name
    groups = [setting.name if len(settings) > 1 else "" for setting in settings for _ in range(2)]
    columns = [_column(setting, base) for setting, base in zip(settings, bases, strict=True)]
    rows = [(label, [c for column in columns for c in column.get(label, (EMPTY, EMPTY))]) for label in labels]
    return tabular(_caption(settings, bases), groups, ["Method", *(head for pair in heads for head in pair)], rows)


def _caption(settings: Sequence[Setting], bases: Sequence[Row | None]) -> list[str]:
    """Return what a reader of the table has to know, ready for a caption."""
    rows = [row for setting in settings for row in setting.rows]
    counts = sorted({len(row.records) for row in rows}) or [0]
    seeds = "one seed" if counts == [1] else f"{' to '.join(map(str, (counts[0], counts[-1])[: len(counts)]))} seeds"
    uneven = [_seeds(setting, len(settings) > 1) for setting in settings] if tables.differ_in_seeds(rows) else []
    judged = " or ".join(dict.fromkeys(scored_on(record.config) for row in rows for record in row.records))
    names = " or ".join(dict.fromkeys(base.label for base in bases if base))
    over = r"$\pm$: the standard deviation over seeds (n - 1 in the denominator)"
    deviation = over if counts[-1] > 1 else r"a single seed has no $\pm$"
    return [
        f"Caption: Mean accuracy (\\%) of clients' personalised models on {judged} after the last round, each client "
        f"counting the same; {seeds}; {deviation}. Gain: mean difference to {names} in points, client by client "
        "under the same seed.",
        *([f"Seeds of each row: {'. '.join(uneven)}."] if uneven else []),
        RULE,
        r"Needs \usepackage{booktabs}.",
    ]


def _seeds(setting: Setting, named: bool) -> str:
    """Return the seeds of a setting's rows, of each where they differ. named: with the setting's name."""
    seeds = {row.label: tables.which_seeds(row) for row in setting.rows}
    apart = tables.differ_in_seeds(setting.rows)
    shown = "; ".join(f"{label} {which}" for label, which in seeds.items()) if apart else next(iter(seeds.values()))
    return f"{setting.name}: {shown}" if named else shown


def _column(setting: Setting, base: Row | None) -> dict[str, tuple[str, str]]:
    """Return the two cells of each row of a setting, by its label."""
    bold = _clear_best(setting.rows)
    return {row.label: (_accuracy(row, row is bold), _gain(row, base)) for row in setting.rows}


def _accuracy(row: Row, bold: bool) -> str:
    mean, std = mean_std([each.last for each in row.summaries])
    if math.isnan(mean):
        return EMPTY
    shown = tables.percent(mean) + ("" if math.isnan(std) else rf" \pm {tables.percent(std)}")
    return rf"$\mathbf{{{shown}}}$" if bold else f"${shown}$"


def _gain(row: Row, base: Row | None) -> str:
    pairs = row.gains(base) if base and row is not base else []
    return f"${tables.points(gain(pairs).mean)}$" if pairs else EMPTY


def _clear_best(rows: Sequence[Row]) -> Row | None:
    """Return the row that is bold by RULE; None if there is none."""
    every = [(row, *mean_std([each.last for each in row.summaries])) for row in rows]
    known = [each for each in every if not math.isnan(each[1])]  # a row may have no accuracy
    if len(known) < 2:
        return None
    (first, mean, std), (second, next_mean, next_std) = sorted(known, key=lambda each: -each[1])[:2]
    error = standard_error(std, len(first.records), next_std, len(second.records))
    # The std of one seed is NaN, so that the comparison is false
    return first if mean - next_mean > error else None
