"""The pictures: accuracy by round, gains of clients, who holds which labels, the matrices a method learns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pflsweep.report import lines, style
from pflsweep.report.quantities import Curve

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

Array = NDArray[np.float64]
WIDTH = 7.2  # inches of a figure of lines or strips
LONGEST = 2.4  # of a line of a method's name beside them


def accuracy(curves: Iterable[Curve], title: str = "", band: str = "", by: str = "round") -> "Figure":
    """Draw accuracy by round (or epoch), the name and last number of each curve at its end.

    band: what the shaded bands are, which are drawn where they can be seen. Up to seven curves have colours of their
    own, in the order in which they are given; of more, MOST are drawn and the best is not grey.
    """
    found = list(curves)
    ranked = sorted(found, key=lambda curve: -curve.mean[-1])
    few = len(found) <= len(style.PALETTE)
    looks = (
        lines.distinct([each.label for each in found]) if few else lines.line_styles([each.label for each in ranked])
    )
    drawn = [curve for curve in ranked if curve.label in looks]
    heading = (
        [f"{len(drawn)} of {len(found)} curves: {lines.drawn_in_words([list(looks)])}"]
        if len(drawn) < len(found)
        else []
    )
    with style.figure(WIDTH, 3.9) as (made, axes):
        axes.set_ylim(_limits(drawn))
        bands = False
        for curve in reversed(drawn):
            look = looks[curve.label]
            marker = {"marker": "o", "markersize": 3} if len(curve.rounds) <= 25 else {}
            axes.plot(curve.rounds, 100 * curve.mean, gid=f"curve {curve.label}", **{**look, **marker})
            if np.any(curve.high > curve.low) and look["color"] != lines.GREY:
                low, high = (np.clip(100 * edge, 0, 100) for edge in (curve.low, curve.high))
                bands |= lines.band(axes, curve.rounds, low, high, look["color"])
        axes.set(xlabel=by, ylabel="mean accuracy over clients (%)")
        heading += [band] if bands and band else []
        axes.set_title("\n".join([*filter(None, [style.wrapped(title, WIDTH - LONGEST - 0.6)]), *heading]))
        axes.xaxis.set_major_locator(integer_ticks())
        axes.margins(x=0.02)
        ends = [
            lines.EndLabel(
                style.wrapped(f"{curve.label}  {100 * curve.mean[-1]:.1f}%", LONGEST),
                curve.rounds[-1],
                100 * curve.mean[-1],
                looks[curve.label]["color"],
            )
            for curve in drawn
        ]
        _grow(made, ends)
        lines.name_ends(made, [(axes, ends)])
    return made


def _grow(made: "Figure", ends: Sequence[lines.EndLabel]) -> None:
    """Make a figure high enough for all names at its right."""
    rows = sum(end.name.count("\n") + 1 for end in ends)
    made.set_figheight(max(made.get_figheight(), 1.2 + lines.PITCH * rows))


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return the limits of the y-axis in percent, within 0 and 100, which hold all means.

    A band is cut where it extends beyond the means by more than their own range: the bands of two seeds would leave no
    room for the curves.
    """
    means, lows, highs = (np.concatenate(edge) for edge in zip(*((c.mean, c.low, c.high) for c in curves), strict=True))
    reach = max(float(np.ptp(means)), 0.02)
    low = max(float(lows.min()), float(means.min()) - reach, 0.0)
    high = min(float(highs.max()), float(means.max()) + reach, 1.0)
    margin = 0.05 * (high - low) or 0.02
    return 100 * max(low - margin, 0.0), 100 * min(high + margin, 1.0)


