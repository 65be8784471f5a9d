"""What `pflsweep report` writes for a paper's table: pages, CSV, LaTeX, figures, the index.

`python -m tests.report.paper.test_pages` writes the golden report again.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pflsweep.commands.report import main
from pflsweep.records.ledger import ledgers
from pflsweep.report import style
from pflsweep.report.paper import (
    against_print,
    build,
    deviations,
    export,
    layout,
    origin,
    page,
    page_table,
    published,
    verdict,
    winners,
)
from pflsweep.report.paper.figures import SavedFigures
from pflsweep.report.paper.links import Links
from pflsweep.report.paper.reproduction import Reproduction, Stores, reproduction
from pflsweep.report.paper.store import CellTrials, TrialReader
from pflsweep.util.errors import UserError
from tests.report.paper.fixtures import Sweep, create, heights, place, reproduced, train

GOLDEN = Path(__file__).parent / "golden"
FILES = ("README.md", "table.csv", "table.tex")
C25 = "cifar10/clients25"


def small_store(runs: Path) -> Sweep:
    """Return runs of two settings with a failed trial, a running one, one that no ledger names, and untrained rows."""
    sweep = Sweep(runs)
    numbers = {"local": (4, 5), "fedavg": (2, 4), "fedrod": (7, 7), "pgfed": (7, 8), "pgfedmo": (8, 8)}
    for method, (first, second) in numbers.items():
        sweep.add(C25, method, {0: [first] * 4, 1: [second, second, first, first]})
    sweep.add("cifar10/clients50", "pgfed", {0: [6, 7, 8, 9]})
    sweep.group("cifar10/clients50", "pgfed")["failed"]["1"] = "ValueError: the loss\nis nan"
    running = train(create(runs, "apfl", 0, dataset___option_=place(C25)), [[1, 1, 1, 1]])
    sweep.name_trial(C25, "apfl", 0, running)
    create(runs, "ditto", 5)
    pgfed = sweep.group(C25, "pgfed")
    pgfed |= {"space": {"algorithm.mu": [0.1, 0.5]}, "winner": {"algorithm.mu": 0.1}, "winner_value": 0.8125}
    pgfed |= {"points": 2, "failed_points": ["it broke"]}
    sweep.write()
    return sweep


def report(folder: Path) -> Path:
    """Write the report of the small store into a folder."""
    with chdir(folder):
        small_store(Path("runs"))
        main(["pgfed/table1", "--out", "out"])
    return folder / "out" / "pgfed" / "table1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report(tmp_path_factory.mktemp("report"))


def test_what_a_person_has_read_in_it_stays_on_the_page(tmp_path: Path) -> None:
    folder = report(tmp_path)
    (folder / "DISCUSSION.md").write_text("Why: it has *two* rounds.\nPGFed leads by **one** client.\n")
    with chdir(tmp_path):
        main(["pgfed/table1", "--out", "out"])
    discussion = "<summary>Discussion</summary>\n\nPGFed leads by **one** client.\n\n</details>\n"
    assert discussion in (folder / "README.md").read_text()
    shown = "<summary>Discussion</summary>\n<p>PGFed leads by <strong>one</strong> client.</p>\n</details>"
    assert shown in (folder / "page.html").read_text()
    assert (
        "\n- **Why:** 3 of the paper's 300 rounds (scale small); it has *two* rounds.\n"
        in (folder / "README.md").read_text()
    )
    assert (folder / "DISCUSSION.md").exists()


def test_a_page_is_made_of_records_that_lack_columns(tmp_path: Path) -> None:
    with chdir(tmp_path):
        sweep = Sweep(Path("runs"))
        for seed, record in enumerate(sweep.add(C25, "pgfed", {0: [6, 7, 8, 9], 1: [6, 7, 8, 9]})):
            file = record.folder / "rounds.parquet"
            needed = ["round", "seconds", "eval_seconds", "personal_accuracy"]
            pd.read_parquet(file)[needed].to_parquet(file)
            assert record.meta["seed"] == seed
        sweep.write()
        assert main(["pgfed/table1", "--out", "out"]) == 0
        assert main(["pgfed/communication", "--out", "out"]) == 0
        assert "75.00" in Path("out/pgfed/table1/README.md").read_text()


def test_gradients_of_less_than_fp32_are_said(tmp_path: Path) -> None:
    with chdir(tmp_path):
        sweep = Sweep(Path("runs"))
        sweep.add(C25, "pgfed", {0: [6, 7, 8, 9]}, train__precision="bf16")
        sweep.write()
        main(["pgfed/table1", "--out", "out"])
        text = Path("out/pgfed/table1/README.md").read_text()
        assert "\n- gradients in bf16 (`train.precision`)\n" in text


def test_a_precision_of_some_columns_and_rows_is_said_of_those(tmp_path: Path) -> None:
    with chdir(tmp_path):
        sweep = Sweep(Path("runs"))
        sweep.add(C25, "pgfed", {0: [6, 7, 8, 9]}, train__precision="bf16")
        sweep.add(C25, "local", {0: [6, 7, 8, 9]})
        sweep.add("cifar10/clients50", "local", {0: [6, 7, 8, 9]})
        sweep.write()
        main(["pgfed/table1", "--out", "out"])
        text = Path("out/pgfed/table1/README.md").read_text()
        assert f"\n- gradients in bf16 (`train.precision`) ({C25} of pgfed)\n" in text


def test_clients_with_fewer_classes_than_stated_are_said(tmp_path: Path) -> None:
    with chdir(tmp_path):
        sweep = Sweep(Path("runs"), "fedfomo/table1")
        same = {"partition__classes_per_client": 2}
        (record,) = sweep.add("mnist/clients15", "local", {0: [6, 7, 8, 9]}, **same)
        sweep.write()
        for least, said in ((2, False), (1, True)):
            meta = {**record.meta, "statistics": {"classes_min": least, "emd_code": 3.0}}
            (record.folder / "meta.json").write_text(json.dumps(meta))
            main(["fedfomo/table1", "--out", "out"])
            text = Path("out/fedfomo/table1/README.md").read_text()
            assert ("here some clients have 1, dealt more than once (mnist clients15)" in text) is said


def test_rows_of_one_column_with_different_rounds_are_said(tmp_path: Path) -> None:
    with chdir(tmp_path):
        sweep = Sweep(Path("runs"))
        for method in ("local", "fedavg", "pgfed"):
            sweep.add(C25, method, {0: [6, 7, 8, 9]})
        sweep.write()
        assert main(["pgfed/table1", "--out", "out"]) == 0
        assert "rows of one column" not in Path("out/pgfed/table1/README.md").read_text()
        sweep.groups[C25, "fedavg"]["config"]["train.rounds"] = 2
        sweep.write()
        assert main(["pgfed/table1", "--out", "out"]) == 0
        text = Path("out/pgfed/table1/README.md").read_text()
    said = f"**rows of one column differ in `train.rounds`** ({C25}): 2 for fedavg; 3 for local, pgfed"
    assert f"\n- {said}\n" in text
    assert text.count("rows of one column differ") == 1


def test_rows_differ_in_no_key_that_is_younger_than_a_ledger_or_searched_or_said_as_precision(tmp_path: Path) -> None:
    with chdir(tmp_path):
        sweep = Sweep(Path("runs"))
        for method in ("local", "fedavg", "pgfed"):
            sweep.add(C25, method, {0: [6, 7, 8, 9]})
        young, searched, rounded = (sweep.groups[C25, method] for method in ("local", "fedavg", "pgfed"))
        for key in ("train.sampling", "train.precision", "train.optimiser_state"):
            young["config"].pop(key, None)
        searched["config"]["train.epochs"] = 7
        searched["space"], searched["winner"] = {"train.epochs": []}, {"train.epochs": 2}
        rounded["config"]["train.precision"], rounded["trials"] = "bf16", {}
        sweep.write()
        assert main(["pgfed/table1", "--out", "out"]) == 0
        text = Path("out/pgfed/table1/README.md").read_text()
    assert "rows of one column" not in text
    assert "gradients in bf16 (`train.precision`)" in text


def test_accuracies_stand_once_more_with_each_test_sample_counting_the_same(tmp_path: Path) -> None:
    """They are of the best round, like the table; FedALA's tables weight samples themselves."""
    heading = "<summary>With each test sample counting the same</summary>"
    for name, setting in (("pgfed/table1", C25), ("fedala/table2", "cifar10/dir0.1")):
        (tmp_path / name).mkdir(parents=True)
        with chdir(tmp_path / name):
            sweep = Sweep(Path("runs"), name)
            records = sweep.add(setting, "fedavg", {0: [6, 7, 8, 9], 1: [6, 7, 8, 9]})
            sweep.write()
            assert main([name, "--out", "out"]) == 0
            assert heading not in Path(f"out/{name}/README.md").read_text(), "all clients have as many"
            for record, last in zip(records, (0.1, -0.1), strict=True):
                rounds = record.rounds.assign(personal_accuracy_weighted=[0.5, 0.7 + last, last])
                rounds.to_parquet(record.folder / "rounds.parquet")
            assert main([name, "--out", "out"]) == 0
            text = Path(f"out/{name}/README.md").read_text()
        shown = text.partition(heading)[2].partition("</details>")[0] if name == "pgfed/table1" else text
        (row, *_) = (line for line in shown.splitlines() if line.startswith("| FedAvg"))
        assert "70.00 ± 14.14" in row
        assert name != "pgfed/table1" or "≠" not in row, "its own std decides: by clients both seeds have 75%"
        assert (heading in text) == (name == "pgfed/table1")


