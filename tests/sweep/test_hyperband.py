"""Hyperband: its brackets, which points are promoted, and that rungs go on from checkpoints."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from pflsweep.commands.main import main
from pflsweep.engine import simulation
from pflsweep.records.record import Record
from pflsweep.records.searches import find_searches
from pflsweep.sweep import worker
from pflsweep.sweep.hyperband import Rung, promoted, rungs
from tests.report.records import require_same_rounds
from tests.sweep.sweeping import MAIN, database, numbers, require_each_once, require_same, run, run_here

SEARCH = [
    "-m", "algorithm=pgfed", "seed=0", "tune=hyperband", "tune.points=17", "train.rounds=11", "partition.clients=6",
    "model.hidden=[16]", "checkpoint.models=false", "workers.heartbeat=1",
]  # fmt: skip
SLOTS = 22
WHOLE = 3 + 1 + 1  # slots that train all rounds


def test_the_brackets_of_the_paper() -> None:
    """Table 1 of Li et al. has R = 81: the first bracket has 81, 27, 9, 3, 1 points, the next 34 (27 of them are halved
    as here), ...
    """
    found = [(rung.rounds, len(rung.numbers)) for rung in rungs(143, 81)]
    assert found[:5] == [(1, 81), (3, 34), (9, 15), (27, 8), (81, 5)]
    below = {rung.numbers: rung for rung in rungs(143, 81)}
    last = rungs(143, 81)[-1]
    chain = []
    while last.below:
        chain.append((last.rounds, len(last.numbers)))
        last = below[last.below]
    assert [*chain, (last.rounds, len(last.numbers))] == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)]


@pytest.mark.parametrize(
    ("points", "rounds", "tried", "compared"),
    [
        (17, 30, 17, [3, 9, 30]),
        (48, 1000, 17, [111, 333, 1000]),
        (49, 27, 49, [1, 3, 9, 27]),
        (49, 26, 17, [2, 6, 26]),
        (10, 5, 5, [1, 5]),
        (4, 100, 1, [100]),
    ],
)
def test_points_and_rounds_are_upper_bounds(points: int, rounds: int, tried: int, compared: list[int]) -> None:
    found = rungs(points, rounds)
    assert sum(len(rung.numbers) for rung in found if not rung.below) == tried
    assert [number for rung in found for number in rung.numbers] == list(range(found[-1].numbers.stop))
    assert {rung.rounds for rung in found if rung.numbers.stop == found[-1].numbers.stop} == {rounds}
    assert sorted({rung.rounds for rung in found}) == compared


def test_the_best_are_promoted_and_what_has_no_value_comes_last() -> None:
    def told(value: float | None) -> FrozenTrial:
        return create_trial(state=TrialState.FAIL if value is None else TrialState.COMPLETE, value=value)

    trials = [told(value) for value in (None, 0.2, 0.9, 0.9, 0.0)]
    trials += [create_trial(state=TrialState.WAITING)] * 5
    rung = Rung(3, range(5, 10), range(5))
    assert [promoted(rung, trials, number) for number in rung.numbers] == [2, 3, 1, 4, 0]
    # One that diverged comes before one that crashed
    trials[1] = create_trial(state=TrialState.FAIL, user_attrs={"diverged": True})
    assert [promoted(rung, trials, number) for number in rung.numbers] == [2, 3, 4, 1, 0]


def test_a_point_with_a_late_result_is_promoted_once_and_no_other_twice() -> None:
    """Slot 5 continued the best of the others while point 0 had crashed; then it was tried again and is the best."""
    axis = {"x": FloatDistribution(0.0, 1.0)}
    below = [
        create_trial(value=value, params={"x": x}, distributions=axis)
        for value, x in ((0.95, 0.1), (0.2, 0.2), (0.9, 0.3), (0.8, 0.4))
    ]
    leased = create_trial(state=TrialState.RUNNING, params={"x": 0.3}, distributions=axis)
    rung = Rung(3, range(4, 7), range(4))
    assert promoted(rung, [*below, leased], 5) == 0
    assert promoted(rung, [*below, leased, create_trial(state=TrialState.WAITING)], 6) == 3


def records(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any], pd.DataFrame]]:
    """Return config, meta and rounds of each record."""
    return [
        (
            yaml.safe_load(file.read_text()),
            json.loads((file.parent / "meta.json").read_text()),
            pd.read_parquet(file.parent / "rounds.parquet"),
        )
        for file in (folder / "runs").glob("*/config.yaml")
    ]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Run a whole search with one worker, and return how many rounds were trained in it."""
    folder, trained = tmp_path_factory.mktemp("searched"), 0
    train = simulation.run_round

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal trained
        trained += 1
        return train(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "run_round", counted)
        done = run_here(folder, *SEARCH)
    assert done.returncode == 0, done.stderr
    require_each_once(database(folder), SLOTS + 1)
    return folder, trained


@pytest.mark.slow
def test_no_round_is_trained_twice(searched: tuple[Path, int]) -> None:
    folder, trained = searched
    points = [(meta, rounds) for config, meta, rounds in records(folder) if config["data"]["validation"]]
    assert len(points) == 17
    counts = sorted(len(rounds) for _, rounds in points)
    assert counts == [1] * 6 + [3] * 6 + [11] * WHOLE
    assert trained == sum(counts) + 11, "and the final trial's"
    sessions = {tuple(session["from"] for session in meta.get("sessions", [])) for meta, _ in points}
    assert (2, 4) in sessions, "the first bracket's winner went on twice"


