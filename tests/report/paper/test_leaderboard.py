"""The leaderboard: which methods are ranked over which columns, budgets, and the page of trials that are really
trained.
"""

import csv
import json
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from pflsweep.commands.main import main as pflsweep
from pflsweep.commands.report import main
from pflsweep.records.ledger import ledgers
from pflsweep.report.paper import layout, leaderboard_page
from pflsweep.report.paper.comparison import Comparison
from pflsweep.report.paper.leaderboard import Leaderboard, expected_best
from pflsweep.report.paper.store import Store, TrialReader
from pflsweep.sweep.spec import read_table
from pflsweep.util.errors import UserError
from tests.report.paper.fixtures import Sweep, reproduced

DIR01, DIR03, PAT2 = (f"digits/{each}" for each in ("dir0.1", "dir0.3", "pat2"))
PAGE = Path("reports/benchmark/README.md")
TINY = "dataset=digits partition.clients=4 train.rounds=2 train.epochs=1 model.hidden=[8]"
SWEEP = f"""
seeds: [0, 1]
search: tune=random tune.points=3
settings:
  digits/dir0.1: {TINY} partition.alpha=0.1
  digits/dir0.3: {TINY} partition.alpha=0.3
methods:
  local: algorithm=local
  fedavg: algorithm=fedavg
  fedprox: algorithm=fedprox
  mine: algorithm=fedavgm
"""


def board(runs: Path) -> Leaderboard:
    return Leaderboard(reproduced(runs, "benchmark"))


def labels(of: Leaderboard, rows: list[int]) -> list[str]:
    return [of.label(row) for row in rows]


def test_it_has_a_row_and_a_column_for_all_that_its_sweep_trains() -> None:
    of = layout.read("benchmark")
    table = read_table(of.sweeps[0])
    assert [line.method for line in of.printed if (line.dataset, line.setting) == ("digits", "pat2")] == list(
        table.methods
    )
    assert [f"{column.dataset}/{column.setting}" for column in of.columns] == list(table.settings)


def test_a_search_of_fewer_points_is_all_choices_of_them() -> None:
    # Two score the same
    tested = [(0.8, 0.7), (0.9, 0.6), (0.5, 0.9), (0.9, 0.4)]
    # One diverged
    found = expected_best(tested, 5)

    def best(chosen: tuple[int, ...]) -> float:
        known = [tested[at] for at in chosen if at < len(tested)]
        top = max((score for score, _ in known), default=None)
        return fmean(test for score, test in known if score == top) if known else 0.0

    for k, value in enumerate(found, start=1):
        assert value == pytest.approx(fmean(map(best, combinations(range(5), k)))), k
    assert found[-1] == pytest.approx(0.5)
    assert expected_best([(0.3, 0.25)], 1) == [0.25]


def test_who_lacks_a_column_or_a_seed_is_named_and_not_ranked(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", "benchmark")
    for place in (DIR01, DIR03):
        sweep.add(place, "local", {0: [6, 6], 1: [6, 8]})
        sweep.add(place, "fedavg", {0: [8, 8], 1: [8, 8]})
        sweep.add(place, "ditto", {0: [9, 9], 1: [9, 9]} if place == DIR01 else {0: [9, 9]})
    sweep.add(DIR01, "pgfed", {0: [9, 9], 1: [9, 10]})
    # One method of four does not make a column
    sweep.add(PAT2, "local", {0: [5, 5], 1: [5, 5]})
    sweep.write()
    of = board(tmp_path / "runs")
    assert [of.comparison.layout.columns[at].setting for at in of.columns] == ["dir0.1", "dir0.3"]
    assert labels(of, of.ordered) == ["FedAvg", "Local"]
    assert of.left_out == {"Ditto": ["digits, Dir(0.3)"], "PGFed": ["digits, Dir(0.3)"]}
    assert of.other_columns[0] == "digits, 2 classes"
    assert "APFL" in of.not_begun
    assert "Ditto" not in of.not_begun


def test_the_page_names_who_is_best_and_who_is_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "benchmark", seeds=(0,))
    for place in [f"{dataset}/{part}" for dataset in ("digits", "fmnist") for part in ("dir0.1", "dir0.3", "pat2")]:
        for correct, method in enumerate(("local", "fedavg", "fedprox", "ditto"), start=3):
            sweep.add(place, method, {0: [correct, correct + 1]})
    sweep.write()
    assert main(["benchmark"]) == 0
    text = PAGE.read_text()
    assert text.index("**Ditto** has the best mean rank") < text.index("## All methods")
    # q(4) = 2.569; 2.569 * sqrt(4 * 5 / (6 * 6)) = 1.9
    assert "(χ² = 18.0, p below 0.001); two of them do where their mean ranks are 1.9 apart" in text
    assert "Not told apart from the best, with their mean ranks: FedProx 2.0." in text
    dependent = (
        "The 6 columns are partitions of 2 datasets. The test assumes independent columns, and these are not: read p"
    )
    assert f"**Worse than the best**: FedAvg 3.0, Local 4.0. {dependent} as descriptive.\n" in text
    assert "- **Scale:** **small**, 6 of 9 columns" in text
    rows = [line.split(" | ")[:4] for line in text.splitlines() if re.match(r"\| \d", line)]
    assert rows[0] == ["| 1", "Ditto", "1.0", "65.00"]
    assert [row[1] for row in rows] == ["Ditto", "FedProx", "FedAvg", "Local"]
    svg = ET.parse(PAGE.parent / "ranks.svg").getroot()
    drawn = {name for group in svg.iter("{http://www.w3.org/2000/svg}g") if (name := group.get("id", ""))}
    assert {"critical difference", "rank Ditto", "rank Local"} <= drawn
    assert not (PAGE.parent / "budget.svg").exists(), "nothing was searched"


