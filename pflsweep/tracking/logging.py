"""Log a record to its MLflow run: params and tags, metrics by round, tables and pictures."""

import json
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from pflsweep import __version__
from pflsweep.config.keys import PLUGS, flat
from pflsweep.records.record import VIEWS, Record
from pflsweep.tracking.datasets import dataset_input
from pflsweep.tracking.lookup import NOTE, SOURCE, add_picture, adopt, allowed_key, allowed_keys, cut_name, last_step
from pflsweep.util.timing import rate

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

CHANGING = ("train.rounds",)  # logged as tags, since MLflow never changes a param and more rounds may follow
LONGEST = 6000  # characters of a param or tag that MLflow keeps
MARK = "train/seconds"  # a metric of every round, whose last step shows how far the run has been logged


class Labels(NamedTuple):
    """The name and tags that a sweep gives to one of its trials."""

    name: str
    tags: dict[str, str]  # role (search or final), sweep (its name), setting, reading


def describe(
    client: "MlflowClient", experiment: str, record: Record, parent: str | None, labels: Labels | None = None
) -> str:
    """Find a record's run by its identity, or create it; log its params and tags, set it RUNNING, and return its id.

    Params that the run has already stay. parent: id of the sweep's run. labels: without them the run keeps its name and
    its sweep's tags.
    """
    from mlflow.entities import Param, RunTag

    own, given = _tags(record), labels or labels_alone(record)
    tags = own | given.tags | ({"mlflow.parentRunId": parent} if parent else {})
    run = adopt(client, experiment, "identity", record.meta["identity"])
    if run is None:
        # Created with all its tags in one step, so that the run is found again if the process is killed right after
        run = client.create_run(experiment, milliseconds(record.meta["created"]), tags, cut_name(given.name))
    elif labels is None:
        tags = {key: value for key, value in tags.items() if key not in given.tags or key not in run.data.tags}
    params: list[Param] = []
    for key, value in allowed_keys(flat(record.config)).items():
        text = mlflow_text(value)
        # An earlier session has found the key changed and made it a tag
        changed = key in run.data.tags and key not in (own | given.tags)
        if key in CHANGING or changed or run.data.params.get(key, text) != text:
            tags[key] = text
        elif key not in run.data.params:
            params.append(Param(key, text))
    client.update_run(run.info.run_id, status="RUNNING", name=None if labels is None else cut_name(labels.name))
    # One call takes 100 params
    for start in range(0, max(len(params), 1), 100):
        some = [RunTag(key, value) for key, value in tags.items()] if start == 0 else []
        client.log_batch(run.info.run_id, params=params[start : start + 100], tags=some)
    client.log_inputs(run.info.run_id, [dataset_input(record)])
    return str(run.info.run_id)


def labels_alone(record: Record, role: str = "final") -> Labels:
    """Return the labels of a trial whose sweep is not at hand. One that no sweep has trained is scored on test data,
    like a sweep's final trials. role: final or search.
    """
    meta = record.meta
    name = meta["name"] + (" (search)" if role == "search" else "")
    return Labels(name, {"role": role, "setting": f"{meta['dataset']} {meta['partition']}"})


def relabel(client: "MlflowClient", run: "Run", parent: str | None, labels: Labels) -> None:
    """Move a run of an earlier sweep, or of none, to the sweep that asks for its trial now."""
    from mlflow.entities import RunTag

    tags = labels.tags | ({"mlflow.parentRunId": parent} if parent else {})
    if any(run.data.tags.get(key) != value for key, value in tags.items()):
        client.log_batch(run.info.run_id, tags=[RunTag(key, value) for key, value in tags.items()])
    if run.info.run_name != cut_name(labels.name):
        client.update_run(run.info.run_id, name=cut_name(labels.name))


_TAGS = ("method", "dataset", "partition", "model", *PLUGS, "seed", "identity")


def _tags(record: Record) -> dict[str, str]:
    """Return the tags of a record's run, apart from its labels. One is the description."""
    from pflsweep.report.markdown import code, inline
    from pflsweep.report.terminal import scored_on

    meta = record.meta
    tags = {key: mlflow_text(meta.get(key)) for key in _TAGS}
    folder = record.folder.resolve()
    note = (
        # The folder is not a link, since browsers do not open files from a server's page
        f"**{inline(meta['name'])}**, record folder {code(folder)}\n\n"
        f"`personal/`: clients' own models on {scored_on(record.config)}, mean over clients. `global/`: the "
        "common model; `subset_` and `all_`: on the test data of some, and of all clients. `summary/accuracy` is of "
        "the last round, `summary/best_accuracy` of the round "
        "that is best *on these data*."
    )
    return {
        **SOURCE,
        **tags,
        "commit": mlflow_text(meta.get("commit")),
        "pflsweep": str(meta.get("version") or __version__),
        "record": str(folder),
        NOTE: note,
    }