def test_rows_with_all_columns_come_first_and_a_column_of_one_row_ranks_nothing(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    numbers = {"local": (4, 4, None), "pgfed": (6, 6, None), "apfl": (9, None, None), "fedavg": (None, None, 2)}
    numbers |= {"mine": (5, None, None)}
    for method, by_column in numbers.items():
        for clients, right in zip((25, 50, 100), by_column, strict=True):
            if right is not None:
                sweep.add(f"cifar10/clients{clients}", method, {0: [right] * 4})
    sweep.write()
    of = reproduction("pgfed/table1", Stores(TrialReader(sweep.runs), ledgers(sweep.runs)), "small")
    methods = {line.row: line.method for line in of.layout.printed}
    order = sorted(methods, key=page_table._mean_rank(of))
    assert [methods[row] for row in order][:4] == ["pgfed", "local", "apfl", "mine"]


def test_values_that_a_search_tried_are_sorted_by_size() -> None:
    tried = [{"point": {"train.lr": lr}, "value": 0.5} for lr in (10, 1.5, None, 1, 0.5)]
    trials = CellTrials(C25, "pgfed", {}, [], {}, {}, [], {"tried": tried})
    assert winners._chosen(trials, "train.lr", 1) == "`lr=1` (of 0.5, 1, 1.5, 10, null)"


def test_a_single_difference_and_a_record_without_a_commit_are_said_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    (record,) = sweep.add(C25, "local", {0: [4] * 4})
    (record.folder / "meta.json").write_text(json.dumps({**record.meta, "commit": None}))
    sweep.write()
    of = reproduction("pgfed/table1", Stores(TrialReader(sweep.runs), ledgers(sweep.runs)), "small")
    assert "commit: unknown" in origin.lines(of.first, Links())
    monkeypatch.setattr(deviations, "lines", lambda _: ["rounds: stated 300, here 3"])
    assert verdict.explanation(of, "").endswith("our runs differ from the paper's in 1 respect, listed below")


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        ({}, "each with a partition, a first model and cohorts of its own; the paper's"),
        ({"partition__seed": 1}, "each with a first model and cohorts of its own; the partition is the same for all;"),
    ],
)
def test_a_std_is_said_to_be_over_partitions_where_they_follow_the_seed(
    seed: dict[str, int], said: str, tmp_path: Path
) -> None:
    sweep = Sweep(tmp_path / "runs")
    sweep.add(C25, "local", {0: [4] * 4, 1: [5] * 4}, **seed)
    sweep.write()
    of = reproduction("pgfed/table1", Stores(TrialReader(sweep.runs), ledgers(sweep.runs)), "small")
    assert said in page.text(of, SavedFigures({}, {}, {}), Links())