def test_a_win_with_many_more_images_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "benchmark", seeds=(0,))
    for place in (DIR01, DIR03):
        for correct, method in enumerate(("local", "fedavg", "fedrep"), start=3):
            (record,) = sweep.add(place, method, {0: [correct, correct]})
            file = record.folder / "rounds.parquet"
            times = 4 if method == "fedrep" else 1
            pd.read_parquet(file).assign(images=100 * times).to_parquet(file)
    sweep.write()
    main(["benchmark"])
    text = PAGE.read_text()
    assert "\n- **Cost:** More training images than the median method: FedRep (4.0 times)." in text
    assert "| digits, Dir(0.1) | 3 | 0 | 300 (fedavg) to 1,200 (fedrep) |" in text
    for place in (DIR01, DIR03):
        sweep.add(place, "ditto", {0: [5, 5]})
    sweep.write()
    main(["benchmark"])
    assert "\n- **Cost:**" in PAGE.read_text(), "one of the two that are best trains on more images"


def test_two_columns_are_too_few_to_tell_anybody_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "benchmark", seeds=(0,))
    for place in (DIR01, DIR03):
        for correct, method in enumerate(("local", "fedavg", "fedprox"), start=3):
            sweep.add(place, method, {0: [correct, correct]})
    sweep.write()
    main(["benchmark"])
    assert "Friedman's test does not find that the methods differ (χ² = 4.0, p 0.135)" in PAGE.read_text()
    assert "nobody can be told apart from the best**. The 2 columns are partitions of one dataset." in PAGE.read_text()
    drawn = (PAGE.parent / "ranks.svg").read_text()
    assert 'id="critical difference"' not in drawn
    assert "band" not in drawn


def test_columns_of_as_many_datasets_are_not_said_to_be_dependent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "benchmark", seeds=(0,))
    for place in (DIR01, "fmnist/dir0.1"):
        for correct, method in enumerate(("local", "fedavg", "fedprox"), start=3):
            sweep.add(place, method, {0: [correct, correct]})
    sweep.write()
    main(["benchmark"])
    assert "Friedman's test" in PAGE.read_text()
    assert "independent" not in PAGE.read_text()


def test_the_picture_of_budgets_says_what_its_colour_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "benchmark", seeds=(0,))
    for correct, method in enumerate(("local", "fedavg"), start=3):
        sweep.add(DIR01, method, {0: [correct, correct]})
        tried = [{"point": {"train.lr": lr}, "value": lr, "test": lr} for lr in (0.1, 0.2)]
        sweep.group(DIR01, method).update(points=2, tried=tried)
    sweep.write()
    main(["benchmark"])
    said = "orange: the method with the best mean rank"
    assert said in (PAGE.parent / "budget.svg").read_text()
    assert f"mean over columns; {said}](budget.png)" in PAGE.read_text()


def test_nothing_trained_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "pgfed/table1")
    sweep.add("cifar10/clients25", "local", {0: [6], 1: [6]})
    sweep.write()
    assert main(["benchmark"]) == 0
    text = PAGE.read_text()
    assert "Nothing can be ranked yet at scale **small**" in text
    assert "`pflsweep -m sweep=benchmark scale=small` fills:" in text


