"""Judge the papers' claims in words on the cells of a table.

Each claim of reports/paper/claims.yaml has one of FORMS, which compare the numbers that operands stand for.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import hypot, inf, isinf
from statistics import correlation, fmean, median
from typing import Any, NamedTuple

from pflsweep.report.paper.agreement import EPS

COLUMN = ("table", "dataset", "model", "setting", "metric")
KEYS = (*COLUMN, "method")
LOW = ("epsilon", "rounds_to_70")  # metrics of which the lowest is printed bold
TAKE: dict[str, Callable[[list[float]], float]] = {"max": max, "min": min, "median": median, "mean": fmean}


class Statistic(NamedTuple):
    """One number of a table, printed or ours, or what an operand makes of some."""

    paper: str
    table: str
    dataset: str
    model: str
    setting: str
    metric: str
    method: str
    value: float
    std: float | None
    best: bool = False  # printed bold
    std_over_seeds: float | None = None  # its std over seeds, whatever `std` is over
    less: str = ""  # what an operand has subtracted, where it differs in a key

    def at(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the values of some keys."""
        return tuple(getattr(self, key) for key in keys)

    @property
    def key(self) -> tuple[str, ...]:
        return self.at(KEYS)

    @property
    def column(self) -> tuple[str, ...]:
        return self.at(COLUMN)


class Check(NamedTuple):
    """One comparison."""

    holds: bool
    said: str
    column: tuple[str, ...]  # of the published table, of the right side; empty if it has none
    clear: bool | None = None  # whether it holds by more than the noise of both sides; None if that is not known


class Ruling(NamedTuple):
    """Whether a claim holds, and why.

    holds: True, "partly" or False; None if one of its cells is missing so far; "undecidable" if none can be there.
    """

    holds: bool | str | None
    checks: list[Check]
    so_far: bool | str | None = None  # while cells are missing: whether it holds in `settings`, which lack none
    settings: tuple[str, ...] = ()
    printed: list[Check] = []  # noqa: RUF012 (never changed): the comparisons of the published numbers in `settings`
    # Methods with published cells that no run of ours can have: the places of those cells, none if it is all of them
    without: dict[str, list[str]] = {}  # noqa: RUF012 (never changed)


Select = Callable[[dict[str, Any]], list[Statistic]]  # the cells that an operand names
Body = dict[str, Any]  # of a claim: its operands, and how they are compared


def judge(claim: dict[str, Any], cells: list[Statistic], needed: set[tuple[str, ...]] | None = None) -> Ruling:
    """Return the ruling of a claim on the cells of its paper.

    needed: keys without which it cannot be decided, as `needed_cells` names them.
    """
    checks, quantifier, seen = _checked(claim, cells)
    if not checks or (needed is not None and not needed <= seen):
        return Ruling(None, checks)
    return Ruling(_verdict(checks, quantifier), checks)


def by_setting(claim: dict[str, Any]) -> bool:
    """Return whether a claim says the same of each setting, so that it can be judged in some of them."""
    ((form, body),) = claim["expr"].items()
    across = form == "correlation" or (form == "trend" and "method" not in body["along"])
    return not across and body.get("quantifier") not in ("some", "mixed") and body.get("reduce", "each") == "each"


def needed_cells(claim: dict[str, Any], printed: list[Statistic]) -> set[tuple[str, ...]]:
    """Return the keys of all printed cells that a claim is about."""
    return _checked(claim, printed)[2]


def _checked(claim: dict[str, Any], cells: list[Statistic]) -> tuple[list[Check], str, set[tuple[str, ...]]]:
    """Return the comparisons of a claim, how many of them have to hold, and the keys of the cells that it is about."""
    where = {"table": claim["table"], **(claim.get("where") or {})}
    own = [cell for cell in cells if cell.paper == claim["paper"]]
    seen: set[tuple[str, ...]] = set()

    def select(op: dict[str, Any]) -> list[Statistic]:
        named = {**where, **{key: op[key] for key in KEYS if key in op}}
        wanted = {key: [str(each) for each in listed(value)] for key, value in named.items()}
        barred = [*listed(op.get("except", [])), *([] if wanted.get("method") == ["_head"] else ["_head"])]
        found = [
            cell
            for cell in own
            if cell.method not in barred and all(getattr(cell, key) in allowed for key, allowed in wanted.items())
        ]
        seen.update(cell.key for cell in found)
        return found

    ((form, body),) = claim["expr"].items()
    body = body or {}
    return list(FORMS[form](select, body)), body.get("quantifier", "all"), seen


def _verdict(checks: list[Check], quantifier: str) -> bool | str:
    n, total = sum(check.holds for check in checks), len(checks)
    if quantifier == "mixed":
        return 0 < n < total
    if quantifier == "some":
        return n > 0
    if quantifier == "most_per_column":  # of each left side against all others
        columns = defaultdict(list)
        for check in checks:
            columns[check.column, check.said.partition(" vs ")[0]].append(check.holds)
        n, total = sum(2 * sum(each) > len(each) for each in columns.values()), len(columns)
    elif quantifier == "most" and 2 * n > total:
        return True
    return True if n == total else "partly" if n else False