def test_hyperparameters_that_were_not_searched_are_those_of_the_method_and_its_plugins(tmp_path: Path) -> None:
    with chdir(tmp_path):
        sweep = Sweep(Path("runs"))
        sweep.add(C25, "pgfed", {0: [6, 7, 8, 9]})
        group = sweep.groups[C25, "pgfed"]
        own = {"algorithm": "pgfed", "algorithm.mu": 0.1, "algorithm.lr": None, "ala.layers": 1, "attack.share": 1}
        group["config"] = {**{k: v for k, v in group["config"].items() if not k.startswith("algorithm.")}, **own}
        group["space"], group["trials"] = {"algorithm.mu": []}, {}
        sweep.write()
        assert main(["pgfed/table1", "--out", "out"]) == 0
        text = Path("out/pgfed/table1/README.md").read_text()
    assert "\n- pgfed: `lr=null ala.layers=1`\n" in text


def test_a_claim_stands_in_our_words_with_how_it_was_read(made: Path) -> None:
    text = (made / "README.md").read_text()
    assert "| pgfed-t1-1: Ours achieve the highest mean accuracies under all settings | holds |" in text
    assert "(the baseline is pFedMe, the weakest of the column, not the best baseline)" in text


def test_latex_tells_of_seeds_that_are_not_there(made: Path) -> None:
    row = next(line for line in (made / "table.tex").read_text().splitlines() if line.startswith("PGFed "))
    assert "$75.00^{1/2}$" in row


def test_latex_has_one_superscript_of_all_marks(tmp_path: Path) -> None:
    """TeX refuses two in a row: for a part of the seeds, and for a winner of an incomplete search."""
    sweep = small_store(tmp_path / "runs")
    for setting in (C25, "cifar10/clients50"):
        sweep.group(setting, "pgfed").update(winner={"algorithm.mu": 0.1}, without_result=["a point"])
    sweep.write()
    tables = export.as_latex(reproduced(sweep.runs, "pgfed/table1"))
    row = next(line for line in tables.splitlines() if line.startswith("PGFed "))
    assert r"^{\dagger1/2}$" in row
    assert r"^{\dagger}$" in row


def test_a_page_begins_with_five_lines_then_the_picture_then_the_best_row(made: Path) -> None:
    """Below the paper's own rounds the scale is the first of them, and the first reason."""
    lines = [line for line in (made / "README.md").read_text().splitlines() if line]
    heads = ["Scale", "Agrees with the published numbers", "Does not agree", "Why", "Order and claims"]
    assert [line.split(":**")[0] for line in lines[1:6]] == [f"- **{head}" for head in heads]
    assert lines[1].startswith(
        "- **Scale:** **small**, 3 of the paper's 300 rounds, so that this is no reproduction of the table; reading "
    )
    assert lines[1].endswith(
        "; accuracies are of the **best round** (the table at the end of a sweep has the last round)."
    )
    assert lines[2] == "- **Agrees with the published numbers:** **1 of 6** numbers (all of PGFedMo (ours))."
    assert (
        "; the largest differences (published numbers in brackets): "
        "FedAvg, CIFAR10, 25 clients 25.00 ± 7.07 (65.07 ± 0.25); Local, " in lines[3]
    )
    assert lines[4].startswith("- **Why:** 3 of the paper's 300 rounds (scale small); our runs differ from ")
    assert lines[6].endswith("(agreement.png)")
    rows = [line.split(" | ")[0] for line in lines if line.startswith(("| PGFed", "| FedRoD"))]
    assert rows[:3] == ["| PGFedMo (ours)", "| PGFed (ours)", "| FedRoD [4]"]


def test_a_page_at_the_papers_rounds_begins_with_what_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), scale="paper", seeds=(0,))
    for method in ("pgfed", "fedbabu"):
        sweep.add(C25, method, {0: [8] * 4})
        sweep.groups[C25, method]["config"]["train.rounds"] = 3
    sweep.write()
    stated = [line._replace(values={**line.values, "rounds": "3"}) for line in published._csv("settings.csv")]
    monkeypatch.setattr(
        published, "_csv", lambda name, read=published._csv: stated if "settings" in name else read(name)
    )
    main(["pgfed/table1"])
    lines = [line for line in (tmp_path / "reports/pgfed/table1/README.md").read_text().splitlines() if line]
    assert lines[1].startswith("- **Agrees with the published numbers:**")
    (scale,) = [line for line in lines if line.startswith("- **Scale:**")]
    assert "**paper**; reading paper" in scale
    assert "**best round** for PGFed (ours) (the table" in scale, "FedBABU's are of the last one"


def test_metrics_of_the_best_round_are_named_where_others_are_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_table(tmp_path, "{acc: {quantity: accuracy}, best: {quantity: accuracy, round: best}}")
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "mine/table1", seeds=(0,))
    for method in ("fedavg", "local"):
        sweep.add("digits/here", method, {0: [4] * 4})
    sweep.write()
    main(["mine/table1"])
    (scale,) = [line for line in Path("reports/mine/table1/README.md").read_text().splitlines() if "**Scale" in line]
    assert "; accuracies are of the **best round** for best (the table" in scale


def test_the_least_client_is_not_tested_client_by_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_table(tmp_path, "{acc: {quantity: accuracy}, worst: {quantity: accuracy, take: min}}", "own: fedavg\n")
    monkeypatch.chdir(tmp_path)
    of = reproduced(own_runs(fedavg=[[4, 6, 8, 8]], local=[[1, 2, 3, 4]]), "mine/table1")
    assert [of.layout.columns[pair.column].metric for pair in of.paired()] == ["acc"]