def test_a_trial_that_went_on_is_as_if_it_had_not_stopped(searched: tuple[Path, int], tmp_path: Path) -> None:
    folder, _ = searched
    of = {tuple(s["from"] for s in meta.get("sessions", [])): (config, meta) for config, meta, _ in records(folder)}
    config, meta = of[2, 4]
    point = [f"train.lr={config['train']['lr']}", f"algorithm.mu={config['algorithm']['mu']}", "data.validation=0.2"]
    alone = run_here(tmp_path, *(word for word in SEARCH[1:] if not word.startswith(("tune", "workers"))), *point)
    assert alone.returncode == 0, alone.stderr
    ((_, same, rounds),) = records(tmp_path)
    assert same["identity"] == meta["identity"]
    undisturbed = pd.read_parquet(folder / "runs" / meta["identity"] / "rounds.parquet")
    require_same_rounds(undisturbed, rounds)


def test_the_winner_is_one_of_those_that_trained_all_rounds(searched: tuple[Path, int]) -> None:
    folder, _ = searched
    (file,) = (folder / "runs" / "sweeps").glob("*.json")
    (group,) = json.loads(file.read_text())["groups"]
    assert (group["points"], len(group["tried"])) == (17, WHOLE)
    assert group["winner"] == max(group["tried"], key=lambda tried: tried["value"])["point"]


def test_trials_of_lower_rungs_are_of_the_search(searched: tuple[Path, int]) -> None:
    folder, _ = searched
    found = [Record(file.parent) for file in (folder / "runs").glob("*/meta.json")]
    points = {record.meta["identity"] for record in found if record.config["data"]["validation"]}
    assert find_searches(found).trials == points
    assert len(points) == 17


@pytest.mark.slow
def test_another_sweep_finds_what_has_gone_on_since(
    searched: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A first rung is scored after its own rounds, although its record has more by now."""
    folder, _ = searched
    before = {file: file.stat().st_mtime_ns for file in (folder / "runs").glob("*/rounds.parquet")}
    words = [word.replace("seed=0", "seed=0,1") for word in SEARCH]
    done = run_here(folder, *words)
    assert done.returncode == 0, done.stderr
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert len(records(folder)) == len(before) + 1


@pytest.mark.slow
@pytest.mark.parametrize("partial", [False, True])
def test_a_point_that_crashed_holds_up_its_bracket(
    partial: bool, searched: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first bracket's best point crashes. The same command tries it again, and then all is as without the crash."""
    folder, _ = searched
    of = {tuple(s["from"] for s in meta.get("sessions", [])): config for config, meta, _ in records(folder)}
    lr, run_trial = of[2, 4]["train"]["lr"], worker.run_trial

    def crashing(config: Any, *arguments: Any, **options: Any) -> Any:
        if config.train.lr == lr:
            raise RuntimeError("a crash")
        return run_trial(config, *arguments, **options)

    words = [*SEARCH, f"tune.partial={str(partial).lower()}"]
    with monkeypatch.context() as patch:
        patch.setattr(worker, "run_trial", crashing)
        assert run_here(tmp_path, *words).returncode == 1
    (file,) = (tmp_path / "runs" / "sweeps").glob("*.json")
    (group,) = json.loads(file.read_text())["groups"]
    assert len(group["without_result"]) == 1
    # The first bracket's second and third rung, and the final trial, which another point may have won by now
    assert (group["points_settled"], len(group["trials"])) == ((SLOTS, 1) if partial else (SLOTS - 3 - 1, 0))
    assert run_here(tmp_path, *words).returncode == 0
    if not partial:
        # Another test adds a second seed
        alone, again = numbers(folder), numbers(tmp_path)
        assert set(again) == {meta["identity"] for config, meta, _ in records(folder) if config["seed"] == 0}
        for identity, rounds in again.items():
            pd.testing.assert_frame_equal(rounds, alone[identity], check_exact=True)


KILLED = """
import os, signal
from pflsweep.engine import simulation
train, rounds = simulation.run_round, [0]

def killing(*arguments, **options):
    rounds[0] += 1
    if rounds[0] == 24:
        os.kill(os.getpid(), signal.SIGKILL)
    return train(*arguments, **options)

simulation.run_round = killing
"""


@pytest.mark.slow
def test_several_workers_that_are_killed_train_the_trials_of_one(searched: tuple[Path, int], tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    assert run_here(alone, *SEARCH).returncode == 0
    boot = f"from pflsweep.sweep.launch import processes\nprocesses.BOOT = {KILLED!r} + processes.BOOT\n"
    killed = run(tmp_path / "killed", *SEARCH, "workers.count=2", "checkpoint.every=0", code=boot + MAIN)
    assert killed.returncode == 0, killed.stderr
    assert "A worker died (SIGKILL" in killed.stderr
    require_each_once(database(tmp_path / "killed"), SLOTS + 1)
    require_same(alone, tmp_path / "killed")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["train.rounds=2"], "17 points and 2 rounds are too few"),
        (["tune.points=4"], "4 points and 11 rounds are too few"),
        (["tune.prune=median"], "stops losers by itself"),
        (["data.new=1"], "data.new=0"),
    ],
)
def test_what_cannot_be_halved_is_refused(
    words: list[str], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SEARCH, *words, "plan=true"]) == 2
    assert why in capsys.readouterr().err


def test_a_search_is_evaluated_where_rungs_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from pflsweep.sweep import planner

    monkeypatch.chdir(tmp_path)
    plans: list[Any] = []
    build = planner.build

    def kept(*arguments: Any, **options: Any) -> Any:
        plans.append(build(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(planner, "build", kept)
    assert main([*SEARCH, "train.rounds=90", "train.eval_every=15", "checkpoint.keep=false", "plan=true"]) == 0
    (group,) = plans[0].groups
    assert (group.config.values["train"]["eval_every"], group.search_config.values["train"]["eval_every"]) == (15, 5)
    assert group.search_config.values["checkpoint"]["keep"]
    assert not group.config.values["checkpoint"]["keep"]
