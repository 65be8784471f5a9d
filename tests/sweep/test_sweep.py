"""Sweeps as a user runs them: searches, samplers, pruning, failures, two workers, Ctrl-C, printed tables."""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest

from pflsweep.commands.main import main
from pflsweep.engine import stack
from pflsweep.sweep.storage import open_storage
from tests.sweep.sweeping import (
    database,
    numbers,
    require_each_once,
    require_same,
    run,
    run_here,
    start,
    states,
    wait_for,
)

SMALL = ["tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.rounds=2"]
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Say:
    """Run the command in its own folder. Return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(["-m", *SMALL, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return command


def configs() -> list[dict[str, Any]]:
    """Return the config of each record."""
    import yaml

    return [yaml.safe_load(file.read_text()) for file in Path("runs").glob("*/config.yaml")]


def studies() -> dict[str, list[optuna.trial.FrozenTrial]]:
    """Return the trials of each study by its method and setting, or under `final`."""
    storage = open_storage(database(Path.cwd()), 60)
    names = optuna.get_all_study_names(storage)
    return {name.rsplit(" ", 2)[0]: optuna.load_study(study_name=name, storage=storage).trials for name in names}


def test_a_sweep_that_is_called_by_its_command_is_called_without_the_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """On the terminal; test_ledger.py has the ledger."""
    monkeypatch.chdir(tmp_path)
    assert main(["-m", "seed=0,1", "tracking.uri=postgresql://lab:secret@host/runs", "plan=true"]) == 0
    out, err = capsys.readouterr()
    assert "tracking.uri=postgresql://lab@host/runs at scale paper" in out
    assert "secret" not in out + err


@pytest.mark.slow
def test_each_method_is_searched_in_its_own_space(say: Say) -> None:
    code, out, _ = say("algorithm=pgfed,fedala", "tune=grid", "tune.points=4", "seed=0,1", "model.hidden=[16,16]")
    assert code == 0
    found = studies()
    assert {key for trial in found["pgfed"] for key in trial.params} == {"train.lr", "algorithm.mu"}
    assert "algorithm.layers" in {key for trial in found["fedala"] for key in trial.params}
    assert len(found["pgfed"]) == len(found["fedala"]) == 4
    assert len(found["final"]) == 4
    lines = [line.split() for line in out.splitlines()]
    # The table of winners comes first
    pgfed, fedala = [line for line in lines if line[:1] in (["pgfed"], ["fedala"])][:2]
    assert {word.partition("=")[0] for word in pgfed if "=" in word} == {"train.lr", "algorithm.mu"}
    assert fedala[0] == "fedala"
    assert any(word.startswith("algorithm.layers=") for word in fedala)
    assert "highest personal accuracy in the last round on validation data" in out


def test_the_winner_is_the_best_on_validation_and_is_trained_on_all(say: Say) -> None:
    assert say("algorithm=fedavg", "tune=grid", "seed=3,4")[0] == 0
    best = max(studies()["fedavg"], key=lambda trial: trial.value or 0.0)
    searched = [config for config in configs() if config["data"]["validation"] == 0.2]
    final = [config for config in configs() if config["data"]["validation"] == 0.0]
    assert {config["seed"] for config in searched} == {3}
    assert sorted(config["seed"] for config in final) == [3, 4]
    assert {config["train"]["lr"] for config in final} == {best.params["train.lr"]}
    assert len(searched) == len(studies()["fedavg"]) == len({config["train"]["lr"] for config in searched})
    for trial in studies()["fedavg"]:
        (told,) = trial.user_attrs["result"]["trials"]
        rounds = pd.read_parquet(Path(told["folder"]) / "rounds.parquet")
        assert trial.value == rounds["personal_validation_accuracy"].iloc[-1]


@pytest.mark.slow
def test_on_test_data_only_where_it_is_said(say: Say) -> None:
    code, out, _ = say("algorithm=fedavg", "tune=grid", "tune.split=test", "tune.points=2")
    assert code == 0
    assert "on TEST data" in out
    assert {config["data"]["validation"] for config in configs()} == {0.0}
    # The winner's final trial is one of the search's
    assert len(configs()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe", "cmaes"])
def test_samplers_draw_from_the_ranges_and_depend_on_nothing_else(
    sampler: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert say("algorithm=pgfed", f"tune={sampler}", "tune.points=5", "train.rounds=1")[0] == 0
        drawn.append([trial.params for trial in studies()["pgfed"]])
    assert drawn[0] == drawn[1]
    assert len({tuple(point.values()) for point in drawn[0]}) == 5
    assert all(1e-4 <= point["train.lr"] <= 0.1 and 1e-3 <= point["algorithm.mu"] <= 0.1 for point in drawn[0])
    lrs = {config["train"]["lr"] for config in configs() if config["data"]["validation"]}
    assert lrs == {float(f"{point['train.lr']:.4g}") for point in drawn[0]}


@pytest.mark.slow
def test_a_loser_is_stopped_where_it_is_asked_for(say: Say) -> None:
    arguments = ("algorithm=fedavg", "tune=random", "tune.points=9", "train.rounds=6", "tune.prune=median")
    code, _, err = say(*arguments)
    assert code == 0
    pruned = [trial for trial in studies()["fedavg"] if trial.state.name == "PRUNED"]
    assert pruned
    stopped = [json.loads(file.read_text()) for file in Path("runs").glob("*/status.json")]
    stopped = [status for status in stopped if status["status"] == "pruned"]
    assert len(stopped) == len(pruned)
    assert all(status["rounds"] < 6 and "behind others" in status["error"] for status in stopped)
    assert "pruned" in err
    assert "all 10 trials are done" in say(*arguments)[2]


@pytest.mark.slow
def test_a_trial_that_had_bad_input_is_named_and_tried_again(say: Say) -> None:
    """What was wrong may be mended by a key that is not part of the plan."""
    arguments = ("partition.clients=6,5000", "seed=0,1")
    code, out, err = say(*arguments)
    assert code == 2
    assert "fedavg" in out
    # For two trials: when each ends, and at the end
    assert err.count("1797 samples") == 4
    again = say(*arguments)
    assert again[0] == 2
    assert "4 trials, 2 of them done before" in again[2]
    assert "2 of 4 trials failed; the same command tries them again." in again[2]


@pytest.mark.slow
def test_a_search_goes_on_without_what_diverged(say: Say) -> None:
    code, _, err = say("algorithm=fedavg", "tune=grid", "train.weight_decay=1e30", "tune.points=2")
    assert code == 1
    assert "Diverged: no client's loss is finite" in err
    assert "its search has no winner: every point has lost" in err
    assert Path("runs").exists()
    status = [json.loads(file.read_text())["status"] for file in Path("runs").glob("*/status.json")]
    assert status == ["failed", "failed"]
    code, _, err = say("algorithm=fedavg", "train.rounds=1", "train.lr=1e30", "retry=true")
    again = say("algorithm=fedavg", "train.rounds=1", "train.lr=1e30", "retry=true")
    assert (code, again[0]) == (1, 1)
    assert "1 of 1 trials failed" in again[2]


@pytest.mark.slow
def test_what_another_sweep_has_trained_is_not_trained_again(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    assert say("algorithm=fedavg", "seed=0,1")[0] == 0
    before = {file: file.stat().st_mtime_ns for file in Path("runs").glob("*/rounds.parquet")}
    assert say("algorithm=fedavg,local", "seed=0,1,2")[0] == 0
    assert len(list(Path("runs").glob("*/meta.json"))) == 6
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_trials_are_checked_before_the_first_is_trained(say: Say) -> None:
    code, _, err = say("algorithm=fedavg", "train.lr=0.1,-1")
    assert code == 2
    assert "train.lr is -1" in err
    assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_two_workers_give_the_numbers_of_one(tmp_path: Path) -> None:
    command = ["-m", *SMALL, "algorithm=fedavg,pgfed", "tune=grid", "tune.points=2", "seed=0,1"]
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, count in ((one, 1), (two, 2)):
        done = run(folder, *command, f"workers.count={count}")
        assert done.returncode == 0, done.stderr
        require_each_once(database(folder), 8)
    require_same(one, two)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "trials"), [("workers.count=2", 2), ("workers.stack=3", 3)])
def test_ctrl_c_stops_trials_that_run_together_after_their_round(workers: str, trials: int, tmp_path: Path) -> None:
    command = ["-m", *SMALL, "seed=0,1,2", "train.rounds=3000", workers]
    with start(tmp_path, *command) as process:
        wait_for(lambda: len(list((tmp_path / "runs").glob("*/status.json"))) == trials, process)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert rest.count("Ctrl-C again stops at once") == 1
    status = [json.loads(file.read_text())["status"] for file in (tmp_path / "runs").glob("*/status.json")]
    assert status == ["interrupted"] * trials
    assert {state for *_, state in states(database(tmp_path))} == {"WAITING"}


@pytest.mark.slow
@pytest.mark.parametrize("to_all", [True, False], ids=["of a terminal", "to the command alone"])
def test_ctrl_c_while_workers_start(to_all: bool, tmp_path: Path) -> None:
    """Some workers have not started yet; those that have also get the Ctrl-C of a terminal."""
    with start(tmp_path, "-m", *SMALL, "seed=0,1", "train.rounds=3000", "workers.count=2") as process:
        assert process.stderr is not None
        # The first line says how many trials there are
        process.stderr.readline()
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT) if to_all else process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    # In a terminal an interpreter that is just starting prints a traceback itself
    assert to_all or "Traceback" not in rest
    status = [json.loads(file.read_text())["status"] for file in (tmp_path / "runs").glob("*/status.json")]
    assert set(status) <= {"interrupted"}
    assert {state for *_, state in states(database(tmp_path))} == {"WAITING"}


@pytest.mark.slow
def test_a_limited_dataset_and_its_scale(say: Say) -> None:
    Path("sweeps").mkdir()
    Path("sweeps/mine.yaml").write_text(
        "# two methods\nsettings: {few: partition.clients=6, many: partition.clients=8}\n"
        "methods: {FedAvg: algorithm=fedavg, Local: algorithm=local}\nseeds: [0, 1, 2]\nsearch: tune=grid\n"
        "space: {all: {train.lr: {grid: [0.1, 0.01]}}, Local: null}\n"
    )
    code, out, err = say("sweep=mine", "scale=smoke", "train.rounds=50")
    assert code == 0, err
    assert "4 of 4" not in err
    assert {config["data"]["limit"] for config in configs()} == {6000}
    assert {config["seed"] for config in configs()} == {0}
    assert re.search(r"FedAvg +few", out)
    assert len(studies()["FedAvg few"]) == 2
    assert "Local few" not in studies()
    code, out, _ = say("sweep=mine", "only=[FedAvg,few]", "plan=true")
    assert code == 0
    assert "FedAvg" in out
    assert "Local" not in out
    assert "many" not in out


@pytest.mark.slow
def test_numbers_need_no_record_to_be_told_again(tmp_path: Path) -> None:
    command = ["-m", *SMALL, "seed=0,1"]
    first = run(tmp_path, *command)
    assert first.returncode == 0, first.stderr
    assert len(numbers(tmp_path)) == 2
    again = run(tmp_path, *command)
    assert again.stdout == first.stdout
    for folder in (tmp_path / "runs").glob("[0-9a-f]*"):
        for file in folder.iterdir():
            file.unlink()
    bare = run(tmp_path, *command)
    assert bare.returncode == 0
    assert re.search(r"fedavg +[0-9.]+ ± [0-9.]+ \(2/2\)", bare.stdout)


@pytest.mark.slow
def test_a_stack_goes_on_with_trials_that_stand_in_other_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One trial has three of six rounds already and ends before the others, which then go on without it."""
    command = ["-m", *SMALL, "algorithm=fedprox", "train.rounds=6", "train.lr_decay=0.9", "algorithm.mu=0.5"]
    one, three = tmp_path / "one", tmp_path / "three"
    assert run_here(three, *command, "train.rounds=3", "seed=1").returncode == 0
    rounds: list[list[int]] = []
    train = stack._fit_together

    def seen(trials: list[Any]) -> None:
        rounds.append(sorted(fit.given.turn.round for fit in trials))
        train(trials)

    monkeypatch.setattr(stack, "_fit_together", seen)
    for folder, count in ((one, 1), (three, 3)):
        done = run_here(folder, *command, "seed=0,1,2", f"workers.stack={count}")
        assert done.returncode == 0, done.stderr
    assert {tuple(those) for those in rounds} == {(k, k) for k in range(1, 7)}, "the third, in another round, by itself"
    require_same(one, three, rtol=1e-3, atol=0.02)
    assert [table["round"].tolist() for table in numbers(three).values()] == [list(range(1, 7))] * 3