def test_a_number_relative_to_another_row_is_over_the_seeds_that_both_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local 20 and 40%, FedAvg 40 and 60%: over seed 0 alone the ratio is 2. It is no accuracy of other rows."""
    own_table(tmp_path, "{acc: {quantity: accuracy}, ratio: {quantity: accuracy, relative: local, unit: fraction}}")
    monkeypatch.chdir(tmp_path)
    of = reproduced(own_runs(local=[[2] * 4], fedavg=[[4] * 4, [6] * 4]), "mine/table1")
    (ratio,) = [m for m in of.cells.values() if (m.printed.method, m.printed.metric) == ("fedavg", "ratio")]
    assert ratio.value == (pytest.approx(2.0), None, 1)
    assert {cell.printed.metric for _, cell, _ in of.by_samples()} == {"acc"}


def test_what_never_reaches_a_goal_is_not_second_and_an_own_table_has_no_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_table(tmp_path, "{speedup: {quantity: rounds_to, goal: 0.7, relative: slowest}}")
    monkeypatch.chdir(tmp_path)
    runs = own_runs(local=[[8] * 4], fedavg=[[5] * 4])
    cells = {cell.printed.method: cell for cell in reproduced(runs, "mine/table1").cells.values()}
    assert (cells["fedavg"].value.mean, cells["fedavg"].rank, cells["local"].rank) == (0.0, 0, 1)
    assert main(["mine/table1", "--scale", "small"]) == 0
    text = Path("reports/mine/table1/README.md").read_text()
    assert "ours over L, the slowest that gets there.\n" in text
    assert "What differs from the paper" not in text


def test_the_method_that_others_are_compared_with_may_be_no_row_and_a_faulty_layout_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    own_table(tmp_path, "{acc: {quantity: accuracy}}", "own: fedprox\n")
    sweep_file = tmp_path / "sweeps/mine/table1.yaml"
    sweep_file.write_text(sweep_file.read_text().replace("{fedavg:", "{fedprox: algorithm=fedprox, fedavg:"))
    (tmp_path / "reports/layouts/mine/table2.yaml").write_text("title: 3\n")
    monkeypatch.chdir(tmp_path)
    own_runs(fedprox=[[4, 6, 8, 8]], fedavg=[[1, 2, 3, 4]], local=[[2, 2, 3, 4]])
    main(["mine/table1", "--scale", "small"])
    text = Path("reports/mine/table1/README.md").read_text()
    assert "fedprox minus" in text
    assert "None minus" not in text


def own_table(folder: Path, metrics: str, more: str = "") -> None:
    """Write a sweep of two methods in one setting, and the layout of a table that is not published."""
    for name, text in {
        "sweeps/mine/table1": "settings: {digits/here: dataset=digits}\n"
        "methods: {fedavg: algorithm=fedavg, local: algorithm=local}\n",
        "reports/layouts/mine/table1": "title: t\nsweeps: [mine/table1]\n"
        "own_table: {name: a, rows: {fedavg: F, local: L}, columns: {digits/here: here}}\n"
        f"metrics: {metrics}\n{more}",
    }.items():
        file = folder / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    layout.read.cache_clear()


def own_runs(**correct: list[list[int]]) -> Path:
    """Write the runs of `own_table` into the working directory, and return their folder. correct: right answers of the
    clients under seeds 0, 1, .., by method.
    """
    sweep = Sweep(Path("runs"), "mine/table1", seeds=tuple(range(max(map(len, correct.values())))))
    for method, by_seed in correct.items():
        sweep.add("digits/here", method, dict(enumerate(by_seed)))
    sweep.write()
    return sweep.runs


def test_columns_and_rows_without_a_number_are_a_line_each(made: Path) -> None:
    text = (made / "README.md").read_text()
    assert "\nColumns without a number of ours: CIFAR10, 100 clients; CIFAR100\n" in text
    line = next(line for line in text.splitlines() if line.startswith("Rows without a number of ours: "))
    assert "FedRep" in line
    assert "PGFed" not in line
    shown, _, behind = text.partition("<summary>Rows without a number of ours</summary>")
    assert "| FedRep [5] | missing<br>" not in shown
    assert "| FedRep [5] | missing<br>" in behind.partition("</details>")[0], "the published numbers can be looked up"


def test_a_point_of_the_picture_is_ours_against_print(made: Path) -> None:
    """PGFedMo: 81.20 in the paper, 80 here."""
    with chdir(made.parents[2]):
        of = reproduced(Path("runs"), "pgfed/table1")
        picture = against_print.picture({"paper": of})
    assert picture is not None
    (axes,) = picture.figure.axes
    drawn = {dots.get_gid(): dots.get_offsets().tolist() for dots in axes.collections if dots.get_gid()}
    assert drawn["against print paper agrees"] == [[81.2, pytest.approx(80.0)]]
    assert len(drawn["against print paper apart"]) == 5
    low, high = axes.get_ylim()
    assert axes.get_xlim() == (low, high)
    assert 0 <= low < high <= 100


def test_two_numbers_need_no_picture(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chdir(made.parents[2]):
        of = reproduced(Path("runs"), "pgfed/table1")
        found = against_print.plotted_cells(of)
        for count, drawn in ((2, False), (3, True)):
            some = {unit: cells[:count] for unit, cells in found.items()}
            monkeypatch.setattr(against_print, "plotted_cells", lambda _, some=some: some)
            assert (against_print.picture({"paper": of}) is not None) is drawn


ROOM = (15.0, 140.0, 15.0, 100.0)


@pytest.mark.parametrize(("printed", "side"), [(70.0, "left"), (22.0, "right")])
def test_a_name_in_the_picture_leaves_the_line_free_and_crosses_no_axis(printed: float, side: str) -> None:
    """Above the line a name ends at its point, unless it would begin before the axes do, at 15."""
    (left, right, bottom, top), line = against_print._place(printed, 85.0, 30.0, 3.0, ROOM, [], [], [])
    assert (bottom, top) == (83.5, 86.5)
    assert (right < printed, left > printed) == (side == "left", side == "right")
    assert not line, "it is beside its point"


@pytest.mark.parametrize("height", [88.3, 81.7, 70.0])
def test_a_name_in_the_picture_does_not_end_at_another_point(height: float) -> None:
    """Beside its point, which is at 40, there is no room: points lie to the right, and the axis is at 15."""
    right = [against_print._box(x, y, 2, 2) for x in (50.0, 60.0) for y in (82.4, 85.0, 87.4)]
    other = against_print._box(24.0, height, 2, 2)
    (left, end, *heights), line = against_print._place(40.0, 85.0, 30.0, 3.0, ROOM, [*right, other], [], [])
    seems = [
        against_print._meet((left - 1.8, end + 1.8, *heights), against_print._middle(dot)) for dot in [*right, other]
    ]
    assert line or not any(seems)


def test_a_name_without_room_beside_its_point_has_a_line_that_leads_there() -> None:
    """Names lie at both its sides, up to 10 above and below."""
    taken = [against_print._box(x, 85.0, 40.0, 20.0) for x in (15.0, 65.0)]
    box, line = against_print._place(40.0, 85.0, 30.0, 3.0, ROOM, [], taken, [])
    assert not any(against_print._meet(box, each) for each in taken)
    assert line[0] == (40.0, 85.0)
    assert line[-1] == (40.0, box[2] if box[2] > 85.0 else box[3])


@pytest.mark.parametrize("x", [38.0, 41.0, 43.0, 60.0, 99.0])
def test_no_name_of_a_drawn_picture_crosses_the_axes_or_another_or_moves_them(made: Path, x: float) -> None:
    with chdir(made.parents[2]):
        of = reproduced(Path("runs"), "pgfed/table1")
        ((unit, found),) = against_print.plotted_cells(of).items()
    apart = next(point for point in found if point.cell.agrees is False)
    ends = [apart._replace(printed=at, ours=at) for at in (20.0, 100.0)]
    wide = apart.column._replace(header="GM GM GM")
    other = apart._replace(
        cell=apart.cell._replace(printed=apart.cell.printed._replace(row=2)), printed=x + 20, ours=79.0
    )
    points = [*ends, apart._replace(column=wide, printed=x, ours=79.0), other]
    with style.panels(1, (4.6, 4.2)) as (drawn, (axes,)):
        against_print._panel(axes, unit, {"paper": points})
        drawn.draw_without_rendering()
        place = axes.get_position().bounds
        against_print._name(axes, points, of)
    drawn.draw_without_rendering()
    assert axes.get_position().bounds == pytest.approx(place, abs=1e-4)
    boxes = [name.get_window_extent() for name in axes.texts]
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])
    for box in boxes:
        assert box.x0 >= axes.bbox.x0
        assert box.x1 <= drawn.bbox.x1


@pytest.mark.parametrize("name", FILES)
def test_the_golden_report(made: Path, name: str) -> None:
    assert (made / name).read_text() == (GOLDEN / name).read_text()


def test_a_cell_shows_ours_print_and_the_difference(made: Path) -> None:
    text = (made / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| PGFedMo"))
    assert row.split(" | ")[1] == "**80.00 ± 0.00** <sub>\N{MINUS SIGN}1.20</sub><br><sub>81.20 ± 0.08</sub>"
    assert "<u>72.50 ± 3.54</u> <sub>\N{MINUS SIGN}8.52 **≠**</sub><br><sub>81.02 ± 0.41</sub>" in text
    assert "75.00 (1 of 2 seeds)" in text
    assert "pgfed cifar10/clients50 seed 1 failed: ValueError: the loss is nan" in text
    assert "is running at round 1 of 3" in text
    assert "pgfed cifar10/clients25: one point of its search failed: it broke" in text
    assert "`mu=0.1` (the smallest value tried) (81.25% on validation data)" in text
    assert "ditto" not in text
    claim = next(line for line in text.splitlines() if "pgfed-t1-3:" in line)  # PGFedMo 80 ± 0, PGFed 72.5 ± 3.5
    assert claim.endswith(
        "| holds so far | 1 of 1 comparisons in cifar10 clients25 (published: 1 of 1), 1 clear of std |"
    )


def test_the_csv_has_the_printed_files_columns(made: Path) -> None:
    with open(made / "table.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 84
    printed = (Path(__file__).parents[3] / "reports/paper/pgfed_table1.csv").read_text().splitlines()[0].split(",")
    assert list(lines[0])[: len(printed)] == printed
    own = next(line for line in lines if (line["method"], line["setting"]) == ("pgfedmo", "clients25"))
    assert (own["value"], own["std_over"], own["printed"], own["seeds"]) == ("80", "seeds2", "81.20", "2")
    assert sum(bool(line["value"]) for line in lines) == 6
    begun = [line for line in lines if (line["dataset"], line["setting"]) == ("cifar10", "clients25")]
    options = {line["method"]: line["algorithm"] for line in begun}
    assert options["pgfedmo"] == "pgfedmo", "as its trials have it"
    assert options["apfl"] == "apfl", "as its sweep has it: no trial is finished"
    assert options["fedrep"] == "", "no sweep has it"


def test_latex_is_a_whole_tabular(made: Path) -> None:
    lines = (made / "table.tex").read_text().splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert {line.count("&") + sum(int(n) - 1 for n in _widths(line)) for line in rows} == {6}
    assert len(rows) == 2 + 14
    assert r"$\mathbf{80.00 \pm 0.00}$" in "".join(lines)
    assert [line for line in lines if line.startswith(("\\begin", "\\end"))] == [
        r"\begin{tabular}{lrrrrrr}",
        r"\end{tabular}",
    ]
    comments = [line for line in lines if line.startswith("%")]
    assert (
        r"% $\pm$: the standard deviation over seeds (n - 1 in the denominator). Bold: the best of the column"
        in comments[1]
    )
    assert comments[2] == r"% Needs \usepackage{booktabs}."


def _widths(line: str) -> list[str]:
    return [part.partition("}")[0] for part in line.split(r"\multicolumn{")[1:]]


def test_the_curves_are_the_numbers(made: Path) -> None:
    """Local has seed means of 4 and 4.5 correct answers: half, all, all of it, so 20, 40, 40 and 20, 45, 45 percent."""
    root = ET.parse(made / "curves.svg").getroot()
    names = {group.get("id") for group in root.iter("{http://www.w3.org/2000/svg}g")}
    wanted = {f"curve {C25} {m}" for m in ("local", "fedavg", "fedrod", "pgfed", "pgfedmo")}
    assert {name for name in names if name and name.startswith("curve")} == wanted | {"curve cifar10/clients50 pgfed"}
    local, rod = (heights(root, f"curve {C25} {method}") for method in ("local", "fedrod"))
    scale = (local[0] - rod[2]) / 50  # from 20% to 70%
    assert np.allclose(local[0] - np.array(local), scale * np.array([0, 22.5, 22.5]), atol=0.01)
    assert (made / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_all_of_them_and_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    small_store(Path("runs"))
    assert main(["all"]) == 0
    index = (tmp_path / "reports/index.md").read_text()
    for name in layout.names():
        assert f"[{name}]({name}/README.md) | paper | small |" in index
        assert (tmp_path / "reports" / name / "README.md").exists()
    assert "| small | 5 of 84 | 1 of 6 | " in index
    assert "pgfed/table1/README.md: 5 of 84 cells complete, scale small" in capsys.readouterr().out
    assert {path.stem for path in (tmp_path / "reports/pgfed/table3").glob("*.svg")} == {
        *("agreement", "gains-clients25", "matrix")
    }
    assert "dot: a client and seed;" in (tmp_path / "reports/pgfed/table3/gains-clients25.svg").read_text()


def test_the_newest_scale_unless_another_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = small_store(Path("runs"))
    sweep.scale = "smoke"
    sweep.groups.clear()
    sweep.group(C25, "pgfed")
    sweep.write("newer", at=2e9)
    below = "3 of the paper's 300 rounds, so that this is no reproduction of the table"
    page = tmp_path / "reports/pgfed/table1/README.md"
    main(["pgfed/table1"])
    assert f"**Scale:** **smoke**, {below}; reading paper, 0 of 84" in page.read_text()
    main(["pgfed/table1", "--scale", "small"])
    assert f"**Scale:** **small**, {below}; reading paper, 5 of 84" in page.read_text()
    with pytest.raises(UserError, match=r"--scale smal: .*Did you mean 'small'"):
        main(["pgfed/table1", "--scale", "smal"])


def test_a_page_of_trials_that_are_not_here_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """In a checkout with committed pages, a user's first small sweep leaves them."""
    monkeypatch.chdir(tmp_path)
    small_store(Path("carried"))
    own = Sweep(Path("runs"))
    own.add(C25, "local", {0: [1, 1, 1, 1], 1: [2, 2, 2, 2]})
    own.write()
    main(["pgfed/table1", "--runs", "carried"])
    page = tmp_path / "reports/pgfed/table1/README.md"
    before = page.read_text()
    with pytest.raises(UserError, match=r"pgfed/table1: The page in reports/pgfed/table1 stays as it is: 9 trials"):
        main(["pgfed/table1"])
    assert page.read_text() == before
    assert "(pgfed/table1/README.md) | paper | small | 5 of 84" in (tmp_path / "reports/index.md").read_text()
    main(["pgfed/table1", "--out", "own"])
    assert "1 of 84 cells complete, seeds 0, 1; " in (tmp_path / "own/pgfed/table1/README.md").read_text()
    own.add(C25, "local", {0: [1, 1, 1, 1], 1: [2, 2, 2, 2]}, model__width=2)
    # All trials of the page are still here
    main(["pgfed/table1", "--out", "own"])


