"""Hydra's launchers start the same workers: with joblib's and submitit's the records equal those of one worker."""

import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.sweep.sweeping import database, numbers, require_each_once, require_same, run, run_here, start, states

pytestmark = pytest.mark.slow

FOUR = [
    "-m", "algorithm=local,fedavg", "seed=0,1", "partition.clients=6", "model.hidden=[16]", "train.epochs=1",
    "train.rounds=4", "workers.heartbeat=1",
]  # fmt: skip
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "workers.count=2"]
SUBMITIT = ["hydra/launcher=submitit_local", "workers.count=2"]


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("basic")
    done = run_here(folder, *FOUR)
    assert done.returncode == 0, done.stderr
    assert len(numbers(folder)) == 4
    return folder


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT], ids=["joblib", "submitit"])
def test_the_same_records(launcher: list[str], basic: Path, tmp_path: Path) -> None:
    done = run(tmp_path, *FOUR, *launcher)
    assert done.returncode == 0, done.stderr
    require_same(basic, tmp_path)
    require_each_once(database(tmp_path), 4)
    # The launcher leaves no folders
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert not list(tmp_path.glob("runs/sweeps/submitit/%j"))
    (plan,) = tmp_path.glob("runs/sweeps/plans/*.json")
    # A storage's URL may have a password
    assert stat.S_IMODE(plan.stat().st_mode) == 0o600


def test_a_failing_trial_does_not_end_the_others(basic: Path, tmp_path: Path) -> None:
    words = [word.replace("clients=6", "clients=5000,6") for word in FOUR if "algorithm" not in word]
    done = run(tmp_path, *words, *SUBMITIT)
    assert done.returncode == 2
    assert "2 of 4 trials failed" in done.stderr
    assert "1797 samples" in done.stderr
    assert "Traceback" not in done.stderr
    whole, left = numbers(basic), numbers(tmp_path)
    assert len(left) == 2
    assert left.keys() <= whole.keys()


def test_a_job_that_is_preempted(tmp_path: Path) -> None:
    """On Slurm's warning a job finishes its round, leaves its trial to others, and is queued again."""
    words = [*FOUR, *SUBMITIT, "seed=0", "workers.count=1", "train.rounds=100", "checkpoint.every=0"]
    with start(tmp_path, *words) as process:
        while process.poll() is None and not list(tmp_path.glob("runs/*/checkpoint.pt")):
            time.sleep(0.1)
        (controller,) = (tmp_path / "runs" / "sweeps" / "submitit").glob("[0-9]*")
        job = subprocess.check_output(["pgrep", "-P", controller.name], text=True)
        os.kill(int(job), signal.SIGUSR2)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "this job is preempted" in next(controller.glob("*_log.err")).read_text()
    require_each_once(database(tmp_path), 2)
    # No lease has expired
    assert "FAIL" not in {state for *_, state in states(database(tmp_path))}


def test_a_launcher_that_cannot_start_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A PATH without Slurm
    monkeypatch.setenv("PATH", "")
    done = run(tmp_path, *FOUR, "hydra/launcher=submitit_slurm")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("pflsweep: ")]
    assert "SlurmLauncher" in line
    assert "optuna.db, an SQLite file, whose locks many network file systems lose" in done.stderr
    assert "to submit, with logs in" in done.stderr
    assert "srun" in line
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_launcher_that_is_not_installed(tmp_path: Path) -> None:
    done = run(tmp_path, *FOUR, "hydra/launcher=ray")
    assert done.returncode == 2
    assert "there is no hydra/launcher 'ray'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
