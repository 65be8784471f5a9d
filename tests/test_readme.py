"""README's worked example of a method of one's own, run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

README = (Path(__file__).parent.parent / "README.md").read_text()
METHOD, OPTION, SPACE = re.findall(r"^```(?:python|yaml)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with README's files, but for the search space."""
    (tmp_path / "fedavgm.py").write_text(METHOD)
    (tmp_path / "my_conf" / "algorithm").mkdir(parents=True)
    (tmp_path / "my_conf" / "algorithm" / "fedavgm.yaml").write_text(OPTION)
    return tmp_path


def pflsweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from pflsweep.cli import main; sys.exit(main())", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_example_is_an_option_like_all_others(folder: Path) -> None:
    done = pflsweep(
        folder, "--config-dir", "my_conf", "-m", "algorithm=fedavg,fedavgm", "train.rounds=3", "tracking=none"
    )
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    rows = {line[0]: line for line in table if line and line[0] in ("fedavg", "fedavgm")}
    assert set(rows) == {"fedavg", "fedavgm"}
    assert rows["fedavg"][-1] == rows["fedavgm"][-1] == "110,420"  # floats on the wire
    assert rows["fedavg"][2] != rows["fedavgm"][2], "server momentum changes the accuracy"


def test_the_example_passes_the_conformance_suite(folder: Path) -> None:
    beta = yaml.safe_load(OPTION)["beta"]
    done = pflsweep(folder, "check", "fedavgm.FedAvgM", f"beta={beta}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "properties hold" in done.stdout


def test_the_example_is_tuned_over_its_own_space(folder: Path) -> None:
    command = ("--config-dir", "my_conf", "-m", "algorithm=fedavgm", "tune=grid", "plan=true", "tracking=none")
    refused = pflsweep(folder, *command)
    assert refused.returncode == 2
    assert "there is no search space for 'fedavgm'" in refused.stderr
    name = "sweeps/space/fedavgm.yaml"
    assert name in refused.stderr
    assert f"`{name}`" in README
    (folder / "sweeps/space").mkdir(parents=True)
    (folder / name).write_text(SPACE)
    done = pflsweep(folder, *command)
    assert done.returncode == 0, done.stderr
    assert re.search(r"fedavgm +- +4 +5 ", done.stdout), "four points, and the winner's trial"


def test_commands_name_what_exists(folder: Path) -> None:
    """Every option that README's commands choose is there."""
    conf = Path(__file__).parent.parent / "conf"
    chosen = re.findall(r"\b(algorithm|dataset|partition|model|ala|tracking)=([\w,]+)", README)
    assert chosen
    for group, options in chosen:
        for option in options.split(","):
            own = folder / "my_conf" / group / f"{option}.yaml"
            assert (conf / group / f"{option}.yaml").exists() or own.exists(), f"{group}={option}"


def test_what_readme_shows_is_there() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / link).exists(), link
    assert not re.findall(r"^[A-Z_]{4,}$", README, flags=re.MULTILINE), "a place holder"


def test_the_table_that_is_shown_is_the_committed_one() -> None:
    """Row by row, ours and print's, as reports/fedpg/table1 has them."""
    table = pd.read_csv(Path(__file__).parent.parent / "reports" / "fedpg" / "table1" / "table.csv")
    table = table[table["dataset"] == "fmnist"].set_index(["method_label", "metric"])
    shown = re.findall(r"^\| ([^|]+) \| ([\d.]+ \([\d.]+\).*) \|$", README, flags=re.MULTILINE)
    assert [name for name, _ in shown] == list(dict.fromkeys(table.index.get_level_values(0)))
    for name, cells in shown:
        for metric, cell in zip(("l_acc", "s_acc", "g_acc", "gm_acc"), cells.split(" | "), strict=True):
            if (name, metric) not in table.index:
                assert cell == "-"
                continue
            made = table.loc[name, metric]
            ours, printed = cell.removesuffix(")").split(" (")
            assert float(printed) == made["printed"], (name, metric)
            value = np.nan if ours == "none" else float(ours)
            assert value == pytest.approx(made["value"], abs=6e-4, nan_ok=True), (name, metric)
