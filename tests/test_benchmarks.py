"""Each benchmark runs: small versions of what `python -m benchmarks.X` measures."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import common, ideas, methods, speed, sweeps, training

pytestmark = pytest.mark.slow


def test_a_command_that_knows_its_trials_trains_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once their results were stored without records, so that the command trained all of them again."""
    command, seconds, written = sweeps.timed, [], []

    def timed(*arguments: str) -> float:
        seconds.append(command(*arguments))
        written.append({file.parent.name: file.stat().st_mtime_ns for file in Path("runs").glob("*/rounds.parquet")})
        return seconds[-1]

    monkeypatch.setattr(sweeps, "timed", timed)
    found = sweeps.known(2)
    assert found == {"trials": 2, "s": min(seconds[1:])}
    assert len(written[0]) == 2
    assert written == [written[0]] * 4, "later commands train nothing"


def test_the_overhead_of_a_sweep_is_what_training_leaves() -> None:
    found = sweeps.overhead(2)
    assert found["ms a trial"] > found["of it in training"] > 0
    assert found["overhead"] > 0


def test_runs_take_turns_and_their_first_is_not_counted() -> None:
    order: list[str] = []
    times = common.compare({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    assert all(len(kind) == 2 for each in times.values() for kind in each)
    assert common.ratio([1.0, 2.0, 3.0], [2.0, 2.0, 9.0]) == 2.0


def test_rows_beside_fedavg_and_a_plain_loop() -> None:
    assert training.evaluated(1, "cpu").measured > 0
    simulation = common.simulation("pgfed", common.federation(2, 20, 5), epochs=1, batch=10)
    training.next_round(simulation)()
    training.only_fit(simulation)()
    assert simulation.round == 1, "local steps alone are no round"
    found = methods.measured("scaffold", 1, "cpu")
    assert found["traffic"] == 4.0, "a model and a control variate, down and up"
    assert found["time"] > 0
    assert ideas.speed_up(ideas.engine(10), ideas.plain(10), 1, 1) > 0


def test_a_setting_prints_its_table(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(speed.SETTINGS["a"], clients=3, samples=20)
    monkeypatch.setitem(speed.SETTINGS, "a", small)
    speed.compare(small, 1, "cpu")
    assert "| DataLoader, 1 threads |" in (said := capsys.readouterr().out)
    assert "workers, evaluated / DataLoader" in said
    grown = speed.grown(4, 2)
    assert grown.rows >= 2
    assert grown.peak > 0.1
