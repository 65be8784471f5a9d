"""A page of both readings, and which gaps single changes of the code explain."""

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pflsweep.commands.report import main
from pflsweep.config import reading
from pflsweep.records.ledger import ledgers
from pflsweep.report.paper.effects import Effect
from pflsweep.report.paper.reproduction import Reproduction, Stores, reproduction
from pflsweep.report.paper.store import TrialReader
from pflsweep.util.errors import UserError
from tests.report.paper.fixtures import Sweep

WHERE = "fmnist/pat2"
# All views except `personal` have half the accuracy
VIEWS = ("personal", "trained", "personal_all", "trained_all", "global_all")
Add = Callable[..., None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Write a sweep of FedPG's table 1 under a reading. Arguments: correct answers of ten by seed, for all clients.

    rates: by method, what its search has chosen; None where nothing was searched.
    """
    monkeypatch.chdir(tmp_path)
    stems = iter("abcdefgh")

    def sweep(
        reading: str,
        rows: dict[str, list[int]],
        scale: str = "small",
        steps: int = 0,
        rates: dict[str, float] | None = None,
    ) -> None:
        made = Sweep(Path("runs"), "fedpg/table1", scale, seeds=tuple(range(max(map(len, rows.values())))))
        for method, seeds in rows.items():
            rate = {"train__lr": rates[method]} if rates else {}
            made.add(WHERE, method, {s: [n] * 4 for s, n in enumerate(seeds)}, views=VIEWS, train__steps=steps, **rate)
            if rates:
                made.groups[WHERE, method] |= {"winner": {"train.lr": rates[method]}, "winner_value": 0.5}
        stem = next(stems) * 16
        made.write(stem, at=1e9 + ord(stem[0]), reading=reading)

    return sweep


def made(scale: str = "small") -> Reproduction:
    return reproduction("fedpg/table1", Stores(TrialReader(Path("runs")), ledgers(Path("runs"))), scale)


def effect(of: Reproduction, name: str) -> Effect:
    return next(each for each in of.effects if each.change.name == name)


def page() -> str:
    assert main(["fedpg/table1", "--out", "out"]) == 0
    return Path("out/fedpg/table1/README.md").read_text()


def test_a_page_has_both_readings_beside_each_other(add: Add) -> None:
    """Close to print are Ditto's G-acc under the paper's reading (0.4; 0.389) and Local's L-acc under the code's."""
    add("paper", {"local": [8, 8], "ditto": [9, 9], "fedamp": [6, 6]}, steps=1)
    add("code", {"local": [10, 10], "ditto": [5, 5]}, steps=2)
    text = page()
    row = next(line for line in text.splitlines() if line.startswith("| Local | "))
    assert row.split(" | ")[1] == (
        "paper: <u>0.800 ± 0.000</u> <sub>\N{MINUS SIGN}0.189 **≠**</sub><br>"
        "code: 1.000 ± 0.000 <sub>+0.011</sub><br><sub>0.989 ± 0.018</sub>"
    )
    of = made()
    agree = "reading **paper**: **1 of 7** numbers; reading **code**: **1 of 5** numbers."
    assert f"- **Agrees with the published numbers:** {agree}" in text
    # L and G of three rows, and GM of Ditto alone
    assert of.verdicts["paper"].compared == 7
    differences = [abs(c.difference or 0.0) for c in of.readings["code"].paper_cells if c.difference is not None]
    assert of.verdicts["code"].difference == pytest.approx(100 * sum(differences) / 5)
    assert text.index(agree) < text.index("| Local") < text.index("<summary>What explains the difference")
    assert "### Reading code\n" in text.partition("<summary>Made by")[2]
    assert "| FedPG | paper: missing<br>code: no code<br>" in text
    assert {"curves.png", "curves-code.png"} <= {file.name for file in Path("out/fedpg/table1").iterdir()}
    with open("out/fedpg/table1/table.csv", newline="") as file:
        lines = [line for line in csv.DictReader(file) if (line["method"], line["metric"]) == ("local", "l_acc")]
    found = [(line["reading"], line["value"], line["agrees"]) for line in lines if line["value"]]
    assert found == [("paper", "0.8", "false"), ("code", "1", "true")]
    index = [line for line in Path("out/index.md").read_text().splitlines() if line.startswith("| [fedpg/table1]")]
    assert [line.split(" | ")[1] for line in index] == ["paper", "code"]
    known = json.loads(Path("out/fedpg/table1/report.json").read_text())["trials"]
    assert len(known) == 10


@pytest.mark.slow
def test_rows_of_ones_own_stand_in_the_same_place_under_both_readings(add: Add) -> None:
    add("paper", {"mine": [8]}, steps=1)
    add("code", {"another": [6], "mine": [7]}, steps=2)
    of = made()
    assert [list(each.layout.rows.values())[-2:] for each in of.readings.values()] == [["mine", "another"]] * 2
    assert "| mine | paper: 0.800 ± 0.000<br>code: 0.700 ± 0.000 |" in page()


def test_a_change_explains_a_gap_that_it_closes_by_half_as_predicted(add: Add) -> None:
    """pFedMe's printed L- and G-acc are 0.946 and 0.757, its global model 0.83; FedProx's L-acc 0.946.

    The change moves what stands there (the trained models: half of ten) by 0.1 points a correct answer.
    """
    add("paper", {"pfedme": [2, 2], "fedprox": [9, 9], "local": [8, 8]}, steps=1)
    add("one_step", {"pfedme": [10, 10], "local": [8, 8]}, steps=2)
    of = made()
    assert list(of.readings) == ["paper"]
    step = effect(of, "one_step")
    assert of.effects[0] is step, "the only one that was measured"
    shifts = {(s.base.printed.method, s.base.printed.metric): s for s in step.shifts}
    assert set(shifts) == {("pfedme", m) for m in ("l_acc", "g_acc", "gm_acc")} | {
        ("local", m) for m in ("l_acc", "g_acc")
    }
    own = shifts["pfedme", "g_acc"]  # 0.1, personal on all data, and 0.5, trained on all data
    assert (own.before, own.after, own.seeds) == (pytest.approx(0.1), pytest.approx(0.5), 2)
    assert own.points == pytest.approx(40.0)
    assert own.closes == pytest.approx(0.4 / 0.657)
    assert own.explains
    assert not shifts["pfedme", "l_acc"].explains, "it closes 0.3 of 0.746"
    assert shifts["pfedme", "gm_acc"].closes == pytest.approx(0.4 / 0.73)
    assert shifts["local", "l_acc"].points == 0.0
    assert step.size == pytest.approx((30 + 40 + 40) / 5)
    assert {change: len(cells) for change, cells in of.explained.items()} == {"one_step": 2}
    assert of.lost == {}
    text = page()
    size = "| one_step | 22.0 points (5 cells, 2 seeds, scale small) |"
    assert f"{size}  | 2 of 5 | 0 of 0 | FedProx and pFedMe train" in text
    assert "| one_step | pFedMe, FMNIST, PM G-acc. | 0.100 | 0.500 | 0.757 ± 0.071 | 61%, explained | up |" in text
    assert "| epochs | not measured |  |  |  | five local epochs |" in text
    assert "explains 2 gaps of reading paper (one_step)" in text


def test_a_gap_that_closes_against_what_was_predicted_or_overshoots_is_not_explained(add: Add) -> None:
    """FedFomo's L-acc is predicted to fall; here it rises from 0.5 to 0.9 (trained: half), and 0.991 is printed."""
    # Its row has the trained models under both readings: 0.2
    add("paper", {"fedfomo": [4]}, steps=1)
    add("fedfomo", {"fedfomo": [10]}, steps=2)  # 0.5
    add("stale", {"fedfomo": [10]}, steps=3)
    found = {s.base.printed.metric: s for s in effect(made(), "fedfomo").shifts}
    assert found["l_acc"].predicted == "down"
    assert not found["l_acc"]._replace(after=0.9).explains
    assert found["l_acc"]._replace(after=0.9, predicted="").explains
    over = found["l_acc"]._replace(after=2.5, predicted="")
    assert (over.explains, over.overshoots) == (False, True)
    assert {s.base.printed.metric: s.predicted for s in effect(made(), "stale").shifts} == dict.fromkeys(found, "")


def test_whether_a_cell_agrees_without_a_change_is_judged_on_the_seeds_that_both_have(add: Add) -> None:
    """Ditto's G-acc is printed as 0.389. Both seeds have 0.4 on average, and that of the change 0.3."""
    add("paper", {"ditto": [6, 10]}, steps=1)
    add("ditto", {"ditto": [8]}, steps=2)
    shift = {s.base.printed.metric: s for s in effect(made(), "ditto").shifts}["g_acc"]
    assert (shift.seeds, shift.before, shift.after) == (1, pytest.approx(0.3), pytest.approx(0.4))
    assert (shift.base.agrees, shift.agrees, shift.loses) == (True, False, False)
    assert shift.closes == pytest.approx(0.1 / 0.089)


def test_what_a_change_breaks_stands_beside_what_it_explains(add: Add) -> None:
    """Printed are Ditto's G-acc 0.389, its L-acc 0.991 and its global model 0.799, and FedFomo's global model 0.305."""
    add("paper", {"ditto": [8], "fedfomo": [8]}, steps=1)
    add("ditto", {"ditto": [4]}, steps=2)
    add("fedfomo", {"fedfomo": [4]}, steps=3)
    of = made()
    shifts = {s.base.printed.metric: s for s in effect(of, "ditto").shifts}
    lost = shifts["g_acc"]  # 0.4, and 0.2 with the change
    assert (lost.loses, lost.explains, lost._replace(after=0.37).loses) == (True, False, False)
    assert not shifts["gm_acc"].loses, "it did not agree before"
    assert {change: len(cells) for change, cells in of.lost.items()} == {"ditto": 1}
    text = page()
    assert "one change alone loses 1 agreeing cell (ditto)." in text
    (row,) = (line for line in text.splitlines() if line.startswith("| ditto | ") and "scale small" in line)
    assert row.split(" | ")[3:5] == ["0 of 2", "1 of 1"]
    assert "| ditto | Ditto, FMNIST, PM G-acc. | 0.400 | 0.200 | 0.389 ± 0.111 | it agreed: lost |" in text
    assert "| fedfomo | FedFomo, FMNIST, GM acc. | 0.400 | 0.200 | 0.305 | 211%, overshoots |" in text
    (row,) = (
        line for line in Path("out/index.md").read_text().splitlines() if line.startswith("| fedpg/table1 | ditto")
    )
    assert row.split(" | ")[4:6] == ["0 of 2", "1 of 1"]


def test_rows_are_in_the_order_of_all_numbers_of_a_column_whatever_their_reading(add: Add) -> None:
    """APFL is the best of three under `code`, and S-FedPG the second of two under `paper`, with higher numbers."""
    add("paper", {"fedpg": [10], "sfedpg": [9]}, steps=1)
    add("code", {"apfl": [8], "ditto": [7], "fedrep": [6]}, steps=2)
    text = page()
    rows = [line.split(" | ")[0] for line in text.splitlines() if re.match(r"\| \S.* \| (paper|code): .*<sub>", line)]
    assert rows[:5] == ["| FedPG", "| S-FedPG", "| APFL", "| Ditto", "| FedRep"]
    assert "**Bold**: our best of the column under its reading;" in text
    assert "in which all numbers of ours are ranked together" in text


def test_a_change_is_compared_at_its_own_scale_over_common_seeds(add: Add) -> None:
    """The page is of the newest scale of a whole table; the change was tried at another, with one of two seeds."""
    add("paper", {"local": [4, 8]}, scale="150", steps=1)
    add("paper", {"local": [9, 9]}, scale="small", steps=2)
    add("stale", {"local": [6]}, scale="150", steps=3)
    # No base at this scale
    add("epochs", {"local": [6]}, scale="12", steps=4)
    of = made()
    stale = effect(of, "stale")
    assert stale.scale == "150"
    own = next(s for s in stale.shifts if s.base.printed.metric == "l_acc")
    assert (own.before, own.after, own.seeds) == (pytest.approx(0.4), pytest.approx(0.6), 1)
    assert math.isnan(effect(of, "epochs").size)
    assert of.explained == {}, "no gap of this scale was tried"
    assert "**Scale:** **small**, " in page()


def test_of_several_scales_at_which_a_change_was_tried_the_newest_counts(add: Add) -> None:
    for steps, scale in enumerate(("150", "30")):
        add("paper", {"local": [4]}, scale=scale, steps=steps)
        add("stale", {"local": [6]}, scale=scale, steps=steps + 2)
    add("paper", {"local": [4]}, scale="small", steps=4)
    assert effect(made(), "stale").scale == "30"


def test_a_page_says_where_the_search_chose_otherwise_with_a_change(add: Add) -> None:
    """The effect on APFL is of both; Local's search chose the same."""
    add("paper", {"apfl": [5], "local": [8]}, steps=1, rates={"apfl": 0.1, "local": 0.1})
    add("stale", {"apfl": [6], "local": [7]}, steps=2, rates={"apfl": 0.05, "local": 0.1})
    assert effect(made(), "stale").chosen == [("apfl", "lr 0.05 in place of 0.1")]
    section = page().partition("<summary>What explains the difference")[2].partition("</details>")[0]
    row = next(line for line in section.splitlines() if line.startswith("| stale |"))
    assert row.split(" | ")[2] == "apfl: lr 0.05 in place of 0.1"
    assert section.count("- `pflsweep -m sweep=fedpg/table1 scale=small`") == 1, "what trained the change"
    index = Path("out/index.md").read_text()
    assert "| apfl: lr 0.05 in place of 0.1 |" in index.partition("## What single")[2]


def test_cells_that_a_change_does_not_reach_are_no_effect_of_it(add: Add) -> None:
    """Local is not changed by it, so both have the same trial."""
    add("paper", {"local": [8], "apfl": [5]})
    ledger = json.loads(Path(f"runs/sweeps/{'a' * 16}.json").read_text())
    Path(f"runs/sweeps/{'b' * 16}.json").write_text(json.dumps({**ledger, "reading": "apfl"}))
    assert effect(made(), "apfl").shifts == []
    assert "| apfl | not measured |" in page()


def test_an_expected_direction_is_up_or_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("sweeps/reading/mine.yaml")
    file.parent.mkdir(parents=True)
    change = "{paper: a, code: b, where: c, set: train.lr=0.1, expected: {fedavg: {acc: %s}}}"
    file.write_text("code: mine\nchanges:\n  rate: " + change % "up")
    known = reading.read("mine")
    assert known is not None
    assert known.changes["rate"].expected == {"fedavg": {"acc": "up"}}
    file.write_text("code: mine\nchanges:\n  rate: " + change % "higher")
    with pytest.raises(UserError, match=r"changes\.rate\.expected\.fedavg is \{'acc': 'higher'\}: it has to name"):
        reading.read("mine")
