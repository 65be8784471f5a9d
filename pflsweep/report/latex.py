"""Tables in LaTeX, in the style of booktabs, and the text in them."""

from collections.abc import Iterable, Sequence
from itertools import groupby

SPECIAL = {letter: rf"\{letter}" for letter in "&%#_${}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "†": r"\textdagger{}",
}


def escaped(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def tabular(
    comments: Iterable[str], groups: Sequence[str], heads: Iterable[str], rows: Iterable[tuple[str, Sequence[str]]]
) -> str:
    """Return a tabular of rows (label, cells). Cells are LaTeX already; all other text is escaped.

    comments: what a caption has to say, a comment each. groups: the head above each column, "" for none; columns beside
    each other with the same one share it. heads: of all columns, that of the labels first.
    """
    lines = [*map(_comment, comments), rf"\begin{{tabular}}{{l{'r' * len(groups)}}}", r"\toprule"]
    if any(groups):
        lines += _groups(groups)
    lines += [_row(map(escaped, heads)), r"\midrule", *(_row([escaped(label), *cells]) for label, cells in rows)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _comment(text: str) -> str:
    """Return a line of LaTeX that is not printed, whatever the text is."""
    return f"% {' '.join(text.split())}"


def _row(cells: Iterable[str]) -> str:
    row = " & ".join(cells) + r" \\"
    # After \\ or a rule LaTeX would read a bracket as its argument, and a star as its variant
    return "{}" + row if row.lstrip().startswith(("[", "*")) else row


def _groups(heads: Iterable[str]) -> list[str]:
    """Return the headers above the columns, and a rule under each."""
    cells, rules, at = [""], [], 2
    for head, group in groupby(heads):
        width = len(list(group))
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(head)}}}")
        rules += [rf"\cmidrule(lr){{{at}-{at + width - 1}}}"] if head else []
        at += width
    return [_row(cells), " ".join(rules)]
