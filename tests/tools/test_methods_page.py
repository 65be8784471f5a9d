"""reports/methods.md agrees with the methods' files, conf/ and the measurements."""

import pandas as pd

from benchmarks.methods import REPORTS, written
from pflsweep.config.compose import option_files
from tools import methods_page

OPTIONS = set(option_files("algorithm"))


def test_the_page_is_current() -> None:
    current = (REPORTS / "methods.md").read_text() == written()
    assert current, "a method has changed: `python -m benchmarks.methods --page` writes the page anew"


def test_every_method_was_measured() -> None:
    costs = pd.read_csv(REPORTS / "methods.csv", index_col="option")
    measured = {name for name in OPTIONS if not name.startswith("as_run/")}
    assert set(costs.index) == measured, "`python -m benchmarks.methods` measures all"
    assert abs(costs.at["fedavg", "time"] - 1) < 0.25
    assert (costs["time"] > 0).all()


def test_a_page_has_a_line_a_section_and_the_values_of_each_method() -> None:
    costs = pd.DataFrame({"wire": [4.0], "time": [1.25]}, index=["pgfed_ce"])
    page = methods_page.page(costs)
    assert "| [pgfed_ce](#pgfed) |" in page
    assert "| Luo et al., ICCV 2023 | 4 | 1.25 |" in page
    assert page.count("\n## ") == len(
        {line.split("](#")[1].split(")")[0] for line in page.splitlines() if "](#" in line}
    )
    assert "| estimate | where the others' risks are estimated" in page
    assert "- Reconstruction: " in page