# Forms: each yields its comparisons


def _top(select: Select, body: Body) -> Iterator[Check]:
    """Yield whether, in each column, the n-th best of some methods beats every other method."""
    mine, places, sign = listed(body["method"]), body.get("places", 1), -1 if body.get("lowest") else 1
    op = {key: value for key, value in body.items() if key in (*KEYS, "stat", "minus", "abs") and key != "method"}
    if "among" in body:
        op["method"] = [*body["among"], *(method for method in mine if method not in body["among"])]
    for column in _by(COLUMN, _numbers(select, op)):
        ranked = sorted(column, key=lambda cell: -sign * cell.value)
        own = [cell for cell in ranked if cell.method in mine]
        others = [cell for cell in ranked if cell.method not in mine]
        if len(own) >= places and others:
            a, b = own[places - 1], others[0]
            yield _compared(sign * (a.value - b.value), a, b, body, a.column)


def _greater(select: Select, body: Body) -> Iterator[Check]:
    for a, b in _pairs(select, body):
        margin = a.value - b.value if a.value != b.value else 0.0  # both may be infinite
        yield _compared(margin, a, b, body, b.column)


def _value(select: Select, body: Body) -> Iterator[Check]:
    return _inside([(cell.value, _name(cell), cell) for cell in _numbers(select, body["of"])], body)


def _difference(select: Select, body: Body) -> Iterator[Check]:
    return _inside([(a.value - b.value, _versus(a, b), a) for a, b in _pairs(select, body) if a.value or b.value], body)


def _ratio(select: Select, body: Body) -> Iterator[Check]:
    pairs = [(a, b) for a, b in _pairs(select, body) if a.value or b.value]
    return _inside([(a.value / b.value if b.value else inf, _versus(a, b), a) for a, b in pairs], body)


def _trend(select: Select, body: Body) -> Iterator[Check]:
    ((axis, order),) = body["along"].items()
    sign = 1 if body["direction"] == "up" else -1
    apart = [key for key in KEYS if key != axis and not (key == "table" and body.get("across_tables"))]
    for series in _by(apart, _numbers(select, {**body["of"], axis: order})):
        points = {getattr(cell, axis): cell for cell in series}
        there = [points[str(at)] for at in order if str(at) in points]
        steps = [(there[0], there[-1])] if body.get("by") == "ends" else list(pairwise(there))
        for a, b in steps if len(there) > 1 else []:
            if not (isinf(a.value) and isinf(b.value)):
                check = _compared(sign * (b.value - a.value), b, a, body, ())
                yield check._replace(said=f"{_name(b)} vs {getattr(a, axis)}: {b.value:.4g}, {a.value:.4g}")


def _correlation(select: Select, body: Body) -> Iterator[Check]:
    sign, place = 1 if body["sign"] == "positive" else -1, ("table", "dataset", "setting")
    xs = {cell.at(place): cell.value for cell in _numbers(select, body["x"])}
    for series in _by(("table", "dataset", "method", "less"), _numbers(select, body["y"])):
        points = [(xs[cell.at(place)], cell.value) for cell in series if cell.at(place) in xs]
        if len(points) > 2:
            name = " ".join(series[0].at(("table", "dataset", "method", "less")))
            if any(len(set(values)) == 1 for values in zip(*points, strict=True)):
                yield Check(False, f"{name}: all the same", ())
            else:
                r = correlation(*zip(*points, strict=True))
                yield Check(sign * r > 0, f"{name}: r = {r:.2f}", ())


def _bold(select: Select, body: Body) -> Iterator[Check]:
    """Check that each number that is printed bold is the best of its column."""
    for cells in _by([key for key in COLUMN if key != "setting" or body.get("over") != "settings"], select({})):
        sign = -1 if cells[0].metric in LOW else 1
        top = max(sign * cell.value for cell in cells)
        bold = [cell for cell in cells if cell.best]
        holds = bool(bold) and all(sign * cell.value > top - EPS for cell in bold)
        for column in dict.fromkeys(cell.column for cell in cells):
            yield Check(holds, f"bold {', '.join(cell.method for cell in bold) or 'nothing'}", column)


FORMS: dict[str, Callable[[Select, Body], Iterator[Check]]] = {
    "top": _top,
    "greater": _greater,
    "value": _value,
    "diff": _difference,
    "ratio": _ratio,
    "trend": _trend,
    "correlation": _correlation,
    "bold": _bold,
}


# Operands: each stands for numbers


def _numbers(select: Select, op: dict[str, Any]) -> list[Statistic]:
    """Return the numbers that an operand stands for."""
    found, stat = select(op), op.get("stat", "value")
    if stat != "value":
        with_std = [(cell, cell.std) for cell in found if cell.std is not None]
        values = [s if stat == "std" else cell.value - s for cell, s in with_std]
        found = [
            cell._replace(value=value, std_over_seeds=None) for (cell, _), value in zip(with_std, values, strict=True)
        ]
    if "take" in op:
        found = [_taken(column, op["take"]) for column in _by(COLUMN, found)]
    if "minus" in op:
        found = list(_less(select, found, op))
    return [cell._replace(value=abs(cell.value)) for cell in found] if op.get("abs") else found