def test_a_record_of_several_versions_of_the_code_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"))
    _, mixed = sweep.add(C25, "local", {0: [1, 1, 1, 1], 1: [2, 2, 2, 2]})
    sweep.write()
    mixed.meta = {**mixed.meta, "digests": {"engine": "aaaa"}, "sessions": [{"from": 2, "digests": {"engine": "bbbb"}}]}
    mixed.begin()
    mixed.set_status(status="finished")
    main(["pgfed/table1", "--out", "out"])
    text = (tmp_path / "out/pgfed/table1/README.md").read_text()
    name = f"{mixed.meta['name']} `{mixed.meta['identity']}`"
    assert f"- {name}: its rounds were trained by 2 versions of the code" in text
    assert text.count("versions of the code") == 1


def test_an_unexpected_error_hides_neither_the_other_pages_nor_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def text(of: Reproduction, *given: Any) -> str:
        return page.text(of, *given) if of.layout.name == "pgfed/table1" else str(1 / 0)

    monkeypatch.setitem(build.TEXTS, "table", text)
    small_store(tmp_path / "runs")
    with pytest.raises(ZeroDivisionError):
        build.build(["pgfed/table3", "pgfed/table1"], tmp_path / "runs", tmp_path / "out", None)
    assert "pgfed/table3: ZeroDivisionError: division by zero" in capsys.readouterr().out
    index = (tmp_path / "out/index.md").read_text()
    assert "| pgfed/table3 | | | | | | | | | **error**: ZeroDivisionError: division by zero |" in index
    assert "[pgfed/table1](pgfed/table1/README.md) | paper | small | 5 of 84" in index


