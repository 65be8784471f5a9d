"""What MLflow shows of a sweep at its top level, and how its trials can be told apart, in a real store."""

import json
import math
import shlex
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pflsweep.commands import ui
from pflsweep.commands.main import main
from pflsweep.config.options import Tracking
from pflsweep.sweep.search_space import point_text
from pflsweep.tracking import run as tracking_run
from pflsweep.tracking import sweep_run
from pflsweep.tracking.logging import Labels, metrics_of
from pflsweep.tracking.lookup import NOTE
from pflsweep.tracking.overview import GroupResult, SweepRun
from pflsweep.tracking.store import runs_address
from tests.report.records import finished
from tests.tracking.test_run import SMALL, Store, empty, store  # noqa: F401 (fixtures)

# Warnings of MLflow and SQLAlchemy
pytestmark = pytest.mark.filterwarnings("ignore")
FINAL = {"role": "final", "sweep": "a table", "setting": "digits", "reading": "paper"}
POINT = Labels("fedavg lr=0.1 seed=0 (search)", {**FINAL, "role": "search"})
WINNER = Labels("fedavg lr=0.1 seed=0", FINAL)


def cell(method: str, final: list[float], **changes: object) -> GroupResult:
    curve = {1: final[0] / 2, 3: sum(final) / len(final)} if final else {}
    return GroupResult(method, "digits", "lr=0.1", [0.2, 0.4], final, curve, 3)._replace(**changes)


def parent_of(store: Store):  # noqa: F811
    (parent,) = (run for run in store.runs() if "pflsweep.sweep" in run.data.tags)
    return parent


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"train.lr": 0.1, "algorithm.share": 0.8}, "lr=0.1 share=0.8"),
        ({"train.lr": 0.1, "algorithm.lr": 1.0}, "train.lr=0.1 algorithm.lr=1"),
        ({"algorithm.mu": 0.0012345678, "algorithm.layers": 2}, "mu=0.001235 layers=2"),
        ({}, ""),
    ],
)
def test_a_point_as_a_person_says_it(point: dict, words: str) -> None:
    assert point_text(point) == words


@pytest.mark.slow
def test_trials_of_a_search_and_its_winner_have_names_and_roles_of_their_own(store: Store) -> None:  # noqa: F811
    words = ["-m", *SMALL, "algorithm=fedavg,fedprox", "tune=random", "tune.points=3", "seed=0,1"]
    # The second time nothing is left to train, and nothing is logged twice
    for _ in range(2):
        assert main(words) == 0
    parent = parent_of(store)
    trials = [run for run in store.runs() if run.info.run_id != parent.info.run_id]
    names = [run.info.run_name for run in trials]
    assert len({*names}) == len(names) == 2 * (3 + 2)
    points = {run.info.run_name for run in trials if run.data.tags["role"] == "search"}
    assert all(name.endswith("seed=0 (search)") and "lr=" in name for name in points)
    assert len(points) == 6
    finals = {run.info.run_name: run for run in trials if run.data.tags["role"] == "final"}
    for method in ("fedavg", "fedprox"):
        (first, second) = sorted(name for name in finals if name.startswith(f"{method} "))
        assert (first[-6:], second[-6:]) == ("seed=0", "seed=1")
        assert f"{first} (search)" in points, "the winner is one of the points"
    tags = finals[first].data.tags
    assert (tags["setting"], tags["reading"]) == ("digits dirichlet", "paper")
    assert tags["sweep"] == parent.data.tags["sweep"] == parent.info.run_name
    params, metrics = parent.data.params, parent.data.metrics
    assert (params["train.rounds"], params["seeds"], params["tune.sampler"]) == ("2", "[0, 1]", "random")
    assert "train.lr" not in params, "what was searched is not a param of all"
    assert (parent.data.tags["method"], parent.data.tags["dataset"]) == ("fedavg, fedprox", "digits")
    assert parent.data.tags["command"] == shlex.join(["pflsweep", *words])
    means = {
        method: sum(finals[name].data.metrics["summary/accuracy"] for name in finals if name.startswith(f"{method} "))
        / 2
        for method in ("fedavg", "fedprox")
    }
    for method, mean in means.items():
        assert metrics[f"accuracy/{method}"] == pytest.approx(mean)
        assert store.steps(parent, f"accuracy/{method}") == [1, 2]
        assert store.steps(parent, f"search/{method}") == [1, 2, 3]
    assert metrics["summary/accuracy"] == pytest.approx(max(means.values()))
    note = parent.data.tags[NOTE]
    chosen = first.removeprefix("fedprox ").removesuffix(" seed=0")
    assert f"| digits dirichlet | fedprox | {100 * means['fedprox']:.1f} (2 seeds) | {chosen} |" in note
    assert note.count("[Comparison of its runs]") == note.count("![Accuracy by round]") == 1


