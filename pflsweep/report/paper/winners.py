"""The hyperparameters that the searches of a table chose."""

from collections import defaultdict
from typing import Any

from pflsweep.config.keys import as_override
from pflsweep.records.edges import describe_edge, describe_equal
from pflsweep.report.markdown import code, inline
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.formats import in_order
from pflsweep.report.paper.store import CellTrials


def lines(comparison: Comparison) -> list[str]:
    """Return the hyperparameters that searches chose, one line per method."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for trials in comparison.trials_by_cell:
        if trials.winner:
            chosen = ", ".join(_chosen(trials, key, value) for key, value in trials.winner.items())
            value, best = trials.winner_value, ""
            if value is not None:
                on = f"{inline(trials.split)} data{_at_scale(trials)}{_other_view(comparison, trials)}"
                best = f" ({100 * value:.2f}% on {on}){describe_equal(trials.group)}"
            found[inline(trials.method)][f"{inline(trials.setting)}: {chosen}{best}"] = None
    return [f"{method}: {'; '.join(lines)}" for method, lines in found.items()]


def _chosen(trials: CellTrials, key: str, value: Any) -> str:
    """Return a hyperparameter of the winner, with all its values for which the search has an accuracy."""
    tried = {as_override(point[key]): point[key] for point, _ in trials.tried if key in point}
    ordered = map(as_override, sorted(tried.values(), key=in_order))
    notes = [f"of {', '.join(map(inline, ordered))}"] if len(tried) > 1 else []
    notes += [describe_edge(trials.group, key, trials.edges[key])] if key in trials.edges else []
    notes_of = f" ({'; '.join(notes)})" if notes else ""
    return code(f"{key.rpartition('.')[2]}={as_override(value)}") + notes_of


def _at_scale(trials: CellTrials) -> str:
    """Return at which scale a search has chosen, where it is another than that of the final trials."""
    return f" at scale {inline(trials.searched_at)}" if trials.searched_at else ""


def _other_view(comparison: Comparison, trials: CellTrials) -> str:
    """Return by whose accuracy a search has chosen, where the table shows the accuracy of other models."""
    view = comparison.layout.views.get(trials.method, "personal")
    other = trials.view not in ("", view)  # older ledgers do not say it
    return f" by {code(f'tune.view={trials.view}')}, where the table shows the view {view}" if other else ""