def _taken(column: list[Statistic], take: str) -> Statistic:
    """Return one number for the cells of a column, such as their mean."""
    value = TAKE[take]([cell.value for cell in column])
    # a mean is no cell's, even if it is as large as one, and neither is a median between two
    one = None if take == "mean" else next((cell for cell in column if cell.value == value), None)
    return one or column[0]._replace(method=take, value=value, std_over_seeds=None)


def _less(select: Select, cells: list[Statistic], op: dict[str, Any]) -> Iterator[Statistic]:
    """Yield the differences of cells and the same cells with some keys replaced."""
    other = op["minus"]
    dropped = ("minus", "abs", "take", *(["except"] if "method" in other else []))
    lists: list[Any] = [each.get("method") for each in (op, other)]
    step = all(isinstance(each, list) for each in lists) and len(lists[0]) == len(lists[1]) and "take" not in other
    subtracted = _numbers(select, {**{key: value for key, value in op.items() if key not in dropped}, **other})
    for a, b in _meeting(cells, subtracted, free := _free(other)):
        if not step or lists[0].index(a.method) == lists[1].index(b.method):
            less = "" if "take" in other else " ".join(b.at(key for key in KEYS if key in free))
            yield a._replace(value=a.value - b.value, std_over_seeds=_std_of_difference(a, b), less=less)


def _pairs(select: Select, body: Body) -> Iterator[tuple[Statistic, Statistic]]:
    """Yield the pairs of numbers, one of each side of a claim, that are compared."""
    left, right = body["left"], body["right"]
    step = body.get("pair") == "zip"
    for a, b in _meeting(_numbers(select, left), _numbers(select, right), _free(left) | _free(right)):
        if not step or listed(left["method"]).index(a.method) == listed(right["method"]).index(b.method):
            yield a, b


def _meeting(left: list[Statistic], right: list[Statistic], free: set[str]) -> Iterator[tuple[Statistic, Statistic]]:
    """Yield the pairs of cells that agree in every key that is not free."""
    fixed = [key for key in KEYS if key not in free]
    by_fixed = {group[0].at(fixed): group for group in _by(fixed, right)}
    return ((a, b) for a in left for b in by_fixed.get(a.at(fixed), []))


def _free(op: dict[str, Any]) -> set[str]:
    """Return the keys that an operand names itself."""
    return {key for key in KEYS if key in op} | ({"method"} if "except" in op else set())


def _by(keys: Iterable[str], cells: Iterable[Statistic]) -> list[list[Statistic]]:
    groups = defaultdict(list)
    for cell in cells:
        groups[cell.at(keys)].append(cell)
    return list(groups.values())


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Comparisons


def _compared(margin: float, a: Statistic, b: Statistic, body: Body, column: tuple[str, ...]) -> Check:
    """Return the check of whether a exceeds b by the claim's margin, and by more than their noise besides."""
    low, std = body.get("margin", 0), _std_of_difference(a, b)
    clear = None if std is None else margin > low + std + EPS
    return Check(margin > low + (-EPS if body.get("ties") else EPS), _versus(a, b), column, clear)


def _inside(numbers: list[tuple[float, str, Statistic]], body: Body) -> Iterator[Check]:
    """Yield whether each number is in the claim's range, or one number that is taken for all."""
    low, high = body["is"]
    reduce, at = body.get("reduce", "each"), body.get("at", {})
    if numbers and reduce == "mean":
        numbers = [(fmean(number for number, _, _ in numbers), "mean", numbers[0][2])]
    elif numbers and reduce != "each":
        numbers = [(max if reduce == "max" else min)(numbers, key=lambda each: each[0])]
    for number, said, cell in numbers:
        there = all(getattr(cell, key) == str(value) for key, value in at.items())
        column = cell.column if reduce == "each" else ()
        yield Check(low - EPS <= number <= high + EPS and there, f"{said}: {number:.4g}", column)


def _std_of_difference(a: Statistic, b: Statistic) -> float | None:
    """Return the std over seeds of a difference of two numbers; None if one is not known."""
    return None if a.std_over_seeds is None or b.std_over_seeds is None else hypot(a.std_over_seeds, b.std_over_seeds)


def _name(cell: Statistic) -> str:
    return " ".join(cell.at(("method", "dataset", "setting", "metric"))) + _less_name(cell)


def _less_name(cell: Statistic) -> str:
    return f" - {cell.less}" if cell.less else ""


def _versus(a: Statistic, b: Statistic) -> str:
    apart = [key for key in KEYS if getattr(a, key) != getattr(b, key)] or ["method"]
    own, other = (", ".join(cell.at(sorted({*apart, "method"}, key=KEYS.index))) + _less_name(cell) for cell in (a, b))
    where = re.sub(" +", " ", " ".join(a.at(key for key in ("dataset", "setting", "metric") if key not in apart)))
    return f"{own} vs {other} ({where}): {a.value:.4g}, {b.value:.4g}"