@pytest.mark.slow
def test_stacked_trials_give_the_numbers_of_single_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of one method with different learning rates and seeds, in the search and in the end, train as stacks;
    numbers differ from those of single trials by rounding alone.
    """
    command = ["-m", *SMALL, "algorithm=fedprox,local", "tune=grid", "tune.points=2", "seed=0,1", "train.workers=2"]
    one, four = tmp_path / "one", tmp_path / "four"
    fits: list[int] = []
    train = stack._fit_together

    def counted(trials: list[Any]) -> None:
        fits.append(len(trials))
        train(trials)

    monkeypatch.setattr(stack, "_fit_together", counted)
    for folder, count in ((one, 1), (four, 4)):
        done = run_here(folder, *command, f"workers.stack={count}")
        assert done.returncode == 0, done.stderr
        require_each_once(database(folder), 8)
    assert set(fits) == {2}, "two points, then two seeds"
    require_same(one, four, rtol=1e-3, atol=0.02)


@pytest.mark.slow
def test_a_point_of_several_seeds_counts_once_and_the_ledger_keeps_the_database(say: Say) -> None:
    options = ("seed=0,1", "tune=grid", "tune.points=2", "tune.seeds=2", "workers.count=1")
    err = say("algorithm=fedavg", *options, "workers.storage=sqlite:///queue.db")[2]
    assert ": 4 trials; a point of a search counts once for its 2 seeds\n" in err
    (file,) = Path("runs/sweeps").glob("*.json")
    command = json.loads(file.read_text())["command"]
    assert command.endswith(" workers.storage=sqlite:///queue.db")
    assert "workers.count" not in command
