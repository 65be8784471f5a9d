"""How every figure of pflsweep looks: one palette, one size, one way to save."""

import hashlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from textwrap import fill
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

# Okabe and Ito (2008), told apart with any colour vision; without their yellow, which vanishes on white paper
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (5, 1.5, 1.2, 1.5)),
)  # so that a grey print can be read too
MARKERS = "osD^vP*"
PER_INCH = 13  # letters of a title; of smaller text a few more
MAP = "cividis"  # dark to bright without red against green
SIGNED = "PuOr_r"  # of numbers of both signs, white in the middle

_RC: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.7,
    "svg.fonttype": "none",  # text stays text: searchable, and readable by a test
    "svg.hashsalt": "pflsweep",  # the same figure is the same file
}


_DRAWING = RLock()  # matplotlib's settings are of the whole process, and stacked trials end at the same time


class Picture(NamedTuple):
    """A figure of a page."""

    stem: str  # of its files' names
    shows: str
    figure: "Figure"


@contextmanager
def _in_style() -> Iterator[None]:
    import matplotlib

    with _DRAWING, matplotlib.rc_context(_RC):
        yield


@cache
def _figure_class() -> type["Figure"]:
    """Return matplotlib's figure, which comes late, as one that a notebook shows without pyplot."""
    from matplotlib import figure

    class Figure(figure.Figure):
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            with _in_style():
                self.savefig(file, dpi="figure")
            return file.getvalue()

    return Figure


@contextmanager
def figure(width: float = 6.4, height: float = 4.0, **subplots: Any) -> Iterator[tuple["Figure", Any]]:
    """Yield a new figure and its axes in our style, without pyplot (nothing global, no window, no backend)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with _in_style():
        made = _figure_class()(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(made)
        yield made, made.subplots(**subplots)


@contextmanager
def panels(
    n: int, size: tuple[float, float], in_a_row: int = 3, legend: float = 2.0, **subplots: Any
) -> Iterator[tuple["Figure", Any]]:
    """Yield a figure of so many panels of that size, in rows of about one length, and their axes.

    legend: inches at the right of all panels.
    """
    rows = math.ceil(n / in_a_row)
    columns = math.ceil(n / rows)
    width, height = size[0] * columns + legend, size[1] * rows
    with figure(width, height, nrows=rows, ncols=columns, squeeze=False, **subplots) as (made, grid):
        for axes in grid.flat[n:]:
            axes.set_visible(False)
        yield made, list(grid.flat[:n])


def legend(made: "Figure", lines: Mapping[str, Any], **how: Any) -> "Legend":
    """Write the lines' names at the right of all panels; the figure grows where there are too many for its height."""
    breaks = "".join([*lines, how.get("title", "")]).count("\n")
    made.set_figheight(max(made.get_figheight(), 0.5 + 0.21 * (len(lines) + breaks)))
    return made.legend(list(lines.values()), list(lines), loc="outside right upper", **{"handlelength": 3, **how})


def wrapped(text: str, inches: float) -> str:
    """Return text in lines that are no longer than that, as far as letters are of middle width. A word and the number
    after it stay in one line.
    """
    kept = re.sub(r"(?<=[a-z]) (?=\d)", "\xa0", text)
    return fill(kept, max(16, int(PER_INCH * inches)), break_on_hyphens=False).replace("\xa0", " ")


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return heights that are at least `gap` apart, as near to the given ones as can be, in their order.

    Names of points or lines are written there, so that none hides another.
    """
    groups: list[tuple[list[int], float]] = []  # numbers of touching names, and the middle of their heights
    for at in sorted(range(len(heights)), key=lambda at: heights[at]):
        groups.append(([at], heights[at]))
        while len(groups) > 1:
            (lower, below), (upper, above) = groups[-2:]
            if above - below >= gap * (len(lower) + len(upper)) / 2:
                break
            joined = [*lower, *upper]
            groups[-2:] = [(joined, sum(heights[each] for each in joined) / len(joined))]
    found = list(heights)
    for members, middle in groups:
        for place, at in enumerate(members):
            found[at] = middle + gap * (place - (len(members) - 1) / 2)
    return found


def tints() -> "Colormap":
    """Return white paper's own sequential map: from a blue that is visible beside white to a dark one."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    blues = matplotlib.colormaps["Blues"]
    return ListedColormap([blues(0.15 + 0.85 * i / 255) for i in range(256)])


def stem(text: str) -> str:
    """Return a text, such as a setting, as the name of a picture that markdown and addresses hold as it is.

    `/` and `;` become `-`. So does every other sign that such a name cannot have; a digest at the end then keeps two
    texts apart.
    """
    plain = re.sub("[/;]", "-", text)
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", plain)
    return kept if kept == plain else f"{kept}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"


def save(made: "Figure", stem: Path, kinds: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Write a figure as `stem`.KIND for each of `kinds`, and return the paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    with _in_style():
        for path in paths:
            made.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
            made.set_layout_engine("none")  # once is enough: it takes half of the time
            if path.suffix == ".png":
                _reduce_colours(path)
    return paths


def _reduce_colours(path: Path) -> None:
    """Rewrite a PNG with 256 colours, in a third of its bytes.

    Maximum coverage keeps each pixel within 12 of 255. The median cut that is usual gives rare colours away: a colour
    bar gets bands.
    """
    from PIL import Image

    with Image.open(path) as full:
        reduced = full.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    reduced.save(path, dpi=full.info["dpi"])  # by which LaTeX and word processors size it


def series_styles() -> Iterator[dict[str, Any]]:
    """Yield colour, dash and marker of the first series, the second, ...: of 28, two of one colour differ in both
    others.
    """
    for i in count():
        lap, k = divmod(i, len(PALETTE))
        dash, marker = DASHES[(k + lap) % len(DASHES)], MARKERS[(k + 3 * lap) % len(MARKERS)]
        yield {"color": PALETTE[k], "linestyle": dash, "marker": marker}
