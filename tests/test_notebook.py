"""pflsweep in Python: the functions that a notebook calls, and the notebook in examples/."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pflsweep
from pflsweep.config.overrides import words_of
from pflsweep.util.errors import UserError
from tests.report import records
from tools.notebook import executed

EXAMPLE = Path(__file__).parent.parent / "examples" / "compare.ipynb"
SMALL: dict[str, Any] = {"partition__clients": 6, "model__hidden": [16], "train__epochs": 1, "train__rounds": 2}
SWEPT = {**SMALL, "model__hidden": [[16]]}

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("given", "keys", "words"),
    [
        ("algorithm=pgfed  train.rounds=5", {}, ["algorithm=pgfed", "train.rounds=5"]),
        ("paths.runs='a place'", {}, ["paths.runs=a place"]),
        (["algorithm=pgfed"], {"seed": 1}, ["algorithm=pgfed", "seed=1"]),
        (None, {"train__lr": 1e-3, "tracking__uri": None}, ["train.lr=0.001", "tracking.uri=null"]),
        (None, {"setting": "fedala", "checkpoint__keep": True}, ["+setting=fedala", "checkpoint.keep=true"]),
        (None, {"model__hidden": [16, 8], "seed": np.int64(3)}, ["model.hidden=[16,8]", "seed=3"]),
        (None, {"paths__runs": Path("a/b"), "data__root": "a,b='c'"}, ["paths.runs=a/b", r"data.root='a,b=\'c\''"]),
    ],
)
def test_overrides_are_a_text_a_list_or_keywords(given: Any, keys: dict[str, Any], words: list[str]) -> None:
    assert words_of(given, keys) == words


def test_in_a_sweep_a_list_has_several_values() -> None:
    keys = {"algorithm": ["local", "pgfed"], "seed": range(2), "train__lr": np.array([0.1, 0.01])}
    assert words_of(None, keys, several=True) == ["algorithm=local,pgfed", "seed=0,1", "train.lr=0.1,0.01"]
    assert words_of(None, {"model__hidden": [[16], [8, 8]]}, several=True) == ["model.hidden=[16],[8,8]"]


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        ("paths.runs='a", {}, "cannot be divided into overrides as a shell would"),
        ([1], {}, "1 is not a text of the form key=value"),
        (5, {}, "5 is no list of overrides: each is a text of the form key=value"),
        (None, {"seed": object()}, r"seed is <object .*, a object: it has to be a number, a text, a list or None"),
        (None, {"train__lrr": 1}, "Unknown config key 'train.lrr'. Did you mean 'train.lr'"),
        (None, {"algorithm": ["local", "pgfed"]}, "algorithm has to be one option's name"),
        (
            "plan=true",
            {},
            r"plan=true is a key of a sweep, not of a single trial: add -m \(in Python: pflsweep.run_sweep\)",
        ),
        (None, {"tune": "grid"}, r"in Python: pflsweep.run_sweep"),
        ("algorithm=fedavg,local", {}, r"has several values: add -m \(in Python: pflsweep.run_sweep\) to train each"),
        ("train.lr=range(1,3)", {}, r"has several values: add -m \(in Python: pflsweep.run_sweep\) to train each"),
        (None, {"algorithm": ["local", "pgfed"]}, "in Python: by pflsweep.run_sweep"),
        ("hydra/launcher=joblib", {}, r"in Python: pflsweep.run_sweep"),
        ("-m algorithm=fedavg,local", {}, "'-m': flags are of the command line. In Python pflsweep.run_sweep"),
        ("--config-dir own", {}, "'--config-dir': flags are of the command line. .*config_dir=FOLDER"),
        (None, {"config_dir": "nowhere"}, r"There is no folder 'nowhere' of config groups.*in Python: config_dir"),
        (None, {"paths__runs": "r" * 300}, "r{300}/.* cannot be written to .File name too long.*paths.runs"),
    ],
)
def test_bad_input_is_a_user_error(given: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pflsweep.run(given, **keys)


def test_three_ways_to_say_a_trial_are_one_trial() -> None:
    text = "algorithm=pgfed partition.clients=6 model.hidden=[16] train.epochs=1 train.rounds=2"
    results = [pflsweep.run(text), pflsweep.run(text.split()), pflsweep.run(algorithm="pgfed", **SMALL)]
    assert len(list(Path("runs").glob("*/meta.json"))) == 1
    accuracy = f"{100 * results[0].personal_accuracy.last:.2f}"
    for result in results:
        assert repr(result).startswith("pgfed-digits-dirichlet-0 (")
        assert accuracy in repr(result).splitlines()[-1]
        assert f"<td>{accuracy}</td>" in result._repr_html_()
    assert not Path("mlflow.db").exists()


def test_the_option_of_a_partition_is_a_keyword_too() -> None:
    result = pflsweep.run(partition="shards", **SMALL)
    assert result.record.meta["partition"] == "shards"


def test_a_sweep_returns_its_trials_as_a_table(capsys: pytest.CaptureFixture) -> None:
    trials = pflsweep.run_sweep(algorithm=["local", "pgfed"], seed=range(2), train__lr=[0.05, 0.1], **SWEPT)
    assert capsys.readouterr().out == "", "the table is what is returned"
    assert len(trials) == 8
    assert set(trials["method"]) == {"local", "pgfed"}
    assert trials.groupby(["method", "train.lr"])["seed"].agg(list).tolist() == [[0, 1]] * 4
    assert trials["accuracy"].between(0, 1).all()
    one = trials[(trials["method"] == "pgfed") & (trials["seed"] == 1) & (trials["train.lr"] == 0.1)]
    again = pflsweep.run(algorithm="pgfed", seed=1, train__lr=0.1, **SMALL)
    assert again.personal_accuracy.last == one["accuracy"].item()
    assert Path(one["record"].item()).name == again.record.meta["identity"]
    loaded = pflsweep.load("runs")
    both = [table.set_index(["method", "seed", "train.lr"])["accuracy"].sort_index() for table in (trials, loaded)]
    pd.testing.assert_series_equal(*both)
    with pytest.raises(UserError, match=r"2 settings.*mlp, lr=0\.05; .*mlp, lr=0\.1\. Choose one"):
        pflsweep.plot(trials)
    figure = pflsweep.plot(trials[trials["train.lr"] == 0.1])
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert [axes.get_xlabel() for axes in figure.axes] == ["round"]


def test_a_table_shows_what_tells_its_trials_apart_and_has_all() -> None:
    trials = pflsweep.run_sweep(algorithm=["local", "ditto"], train__lr=[0.05, 0.1], **SWEPT)
    head = repr(trials).splitlines()[0].split()
    keys = ["method", "dataset", "partition", "model", "seed", "train.lr"]
    assert head == [*keys, "accuracy", "best", "std_over_clients", "rounds", "seconds"]
    assert "<th>train.lr</th>" in trials._repr_html_()
    assert trials["train.batch"].tolist() == [32] * 4
    assert trials["algorithm.lam"].isna().tolist() == [True, True, False, False]
    few = trials[["method", "train.batch"]]
    assert repr(few).splitlines()[0].split() == ["method", "train.batch"]
    assert trials.to_csv(index=False).partition("\n")[0].split(",") == list(trials)


def test_trials_of_searches_are_told_from_final_ones() -> None:
    trials = pflsweep.run_sweep("algorithm=ditto tune=grid tune.points=2", **SWEPT)
    assert trials["role"].tolist() == ["final"]
    assert sorted(pflsweep.load(searches=True)["role"]) == ["final", "search", "search"]
    assert [place.name for place in pflsweep.load()["record"]] == [place.name for place in trials["record"]]


@pytest.mark.slow
def test_records_of_another_machine_are_found_where_they_were_copied_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Where a trial was trained is stored by host and path. Once, what was not there was left out without a word."""
    trials = pflsweep.run_sweep(algorithm=["local", "fedavg"], **SWEPT)
    Path("here").mkdir()
    shutil.move("runs", "here/runs")
    monkeypatch.chdir("here")
    monkeypatch.setattr("pflsweep.sweep.slot_state.gethostname", lambda: "another")
    again = pflsweep.run_sweep(algorithm=["local", "fedavg"], **SWEPT)
    assert again["accuracy"].tolist() == trials["accuracy"].tolist()
    assert {Path(record).absolute().parent for record in again["record"]} == {Path("runs").absolute()}
    assert "1 of them done before" not in capsys.readouterr().err
    shutil.move(str(again["record"][0]), "..")
    anew = pflsweep.run_sweep(algorithm=["local", "fedavg"], **SWEPT)
    assert "1 of them done before" in capsys.readouterr().err, "the one whose record is gone is trained again"
    assert anew["accuracy"].tolist() == trials["accuracy"].tolist()
    assert "left out" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_of_which_trials_fail_returns_the_others(capsys: pytest.CaptureFixture) -> None:
    clients = {**SWEPT, "partition__clients": [6, 5000]}
    trials = pflsweep.run_sweep("algorithm=local", **clients)
    assert trials["partition.clients"].tolist() == [6]
    assert "1797 samples" in capsys.readouterr().err
    with pytest.raises(UserError, match="No trial of this sweep has finished"):
        pflsweep.run_sweep("algorithm=local partition.clients=5000,6000")
    with pytest.raises(UserError, match="plan=true trains nothing"):
        pflsweep.run_sweep("algorithm=local plan=true")


