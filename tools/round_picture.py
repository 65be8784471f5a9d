"""Draw docs/round.svg: one round of the engine, with the shape of everything that is passed on.

python -m tools.round_picture
"""

from pathlib import Path

from tools.svg import BLUE, DASHED, FAINT, GREEN, WIDTH, YELLOW, arrow, box, head, text

PICTURE = Path(__file__).parents[1] / "docs" / "round.svg"
HEIGHT = 560
SHAPES = (
    "P parameters of a model · N clients · M of them in a round (the cohort) · "
    "C at once (a chunk) · B samples in a batch"
)
WIRE = (
    "Only Down and Up are sent, and are counted. personal returns w [C, P], which is scored on each client's own "
    "test rows."
)


def lane(y: float, height: float, name: str, said: str) -> list[str]:
    """Return a row of the picture, whose place in the machine stands at its upper left."""
    frame = f'<rect x="15" y="{y}" width="{WIDTH - 30}" height="{height}" rx="8" {DASHED}/>'
    return [
        frame,
        text(27, y + 21, name, anchor="start", bold=True),
        text(27, y + 39, said, size=13, fill=FAINT, anchor="start"),
    ]


def picture() -> str:
    """Return the picture as SVG."""
    top, middle, bottom = 105, 285, 445
    send, start, fit, finish, aggregate = 215, 405, 565, 725, 725
    parts = [
        head(HEIGHT, "One round: send, start, fit, finish, aggregate"),
        *lane(15, 140, "Server", "one state for all"),
        *lane(180, 155, "A chunk of the cohort", "C clients at once"),
        *lane(360, 130, "Store and data", "a row for each of the N clients"),
        *box(95, top, 120, BLUE, "server", "w [P]"),
        *box(aggregate, top, 190, BLUE, "aggregate", "share [M] @ up.w [M, P]"),
        *box(915, top, 110, BLUE, "server", "w [P]", "next round"),
        *box(send, middle, 110, GREEN, "send", "w [P] → [C, P]"),
        *box(start, middle, 110, GREEN, "start", "first weights"),
        *box(fit, middle, 110, GREEN, "fit", "step · batches"),
        *box(finish, middle, 110, GREEN, "finish", "last weights"),
        *box(405, bottom, 110, YELLOW, "client rows", "v [N, P]"),
        *box(fit, bottom, 110, YELLOW, "batches", "x [C, B, ...]"),
        *box(725, bottom, 110, YELLOW, "client rows", "v [N, P]"),
        arrow((155, top), (send, top), (send, middle - 33)),
        arrow((send + 55, middle), (start - 55, middle)),
        arrow((start + 55, middle), (fit - 55, middle)),
        arrow((fit + 55, middle), (finish - 55, middle)),
        arrow((finish, middle - 33), (aggregate, top + 33)),
        arrow((aggregate + 95, top), (860, top)),
        arrow((start, bottom - 33), (start, middle + 33)),
        arrow((fit, bottom - 33), (fit, middle + 33)),
        arrow((finish, middle + 33), (finish, bottom - 33)),
        *box(915, middle, 110, GREEN, "personal", "evaluation"),
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
