"""The index of a folder of reports: its picture and its table."""

import json
from pathlib import Path

import pytest

from pflsweep.records.ledger import ledgers
from pflsweep.report.paper import index
from pflsweep.report.paper.reproduction import Stores, reproduction
from pflsweep.report.paper.store import TrialReader

STANDING = {"complete": 11, "cells": 138, "agree": 8, "compared": 19, "difference": "7.1 points", "tau": "0.90",
            "failed": 0, "claims": {"holds": 1}}  # fmt: skip


def left(folder: Path, name: str, more: dict | None = None, **readings: dict) -> None:
    """Write what a report leaves of itself; without `more` as older versions did."""
    (folder / name).mkdir(parents=True)
    of = {"title": name, "scale": "small", "readings": readings, "trials": []} | (more or {})
    (folder / name / index.STATE).write_text(json.dumps(of))


@pytest.mark.parametrize(
    ("standing", "cells"),
    [
        ({"complete": 11, "cells": 138, "agree": 8, "compared": 19}, (8, 11, 0, 119)),
        # Four cells with some of their seeds, three complete ones that are not published
        ({"complete": 3, "cells": 10, "agree": 1, "compared": 4, "unprinted": 3}, (1, 3, 3, 3)),
        ({"complete": 162, "cells": 486, "agree": 0, "compared": 0}, (0, 0, 162, 324)),
        ({"complete": 0, "cells": 0, "agree": 0, "compared": 0}, (0, 0, 0, 0)),
    ],
)
def test_cells_agree_or_do_not_or_are_not_in_print_or_have_no_number(standing: dict, cells: tuple[int, ...]) -> None:
    assert index.shares(standing) == pytest.approx([100 * n / max(standing["cells"], 1) for n in cells])


def test_the_index_has_a_bar_and_a_line_for_each_reading_and_names_what_is_not_made(tmp_path: Path) -> None:
    left(tmp_path, "fedpg/table1", paper=STANDING, code=STANDING | {"agree": 19})
    left(tmp_path, "pgfed/table1", paper=STANDING)
    text = index.write(tmp_path, {"pgfed/table2": "a <broken> table"}).read_text()
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert [row.split(" | ")[1] for row in rows] == ["paper", "code", "paper"]
    assert "| pgfed/table2 | | | | | | | | | **error**: a &lt;broken&gt; table |" in text
    assert " | claims: hold / hold in part / do not hold / are open | what |" in text
    assert "pgfed/table3" in text.partition("Without a page so far")[2]
    assert text.index("(index.png)") < text.index("| report |")
    assert {"index.png", "index.svg"} <= {file.name for file in tmp_path.iterdir()}
    axes = index.picture(index.states(tmp_path)).axes[0]
    assert len(axes.patches) == 3 * len(index.PARTS)
    assert axes.patches[len(index.PARTS)].get_width() == pytest.approx(100 * 19 / 138)


def test_an_index_without_reports_has_no_picture(tmp_path: Path) -> None:
    assert "index.png" not in index.write(tmp_path, {}).read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["index.md"]


def test_the_index_says_why_tables_differ_and_what_single_changes_explain(tmp_path: Path) -> None:
    change = {"change": "epochs", "size": "1.5 points", "explains": "1 of 22", "lost": "2 of 19"}
    change |= {"paper": "five epochs", "code": "one", "chosen": "apfl: lr 0.1 in place of 0.05"}
    left(tmp_path, "fedpg/table1", {"why": "print is of fewer rounds", "effects": [change]}, paper=STANDING)
    left(tmp_path, "pgfed/table1", paper=STANDING)
    (tmp_path / index.DISCUSSION).write_text("**Half** of the numbers agree.\n")
    text = index.write(tmp_path, {}).read_text()
    assert "- **[fedpg/table1](fedpg/table1/README.md)**: print is of fewer rounds.\n" in text
    measured = "1.5 points | apfl: lr 0.1 in place of 0.05 | 1 of 22 | 2 of 19"
    assert f"| fedpg/table1 | epochs | {measured} | five epochs | one |\n" in text
    assert text.index("(index.png)") < text.index("**Half** of the numbers agree.") < text.index("| report |")
    assert text.count("## Why") == text.count("## What single") == 1


@pytest.mark.parametrize(
    ("link", "moved"),
    [
        ("../table1/README.md#order", "pgfed/table1/README.md#order"),
        ("#order", "pgfed/table3/README.md#order"),
        ("curves.png", "pgfed/table3/curves.png"),
        ("../../../docs/sweeps.md", "../docs/sweeps.md"),
        ("https://example.org/a", "https://example.org/a"),
    ],
)
def test_the_index_leads_where_a_reason_does(link: str, moved: str) -> None:
    assert index.from_index(f"as in [it]({link}), (so)", "pgfed/table3") == f"as in [it]({moved}), (so)"


def test_a_table_leaves_its_reason_and_its_measured_changes_for_the_index() -> None:
    root = Path(__file__).parents[3] / "reports"
    trials = TrialReader(root / "runs")
    stores = Stores(trials, ledgers(*trials.places))
    of = reproduction("fedpg/table1", stores, "paper")
    state = index.state(of, "the reason.")
    assert state["why"] == "the reason"
    measured = {effect.change.name for effect in of.effects if effect.shifts}
    assert {each["change"] for each in state["effects"]} == measured
    assert {"splitgp", "epochs"} <= measured
    assert "cifar100_network" not in measured
    lost = {each["change"]: each["lost"] for each in state["effects"]}
    assert (lost["fedrod"], lost["ditto"], lost["epochs"]) == ("1 of 4", "1 of 2", "2 of 19")