def metrics_of(row: dict[Any, Any], stamp: int) -> "list[Metric]":
    """Return a round's metrics, which MLflow groups by the part before the slash. MARK is always among them.

    row: of the record. stamp: milliseconds since 1970.
    """
    from mlflow.entities import Metric

    # A record may lack a column that an older or newer pflsweep has
    images, lr, down, up = (row.get(key, math.nan) for key in ("images", "lr", "floats_down", "floats_up"))
    values = {
        MARK: row["seconds"],
        "train/images_per_second": rate(images, row["seconds"]),
        "train/lr": lr,
        "wire/floats_down": down,
        "wire/floats_up": up,
    }
    if not math.isnan(row.get("personal_accuracy", math.nan)):
        values |= {k.replace("_", "/", 1): v for k, v in row.items() if k.startswith(VIEWS)}
        values["train/eval_seconds"] = row["eval_seconds"]
    # Also NaN, as of a loss: without it a number that is none any more would keep its last value
    values |= {f"method/{k.removeprefix('show_')}": v for k, v in row.items() if k.startswith("show_")}
    spent = {f"privacy/{k}": v for k, v in row.items() if k.startswith("epsilon")}
    values |= {k: v for k, v in spent.items() if v is not None and not math.isnan(v)}
    return [Metric(k, _finite(v), stamp, int(row["round"])) for k, v in allowed_keys(values).items()]


def log_summary(client: "MlflowClient", run_id: str, record: Record) -> None:
    """Log the summary metrics of a finished trial at its last round.

    After more rounds they get another step. Where that step is logged already, only values that differ are sent.
    """
    from mlflow.entities import Metric

    from pflsweep.report.quantities import summary

    if not record.evaluated:
        return
    found = summary(record)
    values = {
        "accuracy": found.last,
        "best_accuracy": found.best,
        "best_round": found.best_round,
        "std_over_clients": found.std,
        "worst10": found.worst10,
        "images_per_second": found.images_per_second,
        "floats_per_client_and_round": found.floats_down + found.floats_up,
        "seconds": found.seconds,
    }
    metrics = {f"summary/{name}": value for name, value in values.items()}
    metrics |= {f"partition/{name}": value for name, value in record.meta.get("statistics", {}).items()}
    metrics |= {f"new/{name}": value for name, value in _new_client_metrics(record).items()}
    values = {name: _finite(value) for name, value in metrics.items()}
    if last_step(client, run_id, "summary/accuracy") >= record.done:
        known = client.get_run(run_id).data.metrics
        values = {name: value for name, value in values.items() if repr(known.get(name)) != repr(value)}
    stamp = stamps(record)[-1]
    client.log_batch(run_id, [Metric(name, value, stamp, record.done) for name, value in values.items()])


def log_amended(client: "MlflowClient", run_id: str, record: Record) -> None:
    """Log the scores of the last round, where the round was logged without: the trial was to be longer at first."""
    row = record.last_row
    if record.done in record.evaluated and last_step(client, run_id, "personal/accuracy") < record.done:
        scores = tuple(view.replace("_", "/") for view in VIEWS)
        metrics = metrics_of(row, stamps(record)[-1])
        client.log_batch(run_id, [metric for metric in metrics if metric.key.startswith(scores)])


def _new_client_metrics(record: Record) -> dict[str, float]:
    """Return the mean accuracy of new clients before and after fine-tuning; {} without new clients."""
    from pflsweep.report.quantities import new_clients_accuracy

    curve = new_clients_accuracy(record)
    return {"accuracy_before": float(curve.iloc[0]), "accuracy_after": float(curve.iloc[-1])} if len(curve) else {}


def log_artifacts(client: "MlflowClient", run_id: str, record: Record) -> None:
    """Log config, per-client table and pictures. Each replaces the one of an earlier session."""
    from pflsweep.report import figures
    from pflsweep.report.quantities import record_curves

    client.log_text(run_id, record.path("config.yaml").read_bytes().decode(), "config.yaml")
    name = record.meta["name"]
    client.log_figure(run_id, figures.labels(record.partition, f"Training labels, {name}"), "figures/labels.png")
    if record.evaluated:
        log_table(client, run_id, _client_table(record), "clients.json")
        client.log_figure(run_id, figures.accuracy(record_curves(record), name), "figures/accuracy.png")
    for key, matrix in record.matrices.items():
        if matrix.ndim == 2:
            client.log_figure(run_id, figures.heatmap(matrix, key), f"figures/{allowed_key(key)}.png")


