"""The command line as a user meets it: words, messages, exit codes, sweeps."""

import errno
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from pflsweep import __version__
from pflsweep.commands import main as commands_main
from pflsweep.commands.list import GROUP_OF
from pflsweep.commands.main import main
from pflsweep.sweep.status import summary
from pflsweep.util import files
from tests.sweep.sweeping import run_here

SMALL = ["tracking=none", "partition.clients=6", "model.hidden=[16]", "train.epochs=1", "train.rounds=2"]
COMMAND = "import sys; from pflsweep.commands.main import main; sys.exit(main())"

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["algorithm=fedavgg"], ["algorithm=fedavgg", "Did you mean 'fedavg'"]),
        (["train.lrr=1"], ["train.lrr", "Did you mean 'train.lr'"]),
        (["+unknown=1", "tracking=none"], ["Unknown config key 'unknown'"]),
        (["train.participation=0", "tracking=none"], ["train.participation is 0", "above 0"]),
        (["algorithm=local,fedavg"], ["add -m"]),
        (["train.lr=1", "fedprox"], ["'fedprox' cannot be read as key=value"]),
        (["-m", "train.lr=1", "fedprox", "seed=1"], ["'fedprox' cannot be read as key=value"]),
        (["lst"], ["Unknown command 'lst'", "Did you mean 'list'"]),
        (["fedavg"], ["Did you mean algorithm=fedavg"]),
        (["list", "models", "--config-dir", "nowhere"], ["no folder 'nowhere'"]),
        (["list", "model"], ["Did you mean 'models'"]),
        (["report", "runs", "--bseline", "x"], ["--bseline", "Did you mean '--baseline'"]),
        (["report", "runs", "--rnus=x"], ["Did you mean '--runs'"]),
        (["list"], ["list: name what to list", "algorithms"]),
        (["list", "models", "--config-dri", "x"], ["Did you mean '--config-dir'"]),
        (["ui", "--port", "many"], ["argument --port: invalid int value: 'many'"]),
        (["check", "--config-dri", "x"], ["pflsweep check"]),
        (["--multrun"], ["Unknown flag '--multrun'", "--multirun"]),
        (["-v"], ["Unknown flag '-v'"]),
        (["--cfg"], ["--cfg", "expected one argument"]),
        (["--resolve"], ["--resolve", "--cfg"]),
        (["-m", "--cfg", "job"], ["Only one of", "--multirun", "--cfg"]),
        (["--experimental-rerun", "x.pickle"], ["given again"]),
        (["-m", "hydra/sweeper=basic", "seed=0,1"], ["hydra/sweeper=basic", "a sweeper of its own"]),
        (["~algorithm"], ["algorithm has to be one option's name"]),
        (["algorithm=[local,fedavg]"], ["algorithm=ONE,OTHER"]),
        (["ala=[0]"], ["option's name", "not to a number"]),
        (["model.hidden=[1000000000000]"], ["model.hidden is [1000000000000]", "up to 1000000000"]),
        (["model.hidden=[1000000,1000000]"], ["model=mlp has 1,000,076,000,010 parameters", "12.0 TB"]),
        (["train.threads=100000"], ["train.threads is 100000", "at most 1024"]),
        (["ui", "--uri", "foo://x"], ["foo://x", "not the address of an MLflow store"]),
        (["ui", "--uri", "http://lab:secret@127.0.0.1:9"], ["MLflow store http://lab@127.0.0.1:9 cannot be used"]),
        (["data", "show", "--out", "a.gif"], ["a.gif", ".svg"]),
        (["--config-dir", "nowhere"], ["There is no folder 'nowhere'"]),
        (["-m", "algorithm=local,fedprox", "algorithm.mu=1"], ["not a key of every option", "algorithm=local"]),
        (["-m", "algorithm=fedprox,local", "algorithm.mu=1"], ["algorithm.mu", "not a key of every option"]),
        (["train.lr=${nothing}"], ["train.lr cannot be resolved"]),
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