@pytest.mark.slow
def test_one_broken_table_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = small_store(Path("runs"))
    sweep.name = "pgfed/table5"
    sweep.groups.clear()
    records = sweep.add("organamnist/clients25", "local", {0: [1, 1, 1, 1], 1: [2, 2, 2, 2]}, train__lr=0.1)
    sweep.group("organamnist/clients25", "local")["config"]["train.lr"] = 0.2
    sweep.write("other")
    with pytest.raises(UserError, match=r"pgfed/table5: .*is not the trial") as error:
        main(["all"])
    assert records[0].meta["identity"] in str(error.value)
    index = (tmp_path / "reports/index.md").read_text()
    assert "| pgfed/table5 | | | | | | | | | **error**" in index
    assert "[pgfed/table1](pgfed/table1/README.md) | paper | small | 5 of 84" in index, (
        "though a claim of it is about table 5 too"
    )
    assert "[fedala/table1]" in index


@pytest.mark.slow
def test_a_number_that_a_method_does_not_have_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Print has a global model of FedRep and we have none: claims about the other methods are judged without it."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "fedpg/table3", seeds=(0,))
    for attack in ("clean", "A1", "A2"):
        for method in dict.fromkeys(line.method for line in layout.read("fedpg/table3").printed):
            has = ("global_all",) if method != "fedrep" else ()
            views = ("personal", "trained", "personal_all", "trained_all", "personal_subset", "trained_subset", *has)
            sweep.add(f"fmnist/{attack}", method, {0: [8 if method == "fedpg" else 4] * 4}, views=views)
    sweep.write()
    main(["fedpg/table3"])
    text = (tmp_path / "reports/fedpg/table3/README.md").read_text()
    assert "117 of 117 cells complete, seed 0." in text
    assert "none<br><sub>0.792</sub>" in text
    assert "**none**: all runs behind the cell are finished" in text
    assert "Missing and failed" not in text
    claim = next(line for line in text.splitlines() if "fedpg-t3-4" in line)
    cells = "fmnist A1 gm_acc, fmnist A2 gm_acc, fmnist clean gm_acc"
    assert claim.endswith(f"| holds | holds | 9 of 9 comparisons; without fedrep ({cells}) |")
    assert "A claim is judged without the methods, or the cells in brackets, that have no such number" in text


