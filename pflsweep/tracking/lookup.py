"""Find the runs of trials and sweeps in an MLflow store, add to their descriptions, and make names that it allows."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from pflsweep import __version__

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

TRAINING = "?workflowType=machine_learning"  # end of an address; without it MLflow shows a page for language models
SOURCE = {"mlflow.source.name": "pflsweep", "mlflow.source.type": "LOCAL"}
NAME = 250  # characters of a run's name
KEY = 250  # characters of the name of a metric or param
NOTE = "mlflow.note.content"  # a run's description, in markdown
T = TypeVar("T")
DUPLICATE = "pflsweep.duplicate"  # tag of a run that was ended because another one is of the same trial or sweep


def find(client: "MlflowClient", experiment: str, tag: str, value: str) -> "Run | None":
    """Return the first run with a tag; None without any."""
    return next(iter(_tagged(client, experiment, tag, value)), None)


def adopt(client: "MlflowClient", experiment: str, tag: str, value: str) -> "Run | None":
    """Return the first run with a tag; None without any. Others, which two processes created at once, are ended."""
    found = _tagged(client, experiment, tag, value)
    for other in found[1:]:
        if DUPLICATE not in other.data.tags:
            client.set_terminated(other.info.run_id, "KILLED")
            client.set_tag(other.info.run_id, DUPLICATE, f"of run {found[0].info.run_id}, which has the same {tag}")
    return found[0] if found else None


def _tagged(client: "MlflowClient", experiment: str, tag: str, value: str) -> "list[Run]":
    """Return the runs with a tag, the first one started first."""
    return list(client.search_runs([experiment], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time"]))


def all_runs(client: "MlflowClient", experiment: str, condition: str) -> "Iterator[Run]":
    """Yield the runs that meet a condition in MLflow's language, the first one started first."""
    token = None
    while True:
        some = client.search_runs(
            [experiment], condition, max_results=1000, order_by=["attributes.start_time"], page_token=token
        )
        yield from some
        token = some.token
        if not token:
            return


def find_sweep(client: "MlflowClient", experiment: str, sweep: str) -> "Run | None":
    """Return the run of a sweep; None without any. sweep: the id of its plan."""
    return find(client, experiment, "pflsweep.sweep", sweep)


def ensure_sweep(client: "MlflowClient", experiment: str, sweep: str | None, name: str | None = None) -> str | None:
    """Return the id of a sweep's run, which is created where it is missing. Return None for a trial without a sweep."""
    if not sweep:
        return None
    run = adopt(client, experiment, "pflsweep.sweep", sweep)
    tags = {**SOURCE, "pflsweep.sweep": sweep, "pflsweep": __version__}
    run = run or client.create_run(experiment, run_name=cut_name(name or default_name(sweep)), tags=tags)
    return run.info.run_id


def default_name(sweep: str) -> str:
    """Return the name of a sweep's run that was created by one of its trials, which does not know the sweep's name."""
    return f"sweep-{sweep}"


def cut_name(name: str) -> str:
    """Cut a run's name to the length that PostgreSQL allows."""
    return name if len(name) <= NAME else f"{name[: NAME - 3]}..."


def allowed_key(text: str) -> str:
    """Return a text as the name of a metric, param or file that MLflow allows."""
    parts = re.sub(r"[^/\w.\- :]", "_", text)[:KEY].split("/")
    # As in paths, MLflow refuses empty parts, `.` and `..`
    return "/".join(re.sub(r"^\.+", "_", part) for part in parts if part) or "_"


def allowed_keys(values: Mapping[str, T]) -> dict[str, T]:
    """Return values by names that MLflow allows. Where two names become the same, the later one ends with _2."""
    allowed: dict[str, T] = {}
    for text, value in values.items():
        key, count = allowed_key(text), 1
        while key in allowed:
            count += 1
            ending = f"_{count}"
            key = allowed_key(text)[: KEY - len(ending)] + ending
        allowed[key] = value
    return allowed


def last_step(client: "MlflowClient", run_id: str, metric: str) -> int:
    """Return the last step of a run's metric; 0 without any."""
    return max((point.step for point in client.get_metric_history(run_id, metric)), default=0)


def route(experiment: str, run_id: str, file: str = "") -> str:
    """Return the address of a run, or of one of its files, in MLflow's pages, without the server."""
    return f"#/experiments/{experiment}/runs/{run_id}" + (f"/artifacts/{file}" if file else "") + TRAINING


def add_link(client: "MlflowClient", experiment: str, run_id: str, file: str, words: str) -> None:
    """Add a link to one of a run's files to its description, unless it is there. words: the link's text."""
    _add_line(client, run_id, f"[{words}]({route(experiment, run_id, file)})")


def add_picture(client: "MlflowClient", run_id: str, file: str, words: str) -> None:
    """Add a picture, one of a run's files, to its description, unless it is there. words: the picture's text."""
    _add_line(client, run_id, f"![{words}](get-artifact?path={quote(file, safe='')}&run_uuid={run_id})")


def _add_line(client: "MlflowClient", run_id: str, line: str) -> None:
    before = client.get_run(run_id).data.tags.get(NOTE, "")
    if line not in before:
        client.set_tag(run_id, NOTE, f"{before}\n\n{line}".strip())