def test_a_sweeps_run_shows_each_method_and_says_nothing_twice(store: Store, tmp_path: Path) -> None:  # noqa: F811
    record = finished(tmp_path / "runs", "fedavg", [2, 4, 6, 8])
    about = SweepRun("a table", {"train.rounds": "3"}, {"role": "sweep", "method": "fedavg, local"})
    cells = [cell("local", [0.2]), cell("fedavg", [0.4, 0.6])]
    for _ in range(2):
        sweep_run.open_sweep(record.tracking, "abc", about)
        sweep_run.finish_sweep(record.tracking, "abc", [record], [], {}, {}, cells)
    parent = parent_of(store)
    assert parent.data.params == {"train.rounds": "3"}
    assert (parent.data.tags["role"], parent.data.tags["method"]) == ("sweep", "fedavg, local")
    assert parent.data.metrics == pytest.approx({
        "accuracy/local": 0.2, "accuracy/fedavg": 0.5, "search/local": 0.4, "search/fedavg": 0.4,
        "summary/accuracy": 0.5,
    })  # fmt: skip
    assert store.steps(parent, "accuracy/fedavg") == [1, 3]
    rows = [line for line in parent.data.tags[NOTE].splitlines() if line.startswith("| digits")]
    assert rows == [
        "| digits | fedavg | 50.0 (2 seeds) | lr=0.1 | 40.0 |",
        "| digits | local | 20.0 (1 seed) | lr=0.1 | 40.0 |",
    ]
    sweep_run.finish_sweep(record.tracking, "abc", [record], [], {}, {}, [cell("local", [0.1])])
    assert parent_of(store).data.metrics["accuracy/local"] == 0.1, "another point has won since"


def test_a_series_that_goes_on_gets_its_new_points_and_those_that_changed(store: Store, tmp_path: Path) -> None:  # noqa: F811
    options, nan = Tracking.of(store.options), float("nan")
    found = []
    for search, final in (([0.1, 0.5], nan), ([0.1, 0.5, 0.5], nan), ([0.1, 0.5, 0.5, 0.5], nan), ([0.1, 0.4], 0.3)):
        cells = [cell("local", [final], search=search, curve={1: 0.2})]
        sweep_run.finish_sweep(options, "abc", [], [], {}, {}, cells)
        parent = parent_of(store)
        found.append([store.steps(parent, f"{name}/local") for name in ("search", "accuracy")])
    assert found == [
        [[1, 2], [1, 3]], [[1, 2, 3], [1, 3]], [[1, 2, 3, 4], [1, 3]], [[1, 2, 2, 3, 4], [1, 3, 3]],
    ]  # fmt: skip


def test_settings_are_told_apart_and_names_are_those_that_mlflow_takes(store: Store, tmp_path: Path) -> None:  # noqa: F811
    record = finished(tmp_path / "runs", "fedavg", [2, 4, 6, 8])
    cells = [
        cell("fedavg+ala", [0.4], setting="train.lr=0.1 model.hidden=[8]", search=[], chosen="", curve={}),
        cell("local", [], setting="cifar10/clients25"),
        *(cell(f"m{k}", [0.1], setting="x" * 90) for k in range(100)),
    ]
    sweep_run.finish_sweep(record.tracking, "abc", [], [], {}, {}, cells)
    parent = parent_of(store)
    assert parent.data.metrics["accuracy/train.lr_0.1 model.hidden__8_/fedavg_ala"] == 0.4
    assert "search/cifar10/clients25/local" in parent.data.metrics
    assert "accuracy/cifar10/clients25/local" not in parent.data.metrics, "its final trials have no result"
    assert "the others are in `status.json`" in parent.data.tags[NOTE]
    assert parent.data.tags[NOTE].endswith("`summary/accuracy`: the highest in this table."), "nothing is cut off"