def test_a_claim_that_lacks_cells_is_judged_in_the_settings_that_lack_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fedfomo-t1-4 says that Local is above each of three methods, in four settings."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "fedfomo/table1", seeds=(0,))
    views = ("personal", "trained", "global")
    for method, correct in {"local": 8, "fedavg": 6, "fedprox": 5, "fedavg_data": 9}.items():
        sweep.add("cifar10/clients15", method, {0: [correct] * 4}, views=views)
    sweep.write()
    verdict, claim = verdict_and_claim("fedfomo/table1", "fedfomo-t1-4")
    assert verdict.endswith("of the paper's claims 6 are open (so far 1 holds in part).")
    in_part = "| holds | holds in part so far | 2 of 3 comparisons in cifar10 clients15 (published: 3 of 3); fails: "
    assert in_part in claim
    sweep.add("mnist/clients15", "local", {0: [8] * 4}, views=views)
    sweep.add("mnist/clients15", "fedavg", {0: [6] * 4}, views=views)
    sweep.write()
    assert in_part in verdict_and_claim("fedfomo/table1", "fedfomo-t1-4")[1], "two methods lack their cell there"
    index = Path("reports/index.md").read_text()
    assert " | 0 / 0 / 0 / 6 (so far 0 / 1 / 0) | " in index
    assert "*So far*: some cells of the claim are missing" in Path("reports/fedfomo/table1/README.md").read_text()


def verdict_and_claim(table: str, claim: str) -> tuple[str, str]:
    """Make a report, and return its line of claims and the row of one of them."""
    main([table])
    lines = Path(f"reports/{table}/README.md").read_text().splitlines()
    return next(each for each in lines if "Order and claims" in each), next(each for each in lines if claim in each)


def test_what_is_measured_against_other_rows_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "pgfed/table2", seeds=(0,))
    sweep.add(C25, "pgfed", {0: [8] * 4})
    sweep.write()
    main(["pgfed/table2"])
    text = (tmp_path / "reports/pgfed/table2/README.md").read_text()
    assert "needs all rows<br><sub>3.4</sub>" in text
    sweep.name = "pgfed/table3"
    sweep.write()
    main(["pgfed/table3"])
    text = (tmp_path / "reports/pgfed/table3/README.md").read_text()
    assert "| PGFed | needs local<br>" in text
    assert "A cell that needs other rows is measured against them." in text


@pytest.mark.slow
def test_a_search_by_another_view_than_the_tables_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg's personal model is the global one, and its row has the models after local training."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "fedpg/table1", seeds=(0,))
    for method in ("fedavg", "ditto"):
        sweep.add("fmnist/pat2", method, {0: [4] * 4}, views=("personal", "trained"))
        group = sweep.group("fmnist/pat2", method)
        group |= {"winner": {"algorithm.mu": 0.1}, "winner_value": 0.5, "points": 2}
        group["tried"] = [{"point": {"algorithm.mu": mu}, "value": 0.5 - mu} for mu in (1.0, 0.1, 0.01)]
    sweep.write()
    main(["fedpg/table1"])
    text = (tmp_path / "reports/fedpg/table1/README.md").read_text()
    said = "by `tune.view=personal`, where the table shows the view trained"
    assert f"- fedavg: fmnist/pat2: `mu=0.1` (of 0.01, 0.1, 1.0) (50.00% on validation data {said})\n" in text
    assert "- ditto: fmnist/pat2: `mu=0.1` (of 0.01, 0.1, 1.0) (50.00% on validation data)\n" in text


def test_a_row_of_ones_own_has_our_number_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = small_store(Path("runs"))
    sweep.add(C25, "mine", {0: [9] * 4, 1: [9] * 4})
    sweep.add("cifar10/clients50", "mine", {0: [9] * 4})
    sweep.write()
    main(["pgfed/table1"])
    text = (tmp_path / "reports/pgfed/table1/README.md").read_text()
    assert "| mine | **90.00 ± 0.00** | 90.00 (1 of 2 seeds) |\n" in text
    assert "5 of 84 cells complete, seeds 0, 1 (5 cells) and seed 0 (1 cell); " in text
    assert "Rows with our numbers alone are not the paper's" in text
    assert "<sub>lost" not in text
    with open(tmp_path / "reports/pgfed/table1/table.csv", newline="") as file:
        own = list(csv.DictReader(file))[-2]
    assert (own["method"], own["value"], own["printed"], own["difference"]) == ("mine", "90", "", "")