def gains(by_method: Mapping[str, Sequence[Array]], baseline: str, order: Sequence[str], title: str = "") -> "Figure":
    """Draw each client's accuracy minus its accuracy under the baseline, by method, one array per seed.

    `order`: all methods as in `accuracy`, so that each keeps its colour.
    """
    names, look = list(by_method), dict(zip(order, style.series_styles(), strict=False))
    dot = "a client and seed" if any(len(seeds) > 1 for seeds in by_method.values()) else "a client"
    with style.figure(WIDTH, 1.7 + 0.62 * len(names)) as (made, axes):
        axes.axvline(0, color="#444444", linewidth=1)
        for row, name in enumerate(names):
            points = 100 * np.concatenate(by_method[name])
            # As in the table: seeds count alike, whatever their numbers of clients
            mean = 100 * float(np.mean([each.mean() for each in by_method[name] if len(each)]))
            _strip(axes, points, mean, row, look[name]["color"], name)
            better = np.mean(points > 0)
            axes.annotate(
                f"{mean:+.1f} points, better for {better:.0%}",
                (1.0, row),
                (6, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                fontsize=9,
                annotation_clip=False,
            )
        said = [style.wrapped(name, LONGEST) for name in names]
        axes.set_yticks(range(len(names)), said)
        what = style.wrapped(f"accuracy of a client minus its accuracy under {baseline} (points)", WIDTH - LONGEST)
        axes.set_xlabel(f"{what}\ndot: {dot}; bar: the middle half of them; diamond: their mean")
        longest = max(len(part) for name in said for part in name.split("\n"))
        axes.set_title(style.wrapped(title, WIDTH - 0.5 - longest / style.PER_INCH))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(False, axis="y")
    return made


def labels(partition: "pd.DataFrame", title: str = "") -> "Figure":
    """Draw clients by classes: the darker a tile, the more training samples; white is none. Above, their sum."""
    from matplotlib.colors import PowerNorm

    counts = partition.pivot_table("train", "client", "class", aggfunc="sum", fill_value=0).to_numpy()
    clients, classes = counts.shape
    width = float(np.clip(0.075 * clients + 2.2, 6, 11))
    height = float(np.clip(0.2 * classes + 2.3, 3.8, 8))
    layout = {"height_ratios": [1, 3.4], "width_ratios": [40, 1]}
    with style.figure(width, height, nrows=2, ncols=2, gridspec_kw=layout) as (made, axes):
        (totals, corner), (tiles, scale) = axes
        corner.axis("off")
        totals.bar(range(clients), counts.sum(axis=1), color="#8c8c8c", width=0.8)
        totals.set(ylabel="samples", title=title, xlim=(-0.5, clients - 0.5))
        totals.tick_params(labelbottom=False)
        gap = 0.4 if clients * classes <= 2500 else 0
        norm = PowerNorm(0.5, vmin=0, vmax=max(counts.max(), 1))  # a root: ten samples can still be seen
        grid = (np.arange(clients + 1) - 0.5, np.arange(classes + 1) - 0.5)
        held = np.ma.masked_equal(counts.T, 0)
        mesh = tiles.pcolormesh(*grid, held, cmap=style.tints(), norm=norm, edgecolor="white", linewidth=gap)
        tiles.grid(False)
        tiles.set(xlabel="client", ylabel="class")
        tiles.yaxis.set_major_locator(integer_ticks())
        for part in (totals, tiles):
            part.xaxis.set_major_locator(integer_ticks())
        made.colorbar(mesh, cax=scale, label="training samples")
    return made


def heatmap(matrix: Array, name: str, title: str = "") -> "Figure":
    """Draw a matrix with one row per client (what it takes) and one column per client (from whom).

    name: of the matrix, which its colours are entries of. Where these have both signs, white is zero, and the scale is
    the same on both sides.
    """
    matrix = np.atleast_2d(np.asarray(matrix, dtype=np.float64))
    low, high = float(np.nanmin(matrix, initial=0.0)), float(np.nanmax(matrix, initial=0.0))
    signs: dict[str, Any] = {"cmap": style.MAP, "vmin": min(0.0, low)}
    if low < 0 < high:
        limit = max(-low, high)
        signs = {"cmap": style.SIGNED, "vmin": -limit, "vmax": limit}
    with style.figure(5.6, 4.7) as (made, axes):
        axes.grid(False)
        image = axes.imshow(matrix, interpolation="nearest", aspect="auto", **signs)
        made.colorbar(image, ax=axes, label=f"entry of {name}", shrink=0.9)
        square = matrix.shape[0] == matrix.shape[1]
        head = style.wrapped(title or f"Matrix {name} of the clients", 4.2)
        axes.set(title=head, ylabel="client", xlabel="from client" if square else "column")
        axes.xaxis.set_major_locator(integer_ticks())
        axes.yaxis.set_major_locator(integer_ticks())
        axes.spines[:].set_visible(False)
    return made


def _strip(axes: "Axes", points: Array, mean: float, row: int, colour: str, name: str) -> None:
    """Draw dots with a fixed jitter; below them the quartiles as a bar and a mean as a diamond."""
    jitter = np.random.default_rng(0).uniform(-0.16, 0.16, len(points)) - 0.12
    axes.scatter(points, row + jitter, s=13, color=colour, alpha=0.5, linewidth=0, gid=f"gains {name}")
    low, high = np.quantile(points, [0.25, 0.75])
    axes.plot([low, high], [row + 0.24] * 2, color="#222222", linewidth=3, solid_capstyle="butt")
    axes.plot(mean, row + 0.24, "D", color=colour, markeredgecolor="#222222", markersize=5.5)


def integer_ticks(most: int = 11) -> "MaxNLocator":
    """Return a locator of ticks at whole numbers. most: so many steps between them."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True, nbins=most)


def log_axis(axes: "Axes", ratio: float) -> None:
    """Make the x-axis logarithmic, with labels that do not overlap. ratio: the largest value divided by the least."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    # By default matplotlib labels the small ticks too where there are less than two decades
    axes.xaxis.set_minor_formatter(NullFormatter())
    if ratio < 30:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
