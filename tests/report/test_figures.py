"""Figures are whole and readable: nothing falls off the page or hides something else."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from PIL import Image

from pflsweep.report import figures, lines, style
from pflsweep.report.quantities import Curve

BAND = "band: 95% CI over seeds"
LONG = "Personal models, digits, dirichlet, mlp, validation=0.1, hidden=[200, 200], alpha=0.3, least=40, lr=0.05"
TUNED = [f"fedala (train.lr={lr}, share={share}, layers=1)" for lr in (0.1, 0.0001) for share in (0.05, 1.0)]


def curve(label: str, mean: list[float], half: float = 0.0) -> Curve:
    values = np.array(mean)
    return Curve(label, np.arange(1.0, len(mean) + 1), values, values - half, values + half)


def test_a_title_breaks_between_words_but_not_before_a_number() -> None:
    title = "MNIST, 100 clients; Ours (5 clients downloaded); seed 0; round 100"
    assert style.wrapped(title, 53 / style.PER_INCH) == (
        "MNIST, 100 clients; Ours (5 clients downloaded);\nseed 0; round 100"
    )
    assert style.wrapped(title, 10).splitlines() == [title]


@pytest.mark.parametrize(
    ("heights", "apart"),
    [
        ([0.0, 5.0], [0.0, 5.0]),
        ([3.0, 3.0], [2.5, 3.5]),
        ([9.0, 1.0, 1.2], [9.0, 0.6, 1.6]),
        ([0.0, 0.9, 1.8], [-0.1, 0.9, 1.9]),
    ],
)
def test_names_that_touch_are_spread_around_where_they_belong(heights: list[float], apart: list[float]) -> None:
    assert style.spread(heights, 1.0) == pytest.approx(apart)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cifar10/latent5;delta0.1", "cifar10-latent5-delta0.1"),
        ("a b", r"a-b-[0-9a-f]{6}"),
        ("digits/größe", r"digits-gr-e-[0-9a-f]{6}"),
    ],
)
def test_a_picture_has_a_name_that_markdown_holds(text: str, name: str) -> None:
    assert re.fullmatch(name, style.stem(text))
    assert style.stem("a b") != style.stem("a  b")


def names(made: Figure) -> list[Annotation]:
    """Return the names of the lines at their ends, drawn."""
    made.draw_without_rendering()
    (axes,) = made.axes
    return [text for text in axes.texts if isinstance(text, Annotation)]


def left_title(axes: Axes) -> Text:
    """Return the title above the left end of axes."""
    (found,) = (text for text in axes.findobj(Text) if text.get_text() and text.get_text() == axes.get_title("left"))
    assert isinstance(found, Text)
    return found


def letters(name: Annotation) -> Bbox:
    """Return the box of a name without the stroke that leads to its line."""
    return Text.get_window_extent(name)


def test_every_line_has_its_name_beside_it_on_the_page_and_more_than_twelve_are_not_drawn() -> None:
    few, many = ([curve(f"method {k}", [0.0, k / 30]) for k in range(count)] for count in (4, 25))
    made = figures.accuracy(few)
    assert [name.get_text() for name in names(made)] == [f"method {k}  {100 * k / 30:.1f}%" for k in (3, 2, 1, 0)]
    made = figures.accuracy(many)
    boxes = sorted(map(letters, names(made)), key=lambda box: box.y0)
    assert len(boxes) == len(made.axes[0].lines) == lines.MOST
    assert all(box.y0 >= 0 and box.y1 <= made.bbox.y1 and box.x1 <= made.bbox.x1 for box in boxes)
    assert all(upper.y0 > lower.y0 + 8 for lower, upper in pairwise(boxes)), "no name hides another"
    assert made.axes[0].get_title("left") == "12 of 25 curves: the best"
    best = next(line for line in made.axes[0].lines if line.get_gid() == "curve method 24")
    assert best.get_color() == style.PALETTE[1]
    assert {line.get_color() for line in made.axes[0].lines if line is not best} == {lines.GREY}


def test_the_papers_method_and_the_best_other_one_stand_out_and_references_are_drawn() -> None:
    order = ["ditto", *(f"m{k}" for k in range(20)), "fedavg", "pgfed", "local"]
    looks = lines.line_styles(order, own=["pgfed"])
    assert len(looks) == lines.MOST
    assert {"ditto", "pgfed", "fedavg", "local", "m0"} <= looks.keys()
    assert looks["pgfed"]["color"] == style.PALETTE[0]
    assert looks["ditto"]["color"] == style.PALETTE[1]
    assert looks["fedavg"]["color"] == looks["m0"]["color"] == lines.GREY
    assert looks["fedavg"]["linestyle"] != looks["m0"]["linestyle"] != looks["local"]["linestyle"]
    assert lines.drawn_in_words([looks]) == "the best, local and fedavg"
    assert lines.drawn_in_words([["m0", "fedavg"], ["m1"]]) == "the best and fedavg"


def test_a_band_is_drawn_where_it_can_be_seen() -> None:
    wide, narrow = curve("wide", [0.1, 0.5], half=0.02), curve("narrow", [0.2, 0.6], half=0.001)
    made = figures.accuracy([wide, narrow], band=BAND)
    assert len(made.axes[0].collections) == 1
    assert BAND in made.axes[0].get_title("left")
    made = figures.accuracy([narrow], band=BAND)
    assert BAND not in made.axes[0].get_title("left")


@pytest.mark.parametrize("labels", [["local", "fedavg"], TUNED])
def test_a_long_title_hides_no_name_and_names_leave_room_for_the_curves(labels: list[str]) -> None:
    made = figures.accuracy([curve(label, [0.1, 0.5], half=0.1) for label in labels], LONG, BAND)
    beside = names(made)
    (axes,) = made.axes
    title = left_title(axes)
    assert title.get_text().replace("\n", " ") == f"{LONG} {BAND}"
    assert title.get_window_extent().x1 <= made.bbox.x1
    assert title.get_window_extent().y1 <= made.bbox.y1
    for name in beside:
        assert axes.bbox.x1 < letters(name).x0
        assert letters(name).x1 <= made.bbox.x1
        assert letters(name).y1 < title.get_window_extent().y0
    assert axes.bbox.width > 0.4 * made.bbox.width


def test_the_axis_is_of_the_means_inside_0_and_100_however_wide_the_band_of_two_seeds() -> None:
    made = figures.accuracy([curve("fedavg", [0.3, 0.5], half=1.6), curve("pgfed", [0.4, 0.7], half=0.02)], band=BAND)
    assert made.axes[0].get_ylim() == (0, 100)
    for band in made.axes[0].collections:
        edges = band.get_paths()[0].vertices[:, 1]
        assert 0 <= edges.min() <= edges.max() <= 100
    made = figures.accuracy([curve("fedavg", [0.78, 0.80], half=0.3)], band=BAND)
    assert made.axes[0].get_ylim() == pytest.approx((76 - 0.3, 82 + 0.3))
    made = figures.accuracy([curve("fedavg", [0.78, 0.80], half=0.01)], band=BAND)
    assert made.axes[0].get_ylim() == pytest.approx((77 - 0.2, 81 + 0.2)), "a narrow band is whole"


def test_a_heat_map_of_both_signs_is_white_at_zero_with_one_scale_and_has_a_title() -> None:
    made = figures.heatmap(np.array([[-20.0, 0.0], [1.0, 4.0]]), "P", "Weights of FedFomo")
    tiles, bar = made.axes
    assert tiles.get_title("left") == "Weights of FedFomo"
    assert bar.get_ylabel() == "entry of P"
    (image,) = tiles.images
    red, green, blue, _ = image.cmap(image.norm(0.0))
    assert min(red, green, blue) > 0.95
    assert image.get_clim() == (-20, 20), "4 is not as dark as -20"


@pytest.mark.parametrize(("seeds", "dot"), [(1, "dot: a client;"), (2, "dot: a client and seed;")])
def test_a_dot_of_gains_says_what_it_is(seeds: int, dot: str) -> None:
    made = figures.gains({"pgfed": [np.array([0.1, 0.2])] * seeds}, "fedavg", ["fedavg", "pgfed"])
    assert dot in made.axes[0].get_xlabel()
    assert sum(len(dots.get_offsets()) for dots in made.axes[0].collections) == 2 * seeds


def test_the_mean_gain_in_the_picture_is_the_tables() -> None:
    """Seeds count alike, whatever their numbers of clients: 10 points on average under one, and 40 under the other."""
    made = figures.gains({"pgfed": [np.array([0.1] * 3), np.array([0.4])]}, "fedavg", ["fedavg", "pgfed"])
    assert [text.get_text() for text in made.axes[0].texts] == ["+25.0 points, better for 100%"]


@pytest.mark.parametrize("labels", [["local", "fedavg"], TUNED])
def test_gains_have_all_words_on_the_page(labels: list[str]) -> None:
    made = figures.gains({label: [np.linspace(-0.1, 0.1, 9)] for label in labels[1:]}, labels[0], labels, LONG)
    made.draw_without_rendering()
    (axes,) = made.axes
    for words in (left_title(axes), axes.xaxis.label, *axes.get_yticklabels()):
        shown = words.get_window_extent()
        assert shown.x0 >= 0, words
        assert shown.x1 <= made.bbox.x1, words
        assert 0 <= shown.y0 <= shown.y1 <= made.bbox.y1, words


def test_a_saved_png_has_few_bytes_and_no_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 256 colours each pixel of a heat map and of its colour bar is within 12 of 255 of what was drawn."""
    made = figures.heatmap(np.random.default_rng(0).normal(size=(60, 60)), "P", "Weights of FedFomo")
    (saved,) = style.save(made, tmp_path / "saved", kinds=("png",))
    monkeypatch.setattr(style, "_reduce_colours", lambda path: None)
    (full,) = style.save(made, tmp_path / "full", kinds=("png",))
    with Image.open(full) as a, Image.open(saved) as b:
        apart = np.abs(np.asarray(a.convert("RGB"), int) - np.asarray(b.convert("RGB"), int))
        assert b.info["dpi"] == a.info["dpi"]
    assert apart.max() <= 12
    assert saved.stat().st_size < full.stat().st_size / 2
