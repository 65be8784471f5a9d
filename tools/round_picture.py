"""Draw docs/round.svg: one round of the engine, with the shape of everything that is passed on.

python -m tools.round_picture
"""

from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "round.svg"
WIDTH, HEIGHT = 1000, 560
INK, FAINT, SERVER, CLIENT, STORE = "#1f2328", "#59636e", "#ddf4ff", "#dafbe1", "#fff8c5"
DASHED = 'fill="none" stroke="#d1d9e0" stroke-dasharray="5 4"'
SHAPES = (
    "P parameters of a model · N clients · M of them in a round (the cohort) · "
    "C at once (a chunk) · B samples in a batch"
)
WIRE = (
    "Only Down and Up are sent, and are counted. personal returns w [C, P], which is scored on each client's own "
    "test rows."
)


def head(height: int, title: str) -> str:
    """Return the first lines of a picture. It has a background, since GitHub shows it on a white or on a black page."""
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"
  font-family="Helvetica, Arial, sans-serif" font-size="15" fill="{INK}">
<title>{escape(title)}</title>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 10 5 0 10z" fill="{INK}"/></marker></defs>
<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="10" fill="#ffffff" stroke="#d1d9e0"/>"""


def text(
    x: float, y: float, said: str, *, size: int = 15, fill: str = INK, anchor: str = "middle", bold: bool = False
) -> str:
    """Return a line of text at a point of its base line."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(said)}</text>'
    )


def lane(y: float, height: float, name: str, said: str) -> list[str]:
    """Return a row of the picture, whose place in the machine stands at its upper left."""
    frame = f'<rect x="15" y="{y}" width="{WIDTH - 30}" height="{height}" rx="8" {DASHED}/>'
    return [
        frame,
        text(27, y + 21, name, anchor="start", bold=True),
        text(27, y + 39, said, size=13, fill=FAINT, anchor="start"),
    ]


def box(x: float, y: float, width: float, fill: str, name: str, *lines: str) -> list[str]:
    """Return a box around a middle, 66 high: a name and what is in it."""
    frame = f'<rect x="{x - width / 2}" y="{y - 33}" width="{width}" height="66" rx="6" fill="{fill}" stroke="{INK}"/>'
    first = y + 5 - 9 * len(lines)
    return [
        frame,
        text(x, first, name, bold=True),
        *(text(x, first + 18 * number, line, size=13) for number, line in enumerate(lines, 1)),
    ]


def arrow(*points: tuple[float, float]) -> str:
    """Return a line through points, with a tip at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.6" marker-end="url(#tip)"/>'


def picture() -> str:
    """Return the picture as SVG."""
    top, middle, bottom = 105, 285, 445
    send, start, fit, finish, aggregate = 215, 405, 565, 725, 725
    parts = [
        head(HEIGHT, "One round: send, start, fit, finish, aggregate"),
        *lane(15, 140, "Server", "one state for all"),
        *lane(180, 155, "A chunk of the cohort", "C clients at once"),
        *lane(360, 130, "Store and data", "a row for each of the N clients"),
        *box(95, top, 120, SERVER, "server", "w [P]"),
        *box(aggregate, top, 190, SERVER, "aggregate", "share [M] @ up.w [M, P]"),
        *box(915, top, 110, SERVER, "server", "w [P]", "next round"),
        *box(send, middle, 110, CLIENT, "send", "w [P] → [C, P]"),
        *box(start, middle, 110, CLIENT, "start", "first weights"),
        *box(fit, middle, 110, CLIENT, "fit", "step · batches"),
        *box(finish, middle, 110, CLIENT, "finish", "last weights"),
        *box(405, bottom, 110, STORE, "client rows", "v [N, P]"),
        *box(fit, bottom, 110, STORE, "batches", "x [C, B, ...]"),
        *box(725, bottom, 110, STORE, "client rows", "v [N, P]"),
        arrow((155, top), (send, top), (send, middle - 33)),
        arrow((send + 55, middle), (start - 55, middle)),
        arrow((start + 55, middle), (fit - 55, middle)),
        arrow((fit + 55, middle), (finish - 55, middle)),
        arrow((finish, middle - 33), (aggregate, top + 33)),
        arrow((aggregate + 95, top), (860, top)),
        arrow((start, bottom - 33), (start, middle + 33)),
        arrow((fit, bottom - 33), (fit, middle + 33)),
        arrow((finish, middle + 33), (finish, bottom - 33)),
        *box(915, middle, 110, CLIENT, "personal", "evaluation"),
        arrow((915, top + 33), (915, middle - 33)),
        arrow((780, bottom), (915, bottom), (915, middle + 33)),
        text(923, 172, "w [P]", size=13, anchor="start"),
        text(907, 352, "v [C, P]", size=13, anchor="end"),
        text(405, 210, "chunk after chunk, until all M clients have had their turn", size=13, fill=FAINT),
        text(310, middle - 30, "Down", size=13, fill=FAINT),
        text(310, middle - 12, "w [C, P]", size=13),
        text(485, middle - 30, "Work", size=13, fill=FAINT),
        text(485, middle - 12, "[C, P]", size=13),
        text(645, middle - 30, "Work", size=13, fill=FAINT),
        text(645, middle - 12, "[C, P]", size=13),
        text(finish + 10, 172, "Up of all chunks, w [M, P]", size=13, anchor="start"),
        text(start + 10, 352, "v [C, P]", size=13, anchor="start"),
        text(finish + 10, 352, "v [C, P]", size=13, anchor="start"),
        text(WIDTH / 2, 517, SHAPES, size=14),
        text(WIDTH / 2, 540, WIRE, size=13, fill=FAINT),
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