@pytest.mark.slow
def test_options_of_ones_own_are_found() -> None:
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine/algorithm/mine.yaml").write_text("_target_: pflsweep.algorithms.fedavg.FedAvg\n")
    trials = pflsweep.run_sweep("algorithm=mine,local", "mine", **SWEPT)
    assert trials["method"].tolist() == ["mine", "local"]
    (ledger,) = Path("runs/sweeps").glob("*.json")
    assert "--config-dir=mine" in json.loads(ledger.read_text())["command"]


def test_where_nothing_was_trained_there_is_nothing_to_load() -> None:
    with pytest.raises(UserError, match="There is no folder of runs 'nowhere' here"):
        pflsweep.load("nowhere")
    with pytest.raises(UserError, match=r"in Python: pflsweep.load\(DIR\)"):
        pflsweep.load("nowhere")
    with pytest.raises(UserError, match=r"There is no folder of runs 'r{300}'"):
        pflsweep.load("r" * 300)
    Path("runs").mkdir()
    with pytest.raises(UserError, match="no finished run in 'runs'"):
        pflsweep.load()
    for table in (pd.DataFrame(), pd.DataFrame({"method": ["local"]})):
        with pytest.raises(UserError, match="these are no trials"):
            pflsweep.plot(table)


def test_trials_whose_clients_were_never_scored_have_no_plot() -> None:
    file = records.finished(Path("runs").absolute(), "local", [1, 1]).folder / "rounds.parquet"
    table = pd.read_parquet(file)
    table[[name for name in map(str, table) if name.startswith("personal_")]] = float("nan")
    table.to_parquet(file)
    trials = pflsweep.load()
    assert len(trials) == 1
    for plot in (pflsweep.plot, pflsweep.plot_gains):
        with pytest.raises(UserError, match="no client of these trials was ever scored"):
            plot(trials)


