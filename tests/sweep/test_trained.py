"""Which trials of a plan are trained already."""

import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pflsweep.commands.main import main
from pflsweep.config.compose import Config
from pflsweep.config.identity import NUMERICS
from pflsweep.records.ledger import ledgers
from pflsweep.records.record import Record
from pflsweep.records.searches import find_searches
from pflsweep.sweep.trained import _is_trained, finished_records
from pflsweep.trial.metadata import own_code_hashes

from .test_planner import planned

pytestmark = pytest.mark.usefixtures("elsewhere")
COMMITTED = Path(__file__).parents[2] / "reports/runs"
SMALL = ["partition.clients=4", "model.hidden=[8]", "train.epochs=1", "train.rounds=2", "tracking=none"]


def told(capsys: pytest.CaptureFixture, *words: str) -> str:
    """Return the last paragraph of plan=true."""
    assert main(["-m", *words, "plan=true"]) == 0
    return str(capsys.readouterr().out.split("\n\n")[-1])


@pytest.mark.slow
def test_a_plan_knows_what_was_trained(capsys: pytest.CaptureFixture) -> None:
    words = ["algorithm=local,fedavg", "seed=0,1", *SMALL]
    assert "4 trials, seeds 0, 1; 0 of them trained already; time for the other 4" in told(capsys, *words)
    assert main(["algorithm=fedavg", "seed=1", *SMALL]) == 0
    capsys.readouterr()
    assert "1 of them trained already; time for the other 3" in told(capsys, *words)
    assert "1 of them trained already" in told(capsys, *words, "train.rounds=1")
    # These trials are continued
    assert "0 of them trained already" in told(capsys, *words, "train.rounds=3")
    assert "0 of them trained already" in told(capsys, *words, "train.lr=0.2")


@pytest.mark.slow
def test_a_plan_knows_the_winner_of_hyperband(capsys: pytest.CaptureFixture) -> None:
    """Hyperband tries some points in several rungs, so that it has more trials than points."""
    words = ["algorithm=fedprox", "tune=hyperband", "tune.points=5", *SMALL, "train.rounds=9"]
    assert main(["-m", *words]) == 0
    capsys.readouterr()
    assert "time for the other 0" in told(capsys, *words)


@pytest.mark.slow
def test_a_plan_knows_the_winner_of_a_search_by_its_ledger(capsys: pytest.CaptureFixture) -> None:
    words = ["algorithm=fedprox", "tune=grid", "tune.points=2", *SMALL]
    assert main(["-m", *words]) == 0
    capsys.readouterr()
    assert "3 trials, seed 0; 3 of them trained already; time for the other 0" in told(capsys, *words)
    for file in Path("runs/sweeps").glob("*.json"):
        file.unlink()
    assert "2 of them trained already" in told(capsys, *words)


@pytest.mark.slow
def test_a_search_at_another_scale_is_reused_as_long_as_it_is_of_the_same_setting(
    capsys: pytest.CaptureFixture,
) -> None:
    def table(clients: int) -> None:
        Path("sweeps").mkdir(exist_ok=True)
        Path("sweeps/own.yaml").write_text(
            f"settings: {{digits: 'partition.clients={clients} model.hidden=[8] train.rounds=3 data.limit=200'}}\n"
            "methods: {fedprox: algorithm=fedprox}\nsearch: tune=grid tune.points=2\n"
        )

    table(4)
    words = ["sweep=own", "scale=2", "tune.scale=1", "tracking=none"]
    assert main(["-m", "sweep=own", "scale=1", "tracking=none"]) == 0
    capsys.readouterr()
    (small,) = ledgers(Path("runs"))
    seen = told(capsys, *words)
    assert "own at scale 2: 3 trials, seed 0; 2 of them trained already" in seen
    assert "Searches at scale 1: 1 of 1 are trained already, 0 are to be trained (0 trials)." in seen
    assert main(["-m", *words]) == 0
    assert "in the last round at scale 1 on validation data" in capsys.readouterr().out
    both = ledgers(Path("runs"))[-1]
    ((cell, of),) = both.groups.items()
    before = small.groups[cell]
    assert (of["tried"], of["winner"], of["search_config"]) == (before["tried"], before["winner"], before["config"])
    assert (of["config"]["train.rounds"], both.scale, both.tune["scale"]) == (2, "2", "1")
    assert len(list(Path("runs").glob("*/meta.json"))) == 3, "two points, and the final trial of two rounds"
    found = find_searches(map(Record, (file.parent for file in Path("runs").glob("*/meta.json"))))
    (won,) = set(found.won.values())
    assert won.startswith("the best of 2 points at scale 1 on validation data of seed 0, ")
    assert len(found.trials) == 2
    assert won.endswith("; train.lr=0.1 is the largest value tried; algorithm.mu=0.001 is the smallest value tried")
    table(5)
    assert "0 of 1 are trained already, 1 are to be trained (2 trials), 1 of them again, since" in told(capsys, *words)


@pytest.mark.slow
def test_every_committed_trial_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of each committed ledger finds its final trials, except those of older versions of their method.

    The test uses the numerics versions with which they were trained: under later ones these are other trials.
    """

    def is_known(config: Config, code: Any) -> bool:
        for numerics in (NUMERICS, dict.fromkeys(NUMERICS, 1)):
            monkeypatch.setattr("pflsweep.trial.metadata.NUMERICS", numerics)
            if _is_trained(config, code, finished):
                return True
        return False

    runs = tmp_path / "committed"
    for file in COMMITTED.glob("*.zip"):
        with zipfile.ZipFile(file) as archive:
            archive.extractall(runs)
    finished, count = finished_records(runs), 0
    for ledger in ledgers(runs):
        plan = planned(*shlex.split(ledger.command)[2:])
        for g, group in enumerate(plan.groups):
            told = ledger.groups[group.setting, group.method]
            code = own_code_hashes(group.config)
            for slot, seed in zip(plan.final_slots(g), plan.seeds, strict=True):
                (config,) = plan.configs(slot, told["winner"] or {})
                identity = told["trials"].get(str(seed))
                if identity is None or is_known(config, code):
                    count += identity is not None
                    continue
                version = Record(runs / identity).meta["method_version"]
                now = group.config.node("algorithm").load().version
                assert version < now, f"{group.name} {seed} of {ledger.path.name} is not known"
    assert count
