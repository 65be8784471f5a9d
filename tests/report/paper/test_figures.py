"""Pictures of a paper's page: where their axes end, and what their files are called."""

from pathlib import Path

import pytest

from pflsweep.report import lines, style
from pflsweep.report.paper.figures import _skip_start, draw, gains
from pflsweep.util.errors import UserError
from tests.report.paper.fixtures import Sweep, reproduced

ROUNDS = range(1, 101)


@pytest.mark.parametrize(("several", "bottom"), [(True, 79.5), (False, 7.5)])
def test_the_untrained_start_of_several_curves_is_cut_off(several: bool, bottom: float) -> None:
    """The curves go on at 80 and 90% from round 11 on. A single one shows how it came there."""
    with style.panels(1, (4.0, 3.0)) as (_, (axes,)):
        for end in (80, 90) if several else (60,):
            axes.plot(ROUNDS, [10 if t <= 10 else end for t in ROUNDS])
        _skip_start(axes)
        low, high = axes.get_ylim()
    assert low == pytest.approx(bottom)
    assert high == pytest.approx(90.5 if several else 62.5)


def test_columns_of_one_setting_have_a_picture_of_gains_each(tmp_path: Path) -> None:
    """CIFAR-10 and CIFAR-100 are both split among 25 clients. A column of accuracies has none."""
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    for dataset in ("cifar10", "cifar100"):
        for method, right in (("local", 4), ("pgfed", 6)):
            sweep.add(f"{dataset}/clients25", method, {0: [right, right + 1]})
    sweep.write()
    stems = [picture.stem for picture in gains(reproduced(sweep.runs, "pgfed/gains"))]
    assert stems == ["gains-cifar10-clients25-gain_min", "gains-cifar100-clients25-gain_min"]
    assert [picture.stem for picture in gains(reproduced(sweep.runs, "pgfed/table3"))] == ["gains-clients25"]
    assert list(gains(reproduced(sweep.runs, "pgfed/table1"))) == []


def test_two_pictures_of_one_name_are_an_error(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path / "runs", seeds=(0,))
    sweep.add("cifar10/clients25", "local", {0: [4, 5]})
    sweep.write()
    of = reproduced(sweep.runs, "pgfed/table1")
    of.layout = of.layout._replace(figures=["by_row", "by_row"])
    with pytest.raises(UserError, match=r"pgfed/table1.yaml: two pictures would be called by-row.png"):
        draw({"paper": of}, tmp_path)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (["local"], "orange: the best method"),
        (["pgfed"], "blue: the paper's method"),
        (["local", "pgfed"], "blue: the paper's method, orange: the best other one"),
    ],
)
def test_only_colours_that_are_drawn_are_explained(drawn: list[str], said: str) -> None:
    assert lines.colours_in_words([drawn], ["pgfed", "pgfedmo"]) == said
    assert lines.colours_in_words([drawn], ["pgfed"], "table") == said.replace("paper", "table")
