"""Text in markdown: what comes from records, ledgers and error messages is escaped here, for all pages.

A page is shown by GitHub, by MLflow (a run's description) and as HTML (html.py). A record may be somebody else's, so
its text becomes neither HTML nor a link nor a row of a table.
"""

import re
from collections.abc import Iterable, Sequence

# brackets make a link, or begin the definition of one, with what follows `]`; `_` is emphasis at a word's end alone
SPECIAL = re.compile(r"[\\`*~|]|\](?=[(\[:])|^\[(?=.*\]$)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^#")
ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def inline(value: object) -> str:
    """Return text that markdown shows as it is, on one line, in a paragraph, a list or a table."""
    text = SPECIAL.sub(r"\\\g<0>", " ".join(str(value).split()))
    return re.sub("[&<>]", lambda found: ENTITIES[found[0]], text)


def code(value: object) -> str:
    """Return text as code, in a paragraph, a list or a `cell`."""
    text = " ".join(str(value).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    if len(fence) > 1:
        text = f" {text} "  # which is not shown, and keeps a backtick apart from the fence
    return f"{fence}{text}{fence}"


def cell(markdown: object) -> str:
    """Return markdown as a cell of a table may hold it. What comes from a record is `inline` or `code` before."""
    return re.sub(r"(?<!\\)\|", r"\\|", str(markdown).replace("\n", " "))


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], align: str | Sequence[str] = "--:") -> str:
    """Return a pipe table of cells that are markdown: the first column left, the others by `align`, which is right. It
    is one for all of them, or one each.
    """
    columns = list(columns)
    rule = [":--", *([align] * (len(columns) - 1) if isinstance(align, str) else align)]
    lines = [columns, rule, *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
