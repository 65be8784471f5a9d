"""What a page says is missing: the commands that train it, parsed by the sweeper."""

import re
import shlex
from contextlib import chdir
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pflsweep.commands.report import main
from pflsweep.report.paper import layout, store
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.store import Store, TrialReader
from pflsweep.sweep.planner import select
from pflsweep.sweep.spec import read_table
from tests.report.paper.fixtures import Sweep

C25, C50 = "cifar10/clients25", "cifar10/clients50"
ALL = [[1, 2, 3, 4], [2, 3, 4, 5]]
Cells = set[tuple[str, str]]


def commands(folder: Path, name: str, runs: str = "runs") -> dict[str, list[str]]:
    """Return each command of the page's section, and the lines below it."""
    with chdir(folder):
        main([name, "--runs", runs, "--out", "out"])
    text = (folder / "out" / name / "README.md").read_text()
    section = text.partition("<summary>Missing and failed</summary>\n")[2].partition("</details>")[0]
    return {
        part.partition("` fills:\n")[0]: re.findall(r"^  - (.*)$", part, re.MULTILINE)
        for part in re.split(r"^- `", section, flags=re.MULTILINE)[1:]
    }


def trained_by(command: str) -> Cells:
    """Return setting and method of all that a command trains."""
    words = dict(word.split("=", 1) for word in shlex.split(command)[2:])
    only = OverridesParser.create().parse_override(f"only={words['only']}").value() if "only" in words else []
    return set(select(read_table(words["sweep"], words["scale"]), list(map(str, only))).cells)


def asked(name: str) -> Cells:
    """Return the cells of a page's own rows and of those that they are measured against."""
    of = Comparison(layout.read(name), Store(TrialReader(Path("nowhere")), "small", []))
    return {(trials.setting, trials.method) for trials in of.trials_by_cell}


@pytest.mark.slow
@pytest.mark.parametrize("name", layout.names())
def test_of_what_nobody_has_begun_one_command_trains_all(tmp_path: Path, name: str) -> None:
    sweep = Sweep(tmp_path / "runs", name="of_my_own")
    sweep.add("mine/a", "local", {0: ALL[0], 1: ALL[1]})
    sweep.write()
    (command,) = commands(tmp_path, name)
    assert trained_by(command) == asked(name)


def test_a_command_says_nothing_of_the_machine_on_which_it_ran(tmp_path: Path) -> None:
    elsewhere = "paths.runs=/scratch/runs data.root=/data device=cuda checkpoint.every=9 train.threads=1 tracking=none"
    for runs, kept in (("runs", "tracking=none"), ("/scratch/runs", "paths.runs=/scratch/runs tracking=none")):
        command = f"pflsweep -m sweep=pgfed/table1 {elsewhere} seed=0"
        assert store._portable(command, Path(runs)) == f"pflsweep -m sweep=pgfed/table1 {kept} seed=0"


def test_rows_and_columns_that_are_missing_are_trained_like_those_beside_them(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs")
    for method in ("local", "fedavg"):
        sweep.add(C25, method, {0: ALL[0], 1: ALL[1]}, train__precision="bf16")
    sweep.write(command=f"pflsweep -m sweep=pgfed/table1 'only=[{C25},local,fedavg]' scale=small train.precision=bf16")
    found = commands(tmp_path, "pgfed/table1")
    cells = asked("pgfed/table1")
    mine = {cell for cell in cells if cell[0] == C25} - {(C25, "local"), (C25, "fedavg")}
    by_command = {command: trained_by(command) for command in found}
    other, rows = sorted(by_command, key=lambda command: f"'only=[{C25}," in command)
    assert by_command[rows] == mine
    assert by_command[other] == {cell for cell in cells if cell[0] != C25}
    assert all(command.endswith("scale=small train.precision=bf16") for command in found)


def test_what_a_command_has_begun_it_ends(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs")
    sweep.add(C25, "local", {0: ALL[0]})
    begun = f"pflsweep -m sweep=pgfed/table1 'only=[{C25}]' scale=small train.precision=bf16"
    sweep.write(command=begun)
    found = commands(tmp_path, "pgfed/table1")
    assert found[begun] == ["CIFAR10, 25 clients: local"]
    (rest,) = (command for command in found if f"'only=[{C25}," in command)
    assert trained_by(rest) == {cell for cell in asked("pgfed/table1") if cell[0] == C25 and cell[1] != "local"}


def test_a_figure_of_two_rows_does_not_ask_for_all_of_its_table(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs")
    for method in ("local", "pgfed", "pgfedmo"):
        sweep.add(C25, method, {0: ALL[0], 1: ALL[1]})
    sweep.write()
    (command,) = commands(tmp_path, "pgfed/gains")
    assert {method for _, method in trained_by(command)} == {"local", "pgfed", "pgfedmo"}
    assert {setting for setting, _ in trained_by(command)} == {cell[0] for cell in asked("pgfed/gains")} - {C25}


def test_a_name_that_hydra_wants_quoted(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", name="fedfomo/figure3")
    done = "cifar10/latent5;epsilon0.0"
    for method in ("fedfomo_n2", "fedfomo_n5", "fedfomo_n10", "fedfomo_n15"):
        sweep.add(done, method, {0: ALL[0], 1: ALL[1]}, algorithm__models=int(method.rpartition("n")[2]))
    sweep.write()
    (command,) = commands(tmp_path, "fedfomo/figure3")
    assert trained_by(command) == {cell for cell in asked("fedfomo/figure3") if cell[0] != done}


def test_a_seed_that_failed_is_not_said_to_be_missing(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs")
    sweep.add(C25, "local", {0: ALL[0]})
    sweep.group(C25, "local")["failed"]["1"] = "Diverged: no client's loss is finite"
    sweep.write()
    found = commands(tmp_path, "pgfed/table1")
    assert all((C25, "local") not in trained_by(command) for command in found)
    text = (tmp_path / "out/pgfed/table1/README.md").read_text()
    assert "- local cifar10/clients25 seed 1 failed: Diverged: no client's loss is finite\n" in text
    assert "(1 of 2 seeds)" in text


def test_all_rows_of_a_column_are_a_word(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs")
    sweep.add(C25, "local", {0: ALL[0], 1: ALL[1]})
    sweep.write()
    said = [line for lines in commands(tmp_path, "pgfed/table1").values() for line in lines]
    assert "CIFAR100, 100 clients: all rows" in said
    assert any(line.startswith("CIFAR10, 25 clients: fedavg, feddyn, pfedme") for line in said)


@pytest.mark.parametrize(
    ("runs", "more", "hint"),
    [("runs", "", ""), ("carried", "", "carried"), ("my runs", "", "'my runs'"), ("carried", "paths.runs=carried", "")],
)
def test_where_records_of_another_folder_are_brought(tmp_path: Path, runs: str, more: str, hint: str) -> None:
    sweep = Sweep(tmp_path / runs)
    sweep.add(C25, "local", {0: ALL[0], 1: ALL[1]})
    sweep.write(command=f"pflsweep -m sweep=pgfed/table1 scale=small {more}")
    commands(tmp_path, "pgfed/table1", runs)
    text = (tmp_path / "out/pgfed/table1/README.md").read_text()
    assert ("pflsweep record import" in text) is bool(hint)
    assert f"`pflsweep record import {hint} --no-tracking`" in text or not hint
