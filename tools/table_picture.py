"""Draw FedPG's table 1 on Fashion-MNIST, our numbers and the published ones: README's picture, docs/table.svg.

python -m tools.table_picture
"""

from pathlib import Path

import pandas as pd

from pflsweep.report.paper.formats import number
from tools.svg import DASHED, FAINT, INK, head, text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "table.svg"
TABLE = ROOT / "reports" / "fedpg" / "table1" / "table.csv"
PANELS = {
    "l_acc": ("personal models,", "own data"),
    "s_acc": ("personal models,", "own and half of the others'"),
    "g_acc": ("personal models,", "all clients' data"),
    "gm_acc": ("global model,", "all clients' data"),
}
READINGS = "Rows of FedPG: as we reconstruct it from the paper. All others: as the authors' code runs them."
LEFT, TOP, LINE, PANEL, GAP = 156, 96, 38, 172, 36
AGREES, DIFFERS = "#0969da", "#bc4c00"


def cells() -> pd.DataFrame:
    """Return the cells that have a number of ours: as the authors' code computes it, and as the paper describes it
    where that code is not public.
    """
    table = pd.read_csv(TABLE).dropna(subset="value")
    # "code" comes before "paper", so that the code's cell of a pair is kept
    table = table[table["dataset"] == "fmnist"].sort_values("reading")
    return table.drop_duplicates(["method_label", "metric"])


def rows(table: pd.DataFrame) -> list[str]:
    """Return the methods' labels in the published table's order."""
    return list(dict.fromkeys(table.sort_values("row_order")["method_label"]))


def picture() -> str:
    """Return the picture as SVG: a panel for each accuracy, a line for each method that has a number of ours."""
    table = cells()
    methods = rows(table)
    height = TOP + LINE * len(methods) + 98
    parts = [head(height, "FedPG's table 1 on Fashion-MNIST: our accuracy and the published one")]
    for k, method in enumerate(methods):
        parts.append(text(LEFT - 14, TOP + LINE * (k + 0.5) + 5, method, anchor="end"))
    for k, (metric, names) in enumerate(PANELS.items()):
        x = LEFT + k * (PANEL + GAP)
        found = table[table["metric"] == metric].set_index("method_label")
        parts += axis(x, len(methods), names)
        for row, method in enumerate(methods):
            y = TOP + LINE * (row + 0.5)
            if method not in found.index:
                parts.append(text(x + PANEL / 2, y + 5, "no global model", size=12, fill=FAINT))
                continue
            parts += cell(x, y, *(found.loc[method, name] for name in ("value", "printed", "agrees")))
    parts.append(text(LEFT - 14, height - 46, READINGS, size=13, fill=FAINT, anchor="start"))
    return "\n".join([*parts, *legend(height - 20), "</svg>", ""])


def axis(x: float, lines: int, names: tuple[str, str]) -> list[str]:
    """Return a panel's headings, and its grid from 0 to 1."""
    bottom = TOP + LINE * lines
    parts = [text(x + PANEL / 2, 42 + 18 * k, name, bold=True, size=14) for k, name in enumerate(names)]
    for share in (0, 0.5, 1):
        at = x + PANEL * share
        parts.append(f'<line x1="{at}" y1="{TOP - 14}" x2="{at}" y2="{bottom}" {DASHED}/>')
        parts.append(text(at, bottom + 18, f"{share:g}", size=12, fill=FAINT))
    return parts


def cell(x: float, y: float, ours: float, printed: float, agrees: bool) -> list[str]:
    """Return the two marks of a cell, and a line between them."""
    color = AGREES if agrees else DIFFERS
    a, b = (round(x + PANEL * value, 1) for value in (ours, printed))
    # The number stands on our mark's side of the pair, unless the panel ends there.
    right = (a > b and a + 44 < x + PANEL + GAP) or min(a, b) - 44 < x
    at, anchor = (max(a, b) + 10, "start") if right else (min(a, b) - 10, "end")
    return [
        f'<line x1="{a}" y1="{y}" x2="{b}" y2="{y}" stroke="{color}" stroke-width="2"/>',
        f'<circle cx="{b}" cy="{y}" r="6" fill="#ffffff" stroke="{INK}" stroke-width="1.5"/>',
        f'<circle cx="{a}" cy="{y}" r="4" fill="{color}"/>',
        text(at, y + 5, number(ours, 3), size=12, fill=color, anchor=anchor),
    ]


def legend(y: float) -> list[str]:
    """Return what the marks mean."""
    parts = []
    marks = [
        (f'<circle cx="{{x}}" cy="{y - 5}" r="6" fill="#ffffff" stroke="{INK}" stroke-width="1.5"/>', "published"),
        (f'<circle cx="{{x}}" cy="{y - 5}" r="4" fill="{AGREES}"/>', "ours, agrees"),
        (f'<circle cx="{{x}}" cy="{y - 5}" r="4" fill="{DIFFERS}"/>', "ours, differs"),
    ]
    for x, (mark, said) in zip((LEFT + 130, LEFT + 250, LEFT + 480), marks, strict=True):
        parts += [mark.format(x=x), text(x + 14, y, said, anchor="start", size=14)]
    return parts


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
