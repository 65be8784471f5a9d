"""Pictures of a paper's page: where their axes end."""

import pytest

from pflsweep.report import lines, style
from pflsweep.report.paper.figures import _skip_start

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
