"""The command as a user meets it: words, messages, exit codes, sweeps."""

import subprocess
import sys
from pathlib import Path

import pytest

from pflsweep import cli
from pflsweep.cli import main

SMALL = ["tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.rounds=2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["algorithm=fedavgg"], ["algorithm=fedavgg", "Did you mean 'fedavg'"]),
        (["train.lrr=1"], ["train.lrr", "Did you mean 'train.lr'"]),
        (["+unknown=1", "tracking=none"], ["Unknown config key 'unknown'"]),
        (["train.participation=0", "tracking=none"], ["train.participation is 0", "above 0"]),
        (["algorithm=local,fedavg"], ["add -m"]),
        (["train.lr=1", "fedprox"], ["'fedprox' cannot be read as key=value"]),
        (["lst"], ["Unknown word 'lst'", "Did you mean 'list'"]),
        (["fedavg"], ["Did you mean algorithm=fedavg"]),
        (["list", "model"], ["Did you mean 'models'"]),
        (["--multrun"], ["Unknown flag '--multrun'", "--multirun"]),
        (["--config-dir", "nowhere"], ["nowhere", "not found"]),
        (["-m", "algorithm=local,fedprox", "algorithm.mu=1"], ["'algorithm.mu'", "no keys to set"]),
        (["-m", "algorithm=fedprox,local", "algorithm.mu=1"], ["algorithm.mu", "not a key of every option"]),
        (["-m", "train.lr=0.1,-1", *SMALL], ["train.lr is -1", "in the trial"]),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_code_2(
    argv: list[str], words: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert [word for word in words if word not in err] == []
    assert "Traceback" not in err
    assert err.count("\n") == 1
    assert out == ""
    assert list(Path().iterdir()) == []


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from pflsweep.cli import main; main(['--help']); "
        "heavy = {'torch', 'mlflow', 'pandas', 'sklearn', 'optuna', 'matplotlib'} & set(sys.modules); "
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "algorithm: " in done.stdout
    assert "train:" in done.stdout


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("algorithms", ["fedprox", "Li et al., MLSys 2020", "mu=0.01"]),
        ("datasets", ["digits", "1,797"]),
        ("partitions", ["dirichlet", "alpha=0.3"]),
        ("models", ["mlp", "hidden=[200,200]"]),
    ],
)
def test_list(what: str, words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["list", what]) == 0
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == []
    files = Path(cli.__file__).parent.parent.glob(f"conf/{what.removesuffix('s')}/*.yaml")
    assert len(out.splitlines()) == len(list(files))


def test_a_single_run_ends_with_its_table(capsys: pytest.CaptureFixture) -> None:
    assert main([*SMALL, "algorithm=fedavg"]) == 0
    out, err = capsys.readouterr()
    assert "fedavg" in out
    assert "pflsweep report runs" in out
    assert "3 of 6 clients" in err
    assert [path.name for path in Path().iterdir()] == ["runs"]


def test_a_sweep_compares_its_trials_and_is_not_trained_twice(capsys: pytest.CaptureFixture) -> None:
    command = ["-m", "algorithm=local,fedavg", *SMALL]
    assert main(command) == 0
    first = capsys.readouterr().out
    for word in (
        "local",
        "fedavg",
        "accuracy %",
        "std over clients",
        "rounds",
        "seconds",
        "images/s",
        "floats sent",
    ):
        assert word in first
    assert len(list(Path("runs").iterdir())) == 2
    assert [path.name for path in Path().iterdir()] == ["runs"]
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == first
    assert again.err.count("trained already") == 2


def test_a_failing_trial_does_not_end_the_sweep(capsys: pytest.CaptureFixture) -> None:
    assert main(["-m", "partition.clients=5000,6", *[o for o in SMALL if "clients" not in o]]) == 2
    out, err = capsys.readouterr()
    assert "fedavg" in out
    assert "partition.clients=5000" in err
    assert "1797 samples" in err
    assert "1 of 2 trials failed" in err
    assert "Traceback" not in err


def test_a_bug_shows_its_traceback(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import pflsweep.trial

    def bug(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(pflsweep.trial, "build", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        main(SMALL)
    assert main(["-m", "seed=0,1", *SMALL]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "2 of 2 trials failed" in err


def test_a_method_of_ones_own_in_the_working_directory(capsys: pytest.CaptureFixture) -> None:
    Path("my_method.py").write_text(
        "from pflsweep.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    paper = 'ours'\n"
    )
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine/algorithm/mine.yaml").write_text("# FedAvg again\n_target_: my_method.Mine\n")
    assert main(["--config-dir", "mine", "algorithm=mine", *SMALL]) == 0
    assert "mine" in capsys.readouterr().out
    assert main(["list", "algorithms", "--config-dir", "mine"]) == 0
    assert "ours: FedAvg again" in capsys.readouterr().out


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    import pflsweep.trial

    def stop(*_: object) -> None:
        raise pflsweep.trial.Stopped("stopped after round 1 of 2; the same command continues")

    monkeypatch.setattr(pflsweep.trial, "build", stop)
    assert main(SMALL) == 130
    assert "stopped after round 1 of 2; the same command continues" in capsys.readouterr().err