def test_a_records_own_folder_is_no_folder_of_runs() -> None:
    folder = records.finished(Path("runs").absolute(), "local", [1, 1]).folder
    assert len(pflsweep.load()) == 1
    with pytest.raises(UserError, match=f"'{folder}' is the folder of one record: .* '{folder.parent}'"):
        pflsweep.load(folder)
    records.create(Path("left"), "local")
    with pytest.raises(UserError, match=r"no finished run in 'left' \(1 not finished\)"):
        pflsweep.load("left")


def test_a_baseline_that_no_trial_has_is_named_as_in_python() -> None:
    for method in ("local", "fedavg"):
        records.finished(Path("runs"), method, [1, 1])
    with pytest.raises(UserError, match="plot_gains: baseline=foo: no chosen run has this method") as raised:
        pflsweep.plot_gains(pflsweep.load(), "foo")
    assert "--baseline" not in str(raised.value)


def test_a_trial_that_diverges_raises_what_the_package_names() -> None:
    with pytest.raises(pflsweep.Diverged, match="no client's loss is finite"):
        pflsweep.run("algorithm=fedavg train.lr=1e30", **SMALL)


@pytest.mark.slow
def test_the_example_runs_and_shows_what_is_committed() -> None:
    """Each cell shows the kinds of output, methods and settings of the committed file; a table may have new columns."""
    committed = json.loads(EXAMPLE.read_text())
    made = executed(committed)
    for ours, theirs in zip(made["cells"], committed["cells"], strict=True):
        assert kinds(ours) == kinds(theirs), "".join(ours["source"])
        assert words(ours) >= words(theirs), "".join(ours["source"])
    assert sum(cell["cell_type"] == "code" for cell in made["cells"]) >= 5


def test_a_cell_that_fails_is_an_error() -> None:
    cell = {"cell_type": "code", "source": ["import pflsweep\n", "pflsweep.run('algorithm=fedavgg')"]}
    with pytest.raises(UserError, match="Did you mean 'fedavg'"):
        executed({"cells": [cell]})


def kinds(cell: dict[str, Any]) -> list[list[str]]:
    """Return the output types of a cell and the formats of its value."""
    return [[out["output_type"], *sorted(out.get("data", {}))] for out in cell.get("outputs", [])]


def words(cell: dict[str, Any]) -> set[str]:
    """Return the words in a cell's text that are no numbers or paths."""
    texts = ["".join(out.get("data", {}).get("text/plain", out.get("text", ""))) for out in cell.get("outputs", [])]
    return {word for text in texts for word in text.split() if word.isidentifier()}
