"""Log a sweep's own run: params, tags, charts and a description, which MLflow shows before its trials."""

import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from pflsweep.report.markdown import inline
from pflsweep.tracking.lookup import NOTE, allowed_keys
from pflsweep.util.errors import counted

if TYPE_CHECKING:
    from mlflow import MlflowClient

LONGEST = 7000  # characters of a description without links; MLflow keeps 8000
SOME = 100  # params that one call takes


class SweepRun(NamedTuple):
    """Name, params and tags of a sweep's run. Its params are those that all trials share."""

    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]


class GroupResult(NamedTuple):
    """The results of one method in one setting. Accuracies are in [0, 1]."""

    method: str
    setting: str
    chosen: str  # hyperparameters that a search has chosen, such as `lr=0.1 share=0.8`; "" without a search
    search: Sequence[float]  # best accuracy of the search after each of its points that train all rounds
    final: Sequence[float]  # accuracy of each final trial, one a seed
    curve: Mapping[int, float]  # round -> accuracy, mean over seeds
    rounds: int  # of the final trials


def describe_sweep(client: "MlflowClient", run_id: str, sweep: SweepRun) -> None:
    """Log a sweep's params and tags, which are known before training. Existing params stay: MLflow changes none."""
    from mlflow.entities import Param, RunTag

    known = client.get_run(run_id).data
    params = [Param(key, value) for key, value in allowed_keys(sweep.params).items() if key not in known.params]
    tags = [RunTag(key, value) for key, value in sweep.tags.items() if known.tags.get(key) != value]
    for start in range(0, max(len(params), 1), SOME):
        client.log_batch(run_id, params=params[start : start + SOME], tags=tags if start == 0 else [])


def log_results(client: "MlflowClient", run_id: str, results: Sequence[GroupResult]) -> None:
    """Log each method's accuracy by round, its search, and a table of both as the description.

    Links that the description has already stay.
    """
    if not results:
        return
    from mlflow.entities import Metric

    run = client.get_run(run_id)
    known, several = run.data, len({result.setting for result in results}) > 1
    series = allowed_keys(
        {key: found for result in results for key, found in _series(result, several).items() if found}
    )
    if finals := [fmean(result.final) for result in results if result.final]:
        series["summary/accuracy"] = {max(result.rounds for result in results): max(finals)}
    now = round(time.time() * 1000)
    points: list[Metric] = []
    for key, found in series.items():
        # A command that is given again logs nothing twice. As text, since NaN is not equal to itself
        history = client.get_metric_history(run_id, key) if key in known.metrics else []
        logged = {point.step: repr(point.value) for point in sorted(history, key=lambda point: point.timestamp)}
        points += [Metric(key, v, now, step) for step, v in found.items() if logged.get(step) != repr(float(v))]
    for start in range(0, len(points), 1000):
        client.log_batch(run_id, metrics=points[start : start + 1000])
    links = [part for part in known.tags.get(NOTE, "").split("\n\n") if part.startswith(("[", "!["))]
    client.set_tag(run_id, NOTE, "\n\n".join([_description(run.info.run_name, results), *links]))


def _series(result: GroupResult, several: bool) -> dict[str, dict[int, float]]:
    """Return a result's metrics by step. A name is `accuracy/fedala`, with the setting between if there are several."""
    where = f"{result.setting}/{result.method}" if several else result.method
    final = {**result.curve, **({result.rounds: fmean(result.final)} if result.final else {})}
    return {f"accuracy/{where}": final, f"search/{where}": dict(enumerate(result.search, 1))}


def _description(name: str, results: Sequence[GroupResult]) -> str:
    """Return the description: a table of the results in markdown, the best of each setting first."""
    settings = list(dict.fromkeys(result.setting for result in results))
    order = sorted(results, key=lambda result: (settings.index(result.setting), -fmean(result.final or [0.0])))
    searched = any(result.search for result in results)
    heads = ["setting", "method", "accuracy %", *(["chosen hyperparameters", "in the search %"] if searched else [])]
    # MLflow shows no table where the second line has one dash a column
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for result in order:
        found = (
            [inline(result.chosen) or "-", f"{100 * result.search[-1]:.1f}" if result.search else "-"]
            if searched
            else []
        )
        parts = [inline(result.setting), inline(result.method), _percent(result.final), *found]
        lines.append(f"| {' | '.join(parts)} |")
        if sum(map(len, lines)) > LONGEST:
            lines[-1] = "| ... | the others are in `status.json` |" + " |" * (len(heads) - 2)
            break
    says = "`accuracy/`: personalised accuracy on test data, mean over clients and seeds, by round. "
    says += "`search/`: the best value after each point of a search. " if searched else ""
    return f"**{inline(name)}**\n\n" + "\n".join(lines) + f"\n\n{says}`summary/accuracy`: the highest in this table."


def _percent(values: Sequence[float]) -> str:
    """Return the mean in percent and the number of seeds as text; "-" without any."""
    return f"{100 * fmean(values):.1f} ({counted(len(values), 'seed')})" if values else "-"