def test_rounds_have_a_decimal_and_agree_where_they_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """70% is reached in rounds 2 and 3, and twice in round 2; print has no std."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "pgfed/table2")
    sweep.add(C25, "pgfed", {0: [8] * 4})
    later = train(create(sweep.runs, "pgfed", 1, dataset___option_=place(C25)), [[1] * 4, [1] * 4, [8] * 4])
    sweep.name_trial(C25, "pgfed", 1, later)
    sweep.add(C25, "fedper", {0: [8] * 4, 1: [8] * 4})
    sweep.write()
    main(["pgfed/table2"])
    text = (tmp_path / "reports/pgfed/table2/README.md").read_text()
    assert "2.5 ± 0.7 <sub>\N{MINUS SIGN}6.5 **≠**</sub><br><sub>9</sub>" in text
    assert "2.0 ± 0.0 <sub>\N{MINUS SIGN}6.0 **≠**</sub><br><sub>8</sub>" in text


def test_figures_without_printed_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New clients' accuracy by epoch, 10 to 30 and 20 to 60%: the end of the fine-tuning, and its curve."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "pgfed/figure4", seeds=(0,))
    for method, last in (("local", 3), ("pgfed", 6)):
        (record,) = sweep.add("cifar10/new20", method, {0: [5, 5, 5, 5]})
        rows = [(client, epoch, 10, last * (epoch + 1) // 3) for client in range(2) for epoch in range(3)]
        record.save_new_clients(pd.DataFrame(rows, columns=["client", "epoch", "n", "correct"]))
    sweep.write()
    main(["pgfed/figure4"])
    text = (tmp_path / "reports/pgfed/figure4/README.md").read_text()
    assert "| PGFed | 60.00 |\n" in text
    assert "| Local | 30.00 |\n" in text
    assert [line.split(":**")[0] for line in text.splitlines() if line.startswith("- **")][:2] == [
        *("- **Order and claims", "- **Scale"),
    ], "nothing is said of numbers that the paper does not print"
    assert "print" not in text.partition("<summary>How to read the table</summary>")[2].partition("</details>")[0]
    assert "| not published | cannot be decided yet |" in text
    root = ET.parse(tmp_path / "reports/pgfed/figure4/new-cifar10-new20.svg").getroot()
    local, own = (heights(root, f"curve {label}") for label in ("Local", "PGFed"))
    assert local[0] - local[2] == pytest.approx((own[0] - own[2]) / 2, abs=0.01)


def test_a_claim_about_a_figure_is_judged_when_all_its_cells_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least gain over Local by client is -10 points, so that not every client is better off."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), seeds=(0,))
    settings = [f"{data}/clients{n}" for data in ("cifar10", "cifar100") for n in (25, 50, 100)]
    for setting in settings:
        sweep.add(setting, "local", {0: [4, 4, 4, 4]})
        sweep.add(setting, "pgfed", {0: [5, 6, 7, 8]})
        sweep.add(setting, "pgfedmo", {0: [3, 6, 7, 8] if setting == settings[0] else [5, 6, 7, 8]})
    sweep.write()
    main(["pgfed/gains"])
    text = (tmp_path / "reports/pgfed/gains/README.md").read_text()
    assert "holds in part | 11 of 12 comparisons; fails: pgfedmo cifar10 clients25 gain_min: -10 |" in text


def test_the_change_of_a_and_its_two_regressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grows with client j's samples, 20 or 40. A row lacks its own entry, so row means fall with client i's."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), seeds=(0,))
    sweep.add(C25, "local", {0: [4, 4, 4, 4]})
    (record,) = sweep.add(C25, "pgfed", {0: [5, 5, 5, 5]})
    sizes = record.partition.groupby("client")["train"].sum().to_numpy()
    assert sizes.tolist() == [20, 40, 20, 40]
    np.savez(record.folder / "matrices.npz", A=0.5 + 0.001 * np.tile(sizes, (4, 1)))
    sweep.write()
    main(["pgfed/table3"])
    root = ET.parse(tmp_path / "reports/pgfed/table3/matrix.svg").getroot()
    text = "".join(root.itertext())
    assert text.index("r = 1.00") < text.index("r = -1.00")
    points = next(
        each for each in root.iter("{http://www.w3.org/2000/svg}g") if each.get("id") == "points row mean of the change"
    )
    assert len(list(points.iter("{http://www.w3.org/2000/svg}use"))) == 4


def test_fedfomos_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "fedfomo/table2", seeds=(0,))
    for setting in ("cifar10/latent2", "cifar10/latent5"):
        (record,) = sweep.add(setting, "fedfomo_n5", {0: [5, 5, 5, 5]})
        np.savez(record.folder / "matrices.npz", P=np.eye(4))
    sweep.write()
    main(["fedfomo/table2"])
    text = (tmp_path / "reports/fedfomo/table2/README.md").read_text()
    for setting, head in (("latent2", "2 (1.05)"), ("latent5", "5 (2.80)")):
        where = f"CIFAR-10 Number of Latent Distributions (EMD), {head}; Ours (n=5); seed 0; round 3"
        assert f"![client-to-client weights P of FedFomo: {where}](weights-cifar10-{setting}.png)" in text
        svg = ET.parse(tmp_path / f"reports/fedfomo/table2/weights-cifar10-{setting}.svg").getroot()
        assert f"{where}; reading paper" in " ".join(" ".join(svg.itertext()).split())


def test_accuracy_against_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(Path("runs"), "fedfomo/table3", seeds=(0,))
    for sigma, epsilon, correct in ((0, None, 9), (1, 10.26, 6), (2, 3.57, 3)):
        setting = f"cifar10/latent5;sigma{sigma};delta1e-5"
        (record,) = sweep.add(setting, "fedavg", {0: [correct] * 4}, privacy={"sigma": float(sigma)})
        table = pd.read_parquet(record.folder / "rounds.parquet")
        table.assign(epsilon=epsilon).to_parquet(record.folder / "rounds.parquet")
    sweep.write()
    main(["fedfomo/table3"])
    rows = (tmp_path / "reports/fedfomo/table3/README.md").read_text().splitlines()
    assert "| FedAvg (sigma0) | ∞ <sub>+0.00</sub><br><sub>∞</sub> | **90.00**" in "".join(rows)
    assert any(
        row.startswith("| FedAvg (sigma1) | 10.26 <sub>+0.00</sub><br><sub>10.26 ± 0.21</sub> |") for row in rows
    )
    root = ET.parse(tmp_path / "reports/fedfomo/table3/privacy.svg").getroot()
    assert len(heights(root, "privacy cifar10 fedavg")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pgfed/tabel1"], "there is no 'pgfed/tabel1'. Did you mean 'pgfed/table1'"),
        (["--runs", "runs", "pgfed/tabel1"], "there is no 'pgfed/tabel1'. Did you mean 'pgfed/table1'"),
        (["--runs", "runs"], "report: PAGE is missing. See `pflsweep report --help`."),
        (["pgfed/table1", "--runs", "nowhere"], "There is no folder of runs 'nowhere'"),
        (["pgfed/table1", "--otu", "x"], "Did you mean '--out'"),
        (
            ["pgfed/table1", "--out", "/proc/x"],
            "/proc/x cannot be written to (No such file or directory). Choose another folder: --out DIR",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    small_store(Path("runs"))
    with pytest.raises(UserError) as error:
        main(words)
    assert said in str(error.value)


@pytest.mark.slow
def test_a_report_needs_no_torch_optuna_mlflow_or_hydra(tmp_path: Path) -> None:
    with chdir(tmp_path):
        small_store(Path("runs"))
    program = (
        "import sys; from pflsweep.commands.report import main; main(['pgfed/table3']);"
        "print(*sorted({'torch', 'optuna', 'mlflow', 'hydra'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, ""), done.stderr


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        written = report(Path(folder))
        GOLDEN.mkdir(exist_ok=True)
        for each in FILES:
            (GOLDEN / each).write_text((written / each).read_text())