@pytest.mark.slow
def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from pflsweep.commands.main import main; main(['--help']); "
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
        ("models", ["mlp", "hidden=[200,200]", "model.name=resnet18", "[name=null, norm=group, groups=8]"]),
        ("metrics", ["fedpg", "S-acc", "subset=0.5"]),
        ("attacks", ["scaled", "A2 in FedPG's Table 3", "share=0.1"]),
        ("privacy", ["dp_sgd", "sigma=1.0"]),
        ("studies", ["trajectory", "FedALA, figure 4"]),
        ("settings", ["fedala_tiny_resnet"]),
    ],
)
def test_list(what: str, words: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(["list", what]) == 0
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == []
    group = Path(commands_main.__file__).parents[2] / "conf" / GROUP_OF[what]
    files = [file for file in group.rglob("*.yaml") if "common" not in file.parts]
    assert len(out.splitlines()) == len(files)


def test_list_scales_has_those_of_ones_own_and_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweeps/scale").mkdir(parents=True)
    Path("sweeps/scale/tiny.yaml").write_text("# a hundred images\nimages: 100\n")
    assert main(["list", "scales"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert list(lines) == ["tiny", "paper", "small", "smoke", "150"]
    assert lines["tiny"] == "a hundred images"
    assert "1.5 million training images a trial" in lines["small"]


def test_list_keys_says_what_a_key_needs(capsys: pytest.CaptureFixture) -> None:
    assert main(["list", "keys"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "; needs train.steps=null (a whole number" in lines["train.epochs=2"]
    assert "needs" not in lines["train.momentum=0.0"]


def test_list_spaces_has_each_method_with_the_sources_of_its_grids(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweeps/space").mkdir(parents=True)
    Path("sweeps/space/mine.yaml").write_text("train.lr: {grid: [0.1, 0.2], source: my notes}")
    Path("sweeps/space/broken.yaml").write_text("train.lr: {grid: []}")
    Path("sweeps/space/empty.yaml").write_text("train.lr: null")
    assert main(["list", "spaces"]) == 0
    spaces = {block.splitlines()[0]: block for block in capsys.readouterr().out.split("\n\n")}
    shipped = Path(commands_main.__file__).parents[2] / "sweeps" / "space"
    methods = {file.relative_to(shipped).with_suffix("").as_posix() for file in shipped.rglob("*.yaml")}
    assert methods | {"mine", "broken"} <= set(spaces)
    assert spaces["mine"].split() == ["mine", "train.lr", "0.1,", "0.2", "0.1", "to", "0.2", "my", "notes"]
    assert "cannot be read" in spaces["broken"]
    assert spaces["empty"] == "empty\n  nothing is searched"
    (share,) = [line.split() for line in spaces["fedala"].splitlines() if "algorithm.share" in line]
    assert share[-6:] == ["0.05", "to", "1", "FedALA,", "table", "1"]


def test_list_readings_has_the_others_where_one_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweeps/reading").mkdir(parents=True)
    Path("sweeps/reading/mine.yaml").write_text("changes: {}")
    assert main(["list", "readings"]) == 0
    out = capsys.readouterr().out
    assert "mine: cannot be read: sweeps/reading/mine.yaml: it needs `code`" in out
    assert "fedala: FedALA, first release" in out


def test_help_is_in_groups_and_names_every_command(capsys: pytest.CaptureFixture) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    heads = ["Commands", "Most used keys", "Options, before or after", "Config groups", "Every key", "Where more is"]
    places = [out.index(head) for head in heads]
    assert places == sorted(places)
    commands = out[places[0] : places[1]]
    assert re.findall(r"^ {2}(\w+) ", commands, re.MULTILINE) == list(commands_main.COMMANDS)
    assert "${" not in re.sub(r"\$\{oc\.env:[^}]*\}", "", out), "but for keys that the environment sets"
    first = out[: places[3]].splitlines()
    assert len(first) < 45, "one screen"
    assert max(map(len, first)) <= 100


@pytest.mark.parametrize(
    "argv",
    [
        ["--config-dir", "own", "list", "algorithms"],
        ["--config-dir=own", "list", "algorithms"],
        ["list", "--config-dir", "own", "algorithms"],
        ["list", "algorithms", "-cd", "own"],
        ["-cd", "own", "list", "algorithms"],
    ],
)
def test_options_stand_before_or_after_a_command(argv: list[str], capsys: pytest.CaptureFixture) -> None:
    Path("own/algorithm").mkdir(parents=True)
    Path("own/algorithm/mine.yaml").write_text("_target_: pflsweep.algorithms.fedavg.FedAvg\n")
    assert main(argv) == 0
    assert "\nmine " in capsys.readouterr().out


@pytest.mark.parametrize("described", [True, False])
def test_a_class_of_ones_own_describes_itself_where_its_file_does_not(
    described: bool, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"listed_{described}".lower()
    doc = '    """Average twice."""\n' if described else ""
    Path(f"{module}.py").write_text(
        "from dataclasses import dataclass\nfrom pflsweep.algorithms.fedavg import FedAvg\n\n"
        f"@dataclass(frozen=True, kw_only=True)\nclass Mine(FedAvg):\n{doc}    paper = 'ours'\n"
    )
    Path("own/algorithm").mkdir(parents=True)
    Path("own/algorithm/mine.yaml").write_text(f"_target_: {module}.Mine\n")
    monkeypatch.syspath_prepend(Path.cwd())
    assert main(["--config-dir", "own", "list", "algorithms"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("mine "))
    assert line.split(maxsplit=1)[1] == ("ours: Average twice" if described else "ours")


def test_a_folder_of_options_that_is_called_as_a_command_is_a_folder(capsys: pytest.CaptureFixture) -> None:
    Path("list/algorithm").mkdir(parents=True)
    Path("list/algorithm/mine.yaml").write_text("_target_: pflsweep.algorithms.fedavg.FedAvg\n")
    assert main(["--config-dir", "list", "algorithm=mine", "--cfg", "job"]) == 0
    assert "FedAvg" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["help", "list"], ["--help", "list"], ["list", "--help"]])
def test_help_of_a_command_wherever_it_is_asked_for(argv: list[str], capsys: pytest.CaptureFixture) -> None:
    assert main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: pflsweep list")


def test_commands_that_need_no_options_of_ones_own_take_their_folder(capsys: pytest.CaptureFixture) -> None:
    assert main(["--config-dir", "own", "report", "runs"]) == 2
    assert "There is no folder 'own' of config groups" in capsys.readouterr().err
    Path("own").mkdir()
    assert main(["--config-dir", "own", "report", "runs", "--runs", "nowhere"]) == 2
    assert "There is no folder of runs 'nowhere'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_long_sweep_says_so_before_it_starts_and_a_short_one_does_not(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["-m", "algorithm=local,fedavg", *SMALL]
    assert main([*command, "paths.runs=a"]) == 0
    assert "on this machine" not in capsys.readouterr().err
    monkeypatch.setattr(summary, "LONG", 0)
    assert main([*command, "paths.runs=b"]) == 0
    before, _, after = capsys.readouterr().err.partition(": 2 trials")
    assert re.search("at least .* on this machine with 1 worker, by the speed of plain gradient steps", before)
    assert "on this machine" not in after
    assert main([*command, "seed=1", "paths.runs=b"]) == 0
    assert re.search(r"about .* by the speed of its own runs \(2\)", capsys.readouterr().err)
    assert summary.duration(3.6 * 86400) == "3.6 days"


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert main(["list", "--version"]) == 0
    assert capsys.readouterr().out == f"pflsweep {__version__}\n"
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pflsweep {__version__}\n"
    module = subprocess.run([sys.executable, "-m", "pflsweep", "--version"], capture_output=True, text=True)
    assert (module.returncode, module.stdout) == (0, f"pflsweep {__version__}\n")


BROKEN = {
    "nothing.yaml": (b"beta: 1", "`_target_` is missing"),
    "five.yaml": (b"_target_: 5", "`_target_` is 5"),
    "latin.yaml": (b"# m\xe9", "codec can't decode"),
    "index.yaml": (b"_target_: failing.Method", "IndexError: list index out of range"),
}


@pytest.mark.slow
@pytest.mark.parametrize("file", BROKEN)
def test_a_broken_option_of_ones_own_is_explained(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    content, why = BROKEN[file]
    Path("own/algorithm").mkdir(parents=True)
    Path("own/algorithm", file).write_bytes(content)
    Path("failing.py").write_text("import os\n\n[1][3]\n")
    monkeypatch.syspath_prepend(Path.cwd())
    option = file.partition(".")[0]
    # The other options are still shown
    assert main(["list", "algorithms", "--config-dir", "own"]) == 0
    out = capsys.readouterr().out
    assert "fedala " in out
    assert why in next(line for line in out.splitlines() if line.startswith(f"{option} "))
    for command in (["check", option, "--config-dir", "own", "beta=2"], [f"algorithm={option}", "--config-dir=own"]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert why in err
        assert err.count("\n") == 1
        assert (f"{Path.cwd()}/failing.py, line 3" in err) == (option == "index")


def test_a_single_run_ends_with_its_table(capsys: pytest.CaptureFixture) -> None:
    assert main([*SMALL, "algorithm=fedavg"]) == 0
    out, err = capsys.readouterr()
    assert "fedavg" in out
    assert "pflsweep report runs" in out
    assert "3 of 6 clients" in err
    assert [path.name for path in Path().iterdir()] == ["runs"]


@pytest.mark.slow
def test_without_a_word_one_trial_of_the_defaults_is_trained(tmp_path: Path) -> None:
    done = run_here(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedavg" in done.stdout


def test_a_trial_that_diverges_says_so_in_a_paragraph_each_time(capsys: pytest.CaptureFixture) -> None:
    for _ in range(2):
        assert main([*SMALL, "train.lr=1e30"]) == 1
        out, err = capsys.readouterr()
        said = "The trial has diverged: no client's loss is finite after round 1: a smaller train.lr may help."
        assert err.endswith(f"pflsweep: {said}\n")
        assert "Traceback" not in err
        assert out == ""


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
    assert len(list(Path("runs").glob("*/meta.json"))) == 2
    assert [path.name for path in Path().iterdir()] == ["runs"]
    assert main(command) == 0
    again = capsys.readouterr()
    assert again.out == first
    assert "all 2 trials are done, nothing is left to run" in again.err


@pytest.mark.slow
def test_a_failing_trial_does_not_end_the_sweep(capsys: pytest.CaptureFixture) -> None:
    assert main(["-m", "partition.clients=5000,6", *[o for o in SMALL if "clients" not in o]]) == 2
    out, err = capsys.readouterr()
    assert "fedavg" in out
    assert "partition.clients=5000" in err
    assert "1797 samples" in err
    assert "1 of 2 trials failed" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_the_same_trial_twice_is_no_second_seed(capsys: pytest.CaptureFixture) -> None:
    assert main(["-m", "train.lr=1,1.0", *SMALL]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["fedavg"]]
    assert row[1] == "1"


def test_the_next_command_that_is_named_works(capsys: pytest.CaptureFixture) -> None:
    assert main([*SMALL, "paths.runs='a place'"]) == 0
    command = re.search("`pflsweep (report [^`]*)`", capsys.readouterr().out)
    assert command
    assert main(shlex.split(command[1])) == 0
    assert Path("reports/comparison/runs.md").exists()


@pytest.mark.slow
# Warnings of MLflow and SQLAlchemy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("clients", "code"), [("5000,6000", 2), ("5000,6", 2), ("6", 0)])
def test_how_a_sweep_ended_stands_in_its_run(clients: str, code: int) -> None:
    small = [o for o in SMALL if "clients" not in o and "tracking" not in o]
    assert main(["-m", f"partition.clients={clients}", *small]) == code
    with sqlite3.connect("mlflow.db") as store:
        tag = "select run_uuid from tags where key = 'pflsweep.sweep'"
        (status,) = store.execute(f"select status from runs where run_uuid = ({tag})").fetchone()
        (named,) = store.execute(f"select value from tags where key = 'failed' and run_uuid = ({tag})").fetchone()
    assert status == ("FAILED" if code else "FINISHED")
    assert ("the trial fedavg partition.clients=5000 seed=0 failed" in named) == bool(code)


def test_a_trial_that_a_store_refuses_leaves_nothing(capsys: pytest.CaptureFixture) -> None:
    Path("mlflow.db").write_text("this is a diary\n" * 100)
    assert main([o for o in SMALL if "tracking" not in o]) == 2
    assert "not a database" in capsys.readouterr().err
    assert main(["partition.clients=5000", *[o for o in SMALL if "clients" not in o and "tracking" not in o]]) == 2
    assert [path.name for path in Path().iterdir()] == ["mlflow.db"]


def test_bad_input_with_tracking_leaves_nothing() -> None:
    assert main(["partition.clients=5000"]) == 2
    assert list(Path().iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_in_a_sweep_ends_it_and_the_same_command_continues() -> None:
    command = [sys.executable, "-c", COMMAND]
    # So long that no machine ends it before the signal, which comes once the record has rounds
    command += ["-m", "seed=0,1,2", *SMALL, "train.rounds=1000000", "checkpoint.every=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        while process.poll() is None and not list(Path("runs").glob("*/rounds.parquet")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    said = "stopped after round [0-9]+ of 1000000\n3 of 3 trials are left; give the same command again to continue"
    assert re.search(said, rest)
    (folder,) = (file.parent for file in Path("runs").glob("*/meta.json"))
    assert '"interrupted"' in (folder / "status.json").read_text()
    assert main([*SMALL, f"train.rounds={len(pd.read_parquet(folder / 'rounds.parquet')) + 1}"]) == 0
    assert list(Path("runs").glob("*/meta.json")) == [folder / "meta.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["-m", "seed=0,1", "algorithm=mine", "--config-dir", "a=b"],
        ["seed=0,1", "--config-dir", "a=b", "algorithm=mine", "-m"],
        ["seed=0,1", "-m", "algorithm=mine", "--config-dir=a=b", "~tracking.every", "+tracking.every=1"],
    ],
)
def test_flags_may_stand_anywhere(argv: list[str], capsys: pytest.CaptureFixture) -> None:
    Path("a=b/algorithm").mkdir(parents=True)
    Path("a=b/algorithm/mine.yaml").write_text("_target_: pflsweep.algorithms.fedavg.FedAvg\n")
    small = [o for o in SMALL if "tracking" not in o] if "~tracking.every" in argv else SMALL
    assert main([*argv, *small, "tracking.backend=none"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["mine"]]
    assert row[1] == "2"


def test_a_text_that_ends_the_command_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def leave(*_: object) -> None:
        raise SystemExit("why it ended")

    monkeypatch.setattr(commands_main, "_word", leave)
    assert main(["list"]) == 1
    assert "why it ended" in capsys.readouterr().err


def test_a_working_directory_that_was_deleted_is_said() -> None:
    code = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); " + COMMAND
    for words in (["list", "models"], SMALL):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        said = "pflsweep: The working directory was deleted: go to another one.\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.slow
def test_a_bug_shows_its_traceback(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import pflsweep.trial.run

    # It is raised in pflsweep itself: of a function here it would be an error in the user's own code
    monkeypatch.setattr(pflsweep.trial.run, "build", None)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        main(SMALL)
    assert "Error executing job" not in capsys.readouterr().err, "Hydra's own words"
    assert main(["-m", "seed=0,1", *SMALL]) == 1
    err = capsys.readouterr().err
    assert err.count("Traceback") == 1, "both trials have the same"
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
    import pflsweep.trial.run

    def stop(*_: object) -> None:
        raise pflsweep.trial.run.Stopped("stopped after round 1 of 2; give the same command again to continue")

    monkeypatch.setattr(pflsweep.trial.run, "build", stop)
    assert main(SMALL) == 130
    assert "stopped after round 1 of 2; give the same command again to continue" in capsys.readouterr().err


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENAMETOOLONG])
def test_a_path_that_cannot_be_used_is_named(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def refused(folder: Path) -> None:
        raise OSError(code, os.strerror(code), str(folder))

    monkeypatch.setattr(files, "require_readable", refused)
    assert main(["report", "runs", "--runs", "locked"]) == 2
    assert capsys.readouterr().err == (
        f"pflsweep: locked cannot be used ({os.strerror(code).lower()}): fix that, or name another path.\n"
    )


def test_an_unreadable_folder_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.require_readable(tmp_path / "none")
    files.require_readable(tmp_path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # for root, a folder's mode does not count
    with pytest.raises(PermissionError, match=str(tmp_path)):
        files.require_readable(tmp_path)


def test_a_flag_that_is_cut_short_is_named_with_the_whole_one(capsys: pytest.CaptureFixture) -> None:
    for words in (["report", "--run", "runs", "runs"], ["report", "runs", "--run", "runs"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "unrecognized arguments: --run" in said
        assert "Did you mean '--runs'" in said