def test_methods_that_share_no_column_are_not_ranked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One method of three is no half of them."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "benchmark", seeds=(0,))
    for place, method in ((DIR01, "local"), (DIR03, "fedavg"), (PAT2, "ditto")):
        sweep.add(place, method, {0: [6, 7]})
    sweep.write()
    assert main(["benchmark"]) == 0
    text = PAGE.read_text()
    assert "Nothing can be ranked yet at scale **small**" in text
    assert "\n- Ditto: digits, Dir(0.1); digits, Dir(0.3); " in text
    assert "## All methods" not in text


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="There is no folder of runs 'runs' here"):
        main(["benchmark"])
    Path("runs").mkdir()
    with pytest.raises(UserError, match="--scale smal: no sweep in 'runs' was at that scale"):
        main(["benchmark", "--scale", "smal"])
    file = Path("reports/layouts/mine.yaml")
    file.parent.mkdir(parents=True)
    own = (
        "own_table: {name: a, rows: {local: Local}, columns: {digits/dir0.1: d}}\nmetrics: {acc: {quantity: accuracy}}"
    )
    Path("sweeps").mkdir()
    Path("sweeps/mine.yaml").write_text(
        "settings: {digits/dir0.1: dataset=digits}\nmethods: {local: algorithm=local}\n"
    )
    file.write_text(f"title: t\nsweeps: [mine]\npage: leaderboard\nfigures: [rank]\n{own}\n")
    with pytest.raises(UserError, match=r"figures has 'rank'\. Did you mean 'ranks'"):
        main(["mine"])


@pytest.mark.slow
def test_the_page_of_trained_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's smaller copy of the benchmark, with a method of their own, is searched, trained and reported."""
    monkeypatch.chdir(tmp_path)
    Path("sweeps").mkdir()
    Path("sweeps/benchmark.yaml").write_text(SWEEP)
    quiet = ["tracking=none", "checkpoint.models=false", "checkpoint.keep=false"]
    assert pflsweep(["-m", "sweep=benchmark", *quiet]) == 0
    assert main(["benchmark"]) == 0
    text = PAGE.read_text()
    rows = {cells[1]: cells for line in text.splitlines() if re.match(r"\| \d", line) and (cells := line.split(" | "))}
    assert set(rows) == {"Local", "FedAvg", "FedProx", "mine"}
    assert "Search: 3 points a method and column (`tune=random`), chosen on 20% of each client's training rows" in text
    assert "| digits, Dir(0.1) | 2 | 0, 1 |" in text
    assert {cells[4] for cells in rows.values()} == {"1.0"}, "these methods train on the same images"
    (ledger,) = ledgers(Path("runs"))
    for group in ledger.groups.values():
        assert len(group["tried"]) == 3
        assert all(0 <= each["test"] <= 1 for each in group["tried"])
    of = Leaderboard(Comparison(layout.read("benchmark"), Store(TrialReader(Path("runs")), "paper", [ledger])))
    for row in of.rows:
        method = next(line.method for line in of.comparison.layout.printed if line.row == row)
        searches = [ledger.groups[place, method]["tried"] for place in (DIR01, DIR03)]
        winners = [max(tried, key=lambda each: each["value"]) for tried in searches]
        alike = [
            [e["test"] for e in tried if e["value"] == best["value"]]
            for tried, best in zip(searches, winners, strict=True)
        ]
        curve = of.by_budget(row)
        assert len(curve) == 3
        assert curve[0] == pytest.approx(fmean(e["test"] for tried in searches for e in tried))
        assert curve[-1] == pytest.approx(fmean(map(fmean, alike)))
    lines = list(csv.DictReader((PAGE.parent / "table.csv").read_text().splitlines()))
    means = {line["method"]: float(line["value"]) for line in lines if line["setting"] == "dir0.1" and line["value"]}
    ordered = sorted(means, key=lambda method: -means[method])
    at = [cells[5] for cells in rows.values()]
    assert len(ordered) == 4
    assert f"**{means[ordered[0]]:.2f}" in " ".join(at)
    assert (PAGE.parent / "budget.png").exists()
    assert "ranks.png" in text
    assert json.loads((PAGE.parent / "report.json").read_text())["scale"] == "paper"


def test_the_budget_is_of_the_trials_of_all_seeds() -> None:
    assert leaderboard_page._span([(3000.0, "ditto"), (1000.0, "fedavg"), (5000.0, "ditto")]) == (
        "1,000 (fedavg) to 5,000 (ditto)"
    )
    assert leaderboard_page._span([(3000.0, "ditto"), (3000.0, "fedavg")]) == "3,000"
    assert leaderboard_page._span([(3000.0, "ditto"), (float("nan"), "fedavg")]) == "not recorded"