def test_params_and_charts_of_a_sweep_do_not_replace_each_other_under_allowed_names(store: Store) -> None:  # noqa: F811
    options = Tracking.of(store.options)
    sweep_run.open_sweep(options, "abc", SweepRun("a table", {"names.a+b": "1", "names.a*b": "2"}, {}))
    cells = [cell("local", [value], setting=name, search=[]) for name, value in (("x=[1]", 0.2), ("x=(1)", 0.4))]
    sweep_run.finish_sweep(options, "abc", [], [], {}, {}, cells)
    parent = parent_of(store)
    assert parent.data.params == {"names.a_b": "1", "names.a_b_2": "2"}
    assert parent.data.metrics["accuracy/x__1_/local"] == 0.2
    assert parent.data.metrics["accuracy/x__1_/local_2"] == 0.4


def test_a_trial_of_another_sweep_goes_to_the_one_that_asks_for_it(store: Store, tmp_path: Path, monkeypatch) -> None:  # noqa: F811
    record = finished(tmp_path / "runs", "fedavg", [2, 4, 6, 8])
    tracking_run.send(record.tracking, record)
    (run,) = store.runs()
    assert (run.info.run_name, run.data.tags["role"]) == ("fedavg-digits-dirichlet-0", "final")
    assert "sweep" not in run.data.tags
    monkeypatch.setenv(tracking_run.SWEEP, "abc")
    # With tune.split=test the winner's final trial is the trial of its point
    for labels in (POINT, WINNER):
        tracking_run.send(record.tracking, record, labels)
        parent = parent_of(store)
        (run,) = (run for run in store.runs() if "identity" in run.data.tags)
        assert (run.info.run_name, run.info.status) == (labels.name, "FINISHED")
        assert {key: run.data.tags[key] for key in FINAL} == labels.tags
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    monkeypatch.delenv(tracking_run.SWEEP)
    # More rounds, without a sweep
    with tracking_run.open_run(record.tracking, record) as tracker:
        tracker.finish(record, "finished")
    (run,) = (run for run in store.runs() if "identity" in run.data.tags)
    assert (run.info.run_name, run.data.tags["sweep"]) == (WINNER.name, "a table")
    assert store.steps(run, "train/seconds") == [1, 2, 3]


def test_a_trials_description_has_no_link_that_a_browser_would_not_open(store: Store, tmp_path: Path) -> None:  # noqa: F811
    record = finished(tmp_path / "runs", "fedavg", [2, 4, 6, 8])
    tracking_run.send(record.tracking, record)
    (run,) = store.runs()
    assert "file:" not in run.data.tags[NOTE]
    assert f"`{record.folder.resolve()}`" in run.data.tags[NOTE]


def test_the_data_of_a_trial_is_mlflows_dataset(store: Store, tmp_path: Path) -> None:  # noqa: F811
    import mlflow

    record = finished(tmp_path / "runs", "fedavg", [2, 4, 6, 8])
    for _ in range(2):
        tracking_run.send(record.tracking, record)
        sweep_run.finish_sweep(record.tracking, "abc", [record], [], {}, {})
    for run in store.runs():
        (used,) = run.inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == ("digits", "abc")
        assert json.loads(used.dataset.schema)["mlflow_tensorspec"]
        tags = {tag.key: tag.value for tag in used.tags}
        assert tags == {
            "mlflow.data.context": "training", "partition": "dirichlet", "clients": "4",
            "train": "120", "validation": "0", "test": "30",
        }  # fmt: skip
        assert mlflow.data.get_source(used).to_dict()["tags"]["mlflow.source.name"] == "pflsweep dataset=digits"