def _client_table(record: Record) -> pd.DataFrame:
    """Return one row per client: its data, and its models' scores in the last evaluated round."""
    from pflsweep.report.clients import holdings
    from pflsweep.report.quantities import view_in_words

    held = holdings(record.partition)
    last = record.clients[record.clients["round"] == record.clients["round"].max()]
    # Older records have no column `target`, since they were scored on own rows alone
    last = last.assign(target=last.get("target", "own"))
    columns = []
    for (view, target), table in last.set_index("client").groupby(["view", "target"], sort=False):
        name = view if target == "own" else view_in_words(f"{view}_{target}")
        columns.append((table["correct"] / table["n"]).round(4).rename(f"{name} accuracy"))
        columns.append(table["loss"].astype(float).round(4).rename(f"{name} loss"))
    return pd.concat([*columns, held], axis=1).sort_index().reset_index(names="client")


def log_comparison(client: "MlflowClient", parent: str, records: Sequence[Record], failed: Sequence[str]) -> None:
    """Log a sweep's results to its run, `parent`: failed trials, a table of the others, and their report with figures.

    The description shows the first setting's figure of accuracy by round. failed: a line for each failed trial.
    """
    import tempfile

    from pflsweep.records.searches import find_searches
    from pflsweep.records.select import Chosen
    from pflsweep.report import page, tables

    client.set_tag(parent, "failed", mlflow_text("; ".join(failed) or "none"))
    if not records:
        return
    searches = find_searches(records)
    client.log_inputs(parent, [dataset_input(record) for record in records])
    log_table(client, parent, tables.brief(records, searches.keys, searches.partial), "comparison.json")
    with tempfile.TemporaryDirectory() as folder:
        page.write(Chosen(list(records), list(failed), searches), Path(folder), None)
        client.log_artifacts(parent, folder, "comparison")
        pictures = sorted(Path(folder).glob("accuracy*.svg"))
        # MLflow keeps 8,000 characters of a description
        for picture in pictures[:1]:
            of = f" in the first of {len(pictures)} settings (`comparison/runs.html` has all)" * (len(pictures) > 1)
            add_picture(client, parent, f"comparison/{picture.name}", f"Accuracy by round{of}")


def log_table(client: "MlflowClient", run_id: str, table: pd.DataFrame, file: str) -> None:
    """Log a table that MLflow's pages show. MLflow's own log_table would append to an earlier version."""
    client.log_text(run_id, table.to_json(orient="split", index=False), file)
    tables = json.loads(client.get_run(run_id).data.tags.get("mlflow.loggedArtifacts", "[]"))
    if (entry := {"path": file, "type": "table"}) not in tables:
        client.set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([*tables, entry]))


def stamps(record: Record) -> list[int]:
    """Return when each round ended, in milliseconds since 1970.

    The times are computed from the record alone: the beginning of the session plus the seconds of its rounds. So a
    metric that is sent twice has the same key, and MLflow drops the second.
    """
    rounds = record.rounds
    if not len(rounds):
        return []
    took = (rounds["seconds"] + rounds["eval_seconds"].fillna(0)).to_numpy(dtype=float)
    ended = np.zeros(len(rounds))
    sessions = [
        (1, record.meta["created"]),
        *((each["from"], each["begun"]) for each in record.meta.get("sessions", [])),
    ]
    # A session may begin at a checkpoint before the last round of the one before, which it then overrides
    for first, begun in sessions:
        own = (rounds["round"] >= first).to_numpy()
        ended[own] = milliseconds(begun) + took[own].cumsum() * 1000
    return [int(stamp) for stamp in ended]


def milliseconds(moment: str) -> int:
    """Convert a time in ISO 8601 to milliseconds since 1970."""
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def _finite(value: float | None) -> float:
    """Return infinity as NaN: MLflow would store it as 1.8e308, which ruins a chart's axis. None becomes NaN, too."""
    return float(value) if value is not None and math.isfinite(value) else math.nan


def mlflow_text(value: Any) -> str:
    """Return a config value as text, cut to the length that MLflow keeps."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 30]}... (whole in config.yaml)"
