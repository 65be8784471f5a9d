"""Completion: the candidates, and Tab in a real bash in which it is installed."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pflsweep.commands.completion import SCRIPTS, candidates
from pflsweep.commands.main import COMMANDS, main

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("pflsweep rep", ["report"]),
        ("pflsweep re", ["reading=", "record", "report", "retry="]),
        ("pflsweep algorithm=pgf", ["algorithm=pgfed", "algorithm=pgfed_ce", "algorithm=pgfedmo"]),
        ("pflsweep -m algorithm=local,knn", ["algorithm=local,knnper"]),
        ("pflsweep partition=shards partition.sh", ["partition.shards_per_client="]),
        ("pflsweep partition=iid partition.sh", []),
        ("pflsweep train.weights=", ["train.weights=share", "train.weights=uniform"]),
        ("pflsweep -m tune.split=", ["tune.split=test", "tune.split=validation"]),
        ("pflsweep -m plan=", ["plan=false", "plan=true"]),
        ("pflsweep checkpoint.k", ["checkpoint.keep="]),
        ("pflsweep checkpoint.keep=", ["checkpoint.keep=false", "checkpoint.keep=true"]),
        ("pflsweep tr", ["tracking.", "tracking=", "train.", "train="]),
        ("pflsweep seed=1 rec", []),
        ("pflsweep -m sweep=fedala/table1", ["sweep=fedala/table1"]),
        ("pflsweep -m scale=sm", ["scale=small", "scale=smoke"]),
        ("pflsweep +setting=fedpg", ["+setting=fedpg", "+setting=fedpg_cifar100", "+setting=fedpg_fmnist"]),
        ("pflsweep --v", ["--version"]),
        ("pflsweep list dat", ["datasets"]),
        ("pflsweep report pgfed/table1", ["pgfed/table1"]),
        ("pflsweep record ex", ["export"]),
        ("pflsweep data show dataset=mni", ["dataset=mnist"]),
        # The data of one trial has no sweep
        ("pflsweep data show --", ["--config-dir", "--help", "--out"]),
        ("pflsweep data prepare --", ["--config-dir", "--help"]),
        ("pflsweep data show sw", []),
        ("pflsweep data show rep", []),
        ("pflsweep check fedal", ["fedala"]),
        ("pflsweep --config-dir ", []),
        ("pflsweep --config-dir nowhere algorithm=pg", []),
        ("pflsweep algorithm=nothing train.l", ["train.last_batch=", "train.lr=", "train.lr_decay=", "train.lr_of="]),
    ],
)
def test_what_is_offered(line: str, wanted: list[str]) -> None:
    assert candidates(line) == wanted


def test_tab_waits_for_no_large_library() -> None:
    code = (
        "import sys; from pflsweep.commands.main import main; main(['completion', '--query', 'pflsweep sweep=fed']); "
        "heavy = {'torch', 'mlflow', 'numpy', 'pandas', 'optuna'} & {*sys.modules}; sys.exit(', '.join(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "sweep=fedala/table1\n" in done.stdout
    assert done.stderr.strip() == ""


def test_sweeps_are_offered_as_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One's own are among them, and what they include is not."""
    for name in ("mine/first", "mine/common/all", "space/mine"):
        Path(f"sweeps/{name}.yaml").parent.mkdir(parents=True, exist_ok=True)
        Path(f"sweeps/{name}.yaml").write_text("{settings: {a: dataset=digits}, methods: {local: algorithm=local}}")
    main(["list", "sweeps"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "mine/first" in listed
    assert candidates("pflsweep sweep=") == sorted(f"sweep={name}" for name in listed)


def test_every_command_and_ones_own_options_are_offered() -> None:
    assert set(COMMANDS) <= set(candidates("pflsweep "))
    Path("mine/algorithm").mkdir(parents=True)
    Path("mine/algorithm/pgmine.yaml").write_text("_target_: pflsweep.algorithms.fedavg.FedAvg\n")
    for flag in ("--config-dir mine", "--config-dir=mine", "-cd mine"):
        assert "algorithm=pgmine" in candidates(f"pflsweep {flag} algorithm=pg")
        assert candidates(f"pflsweep {flag} check pgm") == ["pgmine"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_installing_twice_is_installing_once(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    rc = {"bash": ".bashrc", "zsh": ".zshrc"}.get(shell)
    if rc:
        (tmp_path / rc).write_text("export MINE=1")
    assert main(["completion", "--install", shell]) == 0
    first = {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    assert main(["completion", "--install", shell]) == 0
    assert {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()} == first
    assert "new shells" in capsys.readouterr().out
    assert SCRIPTS[shell] in first.values()
    if rc:
        assert first[tmp_path / rc].startswith("export MINE=1\n")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert main(["completion", "--install", shell]) == 2
    assert f"`pflsweep completion {shell}` prints the script" in capsys.readouterr().err


def test_an_unknown_shell_is_named(capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", "--install", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err


@pytest.mark.slow
def test_in_a_real_bash(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "pflsweep"
    command.parent.mkdir()
    code = "import sys; from pflsweep.commands.main import main; sys.exit(main())"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{code}" "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{command.parent}:{os.environ['PATH']}", "PS1": "$ "}
    environment = {key: value for key, value in environment.items() if not key.startswith("XDG_")}
    subprocess.run([command, "completion", "--install", "bash"], check=True, env=environment, capture_output=True)
    pressed = {
        "pflsweep rep\t": "pflsweep report ",
        "pflsweep algorithm=pgfed_\t": "pflsweep algorithm=pgfed_ce",
        "pflsweep -m algorithm=local,knn\t": "pflsweep -m algorithm=local,knnper",
        "pflsweep partition=shards partition.sh\t": "pflsweep partition=shards partition.shards_per_client=",
        "pflsweep list alg\t": "pflsweep list algorithms ",
    }
    for keys, line in pressed.items():
        assert typed(keys, line, environment).endswith(line), keys


def typed(keys: str, wanted: str, environment: dict[str, str], seconds: float = 60) -> str:
    """Return what an interactive bash shows after these keys, as soon as that is what is expected."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", "-i"], environment)
    try:
        shown, sent, until = "", False, time.monotonic() + seconds
        while time.monotonic() < until and not shown.endswith(wanted):
            if not select.select([terminal], [], [], 0.5)[0]:
                continue
            shown = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]|\x07|\r", "", shown + os.read(terminal, 4096).decode())
            if not sent and shown.endswith(("$ ", "# ")):
                os.write(terminal, keys.encode())
                sent = True
        return shown
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