def test_an_older_store_gets_its_description_and_its_list_of_runs(store: Store) -> None:  # noqa: F811
    made = store.client.create_experiment("pflsweep", tags={NOTE: "mine"})
    address = runs_address(Tracking.of(store.options))
    assert address.startswith(f"#/experiments/{made}/runs?workflowType=machine_learning&viewStateShareKey=")
    tags = store.client.get_experiment(made).tags
    assert tags[NOTE] == "mine", "what a person has written stays"
    view = json.loads(tags[f"mlflow.sharedViewState.{address.rpartition('=')[2]}"])
    assert view["selectedColumns"][:3] == ["metrics.`summary/accuracy`", "tags.`method`", "tags.`dataset`"]
    assert runs_address(Tracking.of({**store.options, "experiment": "none"})) == address
    assert store.client.get_experiment_by_name("none") is None


def test_a_store_without_runs_is_listed_as_it_is(store: Store) -> None:  # noqa: F811
    unused = store.client.get_experiment_by_name("unused")
    store.client.delete_experiment(unused.experiment_id)
    assert runs_address(Tracking.of(store.options)) == "#/experiments?workflowType=machine_learning"


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_of_ui_can_be_opened(
    host: str,
    shown: str,
    store: Store,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announced: list[str] = []
    monkeypatch.setattr(ui, "_announce", lambda address, refused: announced.append(address))
    monkeypatch.setattr(ui, "_check_port", lambda *_: None)  # a machine may have no IPv6
    monkeypatch.setattr(ui, "_become_mlflow", lambda *_: None)
    ui.main(["--uri", store.options["uri"], "--host", host, "--no-browser"])
    assert announced == [f"http://{shown}:5000/{runs_address(Tracking.of({'uri': store.options['uri']}))}"]


@pytest.mark.parametrize("refused", [False, True])
def test_ui_prints_and_opens_its_address_once_the_server_answers(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # As MLflow refuses a host's name that it was not started with
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    started: list[subprocess.Popen] = []
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)))
    script = tmp_path / "browser.py"
    script.write_text(f"import sys; print('noise'); open({str(tmp_path / 'opened')!r}, 'w').write(sys.argv[1])")
    monkeypatch.setenv("BROWSER", f"{sys.executable} {script} %s")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/#/experiments/1/runs"
    ui._announce(address, refused)
    time.sleep(1)
    assert started[0].poll() is None
    assert capfd.readouterr().out == ""
    with HTTPServer(("127.0.0.1", port), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert started[0].wait(60) == 0
        server.shutdown()
    assert capfd.readouterr().out == f"MLflow answers: {address}\n"
    assert refused is not (tmp_path / "opened").exists()
    assert refused or (tmp_path / "opened").read_text() == address


def test_what_waits_for_the_server_of_ui_ends_with_it(tmp_path: Path) -> None:
    code = "import sys; from pflsweep.commands import ui; ui._announce('http://127.0.0.1:9/', True)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    # The output ends when no process can write to it any more
    assert ended.stdout == ""


@pytest.mark.skipif(sys.platform != "linux", reason="others always have a display")
def test_ui_opens_nothing_without_a_display(monkeypatch) -> None:
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not ui._opens(refused=False)


def test_an_accuracy_of_zero_is_a_sweeps_summary_too(store: Store, tmp_path: Path) -> None:  # noqa: F811
    record = finished(tmp_path / "runs", "fedavg", [0, 0, 0])
    sweep_run.open_sweep(record.tracking, "abc", SweepRun("a table", {}, {"role": "sweep"}))
    sweep_run.finish_sweep(record.tracking, "abc", [record], [], {}, {}, [cell("fedavg", [0.0, 0.0])])
    assert parent_of(store).data.metrics["summary/accuracy"] == 0


def test_a_round_without_a_column_is_sent_without_that_number() -> None:
    """As a record of another version of pflsweep has it."""
    sent = {each.key: each.value for each in metrics_of({"round": 3, "seconds": 2.0}, 0)}
    assert sent.pop("train/seconds") == 2.0
    assert {"train/lr", "wire/floats_down"} <= sent.keys()
    assert all(math.isnan(value) for value in sent.values())
