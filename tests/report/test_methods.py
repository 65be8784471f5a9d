"""reports/methods.md and the page of each method say what methods and conf/ say today, and what was measured."""

import re

import pandas as pd

from benchmarks.methods import REPORTS, written
from pflsweep.config.hydra_loader import option_files
from pflsweep.report import methods

OPTIONS = set(option_files("algorithm"))


def test_the_pages_are_current() -> None:
    wanted = written()
    said = "a method has changed: `python -m benchmarks.methods --page` writes the pages anew"
    assert {*(REPORTS / methods.FOLDER).iterdir()} == set(wanted) - {REPORTS / methods.TABLE}, said
    assert [file.name for file, text in wanted.items() if file.read_text() != text] == [], said


def test_every_method_was_measured() -> None:
    costs = methods.costs(REPORTS)
    measured = {name for name in OPTIONS if not name.startswith("as_run/")}
    assert set(costs.index) == measured, "`python -m benchmarks.methods` measures all"
    assert abs(costs.at["fedavg", "time"] - 1) < 0.25
    assert (costs["time"] > 0).all()


def test_the_table_has_a_line_an_option_and_links_to_a_page_a_class() -> None:
    costs = pd.DataFrame({"traffic": [4.0], "time": [1.25]}, index=["pgfed_ce"])
    every = methods.options()
    assert {option.name for option in every} == OPTIONS
    table, pages = methods.table(every, costs), methods.pages(every, costs, {"pgfed": "here they stand"})
    assert "| [pgfed_ce](methods/pgfed.md) |" in table
    assert "| Luo et al., ICCV 2023 | 4 | 1.25 |" in table
    linked = set(re.findall(r"\(methods/(\w+)\.md\)", table))
    assert linked == set(pages)
    assert len(pages) == len({option.cls for option in every}), "no two classes share a page"
    page = pages["pgfed"]
    assert page.startswith("# PGFed\n")
    assert "- `algorithm=pgfed_ce`: " in page
    assert "; 4 models sent and received and 1.25 times FedAvg's time a round" in page
    assert "| estimate | where the others' risks are estimated" in page
    assert "- Reconstruction: " in pages["fedpg"]
    assert page.endswith("whatever their row is called in the table.\n\nhere they stand\n")
    assert "## Its numbers" not in pages["fedavg"]
