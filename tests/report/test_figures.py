"""Figures are whole and readable: nothing falls off the page or hides something else."""

import numpy as np
import pytest

from pflsweep.report import figures

BAND = "band: 95% CI over seeds"
LONG = "Personal models, digits, dirichlet, mlp, validation=0.1, hidden=[200, 200], alpha=0.3, least=40, lr=0.05"
TUNED = [f"fedala (train.lr={lr}, share={share}, layers=1)" for lr in (0.1, 0.0001) for share in (0.05, 1.0)]


def curve(label: str, mean: list[float], half: float = 0.0) -> figures.Curve:
    values = np.array(mean)
    return figures.Curve(label, np.arange(1.0, len(mean) + 1), values, values - half, values + half)


def test_every_name_of_many_lines_is_on_the_page() -> None:
    few, many = (
        [figures.Curve(f"method {k}", np.arange(3.0), *[np.full(3, k / 30)] * 3) for k in range(count)]
        for count in (4, 25)
    )
    heights = []
    for curves in (few, many):
        made = figures.accuracy(curves)
        made.draw_without_rendering()
        names = made.legends[0].get_window_extent()
        assert names.y0 >= 0
        assert names.y1 <= made.bbox.y1
        heights.append(made.get_figheight())
    assert heights[0] == 3.9
    assert heights[1] > 5


@pytest.mark.parametrize("names", [["local", "fedavg"], TUNED])
def test_a_long_title_hides_no_name_and_names_leave_room_for_the_curves(names: list[str]) -> None:
    made = figures.accuracy([curve(name, [0.1, 0.5]) for name in names], LONG, BAND)
    made.draw_without_rendering()
    (axes,), legend = made.axes, made.legends[0].get_window_extent()
    title = axes._left_title
    assert title.get_text().replace("\n", " ") == LONG
    assert title.get_window_extent().x1 <= legend.x0
    assert title.get_window_extent().y1 <= made.bbox.y1
    assert legend.x1 <= made.bbox.x1
    assert axes.bbox.width > 0.4 * made.bbox.width


def test_the_axis_is_of_the_means_however_wide_the_band_of_two_seeds() -> None:
    made = figures.accuracy([curve("fedavg", [0.3, 0.5], half=1.6), curve("pgfed", [0.4, 0.7], half=0.02)], band=BAND)
    low, high = made.axes[0].get_ylim()
    assert -6 < low < 0, "all that an accuracy may be, and a margin"
    assert 100 < high < 106
    for band in made.axes[0].collections:
        edges = band.get_paths()[0].vertices[:, 1]
        assert 0 <= edges.min() <= edges.max() <= 100
    made = figures.accuracy([curve("fedavg", [0.78, 0.80], half=0.3)], band=BAND)
    assert made.axes[0].get_ylim() == pytest.approx((76 - 0.3, 82 + 0.3))
    made = figures.accuracy([curve("fedavg", [0.78, 0.80], half=0.01)], band=BAND)
    assert made.axes[0].get_ylim() == pytest.approx((77 - 0.2, 81 + 0.2)), "a narrow band is whole"


@pytest.mark.parametrize(("seeds", "dot"), [(1, "dot: a client;"), (2, "dot: a client and seed;")])
def test_a_dot_of_gains_says_what_it_is(seeds: int, dot: str) -> None:
    made = figures.gains({"pgfed": [np.array([0.1, 0.2])] * seeds}, "fedavg", ["fedavg", "pgfed"])
    assert dot in made.axes[0].get_xlabel()
    assert sum(len(dots.get_offsets()) for dots in made.axes[0].collections) == 2 * seeds


@pytest.mark.parametrize("names", [["local", "fedavg"], TUNED])
def test_gains_have_all_words_on_the_page(names: list[str]) -> None:
    made = figures.gains({name: [np.linspace(-0.1, 0.1, 9)] for name in names[1:]}, names[0], names, LONG)
    made.draw_without_rendering()
    (axes,) = made.axes
    for words in (axes._left_title, axes.xaxis.label, *axes.get_yticklabels()):
        shown = words.get_window_extent()
        assert shown.x0 >= 0, words
        assert shown.x1 <= made.bbox.x1, words
        assert 0 <= shown.y0 <= shown.y1 <= made.bbox.y1, words
