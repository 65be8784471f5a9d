"""The papers' claims in words, judged on a table's cells: the small language on top of reports/paper/claims.yaml."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import hypot
from statistics import correlation, fmean, median
from typing import Any, NamedTuple

COLUMN = ("table", "dataset", "model", "setting", "metric")
KEYS = (*COLUMN, "method")
EPS = 1e-9  # printed decimals are not exact in binary
LOW = ("epsilon", "rounds_to_70")  # metrics of which the lowest is printed bold
TAKE: dict[str, Callable[[list[float]], float]] = {"max": max, "min": min, "median": median, "mean": fmean}


class Statistic(NamedTuple):
    """One number of a table, printed or ours."""

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
    noise: float | None = None  # its std over seeds, whatever `std` is over

    @property
    def key(self) -> tuple[str, ...]:
        return (self.table, self.dataset, self.model, self.setting, self.metric, self.method)

    @property
    def column(self) -> tuple[str, ...]:
        return self.key[:-1]


class Term(NamedTuple):
    """A number that an operand stands for, with the keys by which it meets others."""

    keys: dict[str, str]
    value: float
    less: str = ""  # what was subtracted, where it differs in a key
    noise: float | None = None

    @property
    def column(self) -> tuple[str, ...]:
        return tuple(self.keys[key] for key in COLUMN)


class Check(NamedTuple):
    """One comparison that a claim rests on."""

    holds: bool
    said: str
    column: tuple[str, ...]  # of print, of the right side; empty where it has none
    clear: bool | None = None  # whether it holds by more than the noise of both sides; None where that is not known


class Ruling(NamedTuple):
    """holds: True, "partly" or False; None where a cell that print has is missing; "untold" where none can be there."""

    holds: bool | str | None
    checks: list[Check]
    without: list[tuple[str, ...]] = []  # noqa: RUF012 (never changed): keys of cells that print has and no run of ours


def judge(claim: dict[str, Any], cells: list[Statistic], needed: set[tuple[str, ...]] | None = None) -> Ruling:
    """Judge a claim on the cells of its paper. needed: keys without which it cannot be told, as `needed_cells` returns
    them.
    """
    court = _Court(claim, cells)
    ((form, body),) = claim["expr"].items()
    body = body or {}
    checks = list(court.checks(form, body))
    if not checks or (needed is not None and not needed <= court.seen):
        return Ruling(None, checks)
    return Ruling(_verdict(checks, body.get("quantifier", "all")), checks)


def needed_cells(claim: dict[str, Any], printed: list[Statistic]) -> set[tuple[str, ...]]:
    """Return the keys of all printed cells that a claim is about."""
    court = _Court(claim, printed)
    ((form, body),) = claim["expr"].items()
    list(court.checks(form, body or {}))
    return court.seen


def _verdict(checks: list[Check], quantifier: str) -> bool | str:
    n, of = sum(check.holds for check in checks), len(checks)
    if quantifier == "mixed":
        return 0 < n < of
    if quantifier == "some":
        return n > 0
    if quantifier == "most_per_column":  # of each left side against all others
        columns = defaultdict(list)
        for check in checks:
            columns[check.column, check.said.partition(" vs ")[0]].append(check.holds)
        n, of = sum(2 * sum(each) > len(each) for each in columns.values()), len(columns)
    elif quantifier == "most" and 2 * n > of:
        return True
    return True if n == of else "partly" if n else False


class _Court:
    def __init__(self, claim: dict[str, Any], cells: list[Statistic]) -> None:
        self.where = {"table": claim["table"], **(claim.get("where") or {})}
        self.cells = [cell for cell in cells if cell.paper == claim["paper"]]
        self.seen: set[tuple[str, ...]] = set()

    def checks(self, form: str, body: dict[str, Any]) -> Iterator[Check]:
        forms: dict[str, Callable[[dict[str, Any]], Iterator[Check]]] = {
            "top": self._top,
            "greater": self._greater,
            "diff": lambda body: self._ranges(body, lambda a, b: a - b),
            "ratio": lambda body: self._ranges(body, lambda a, b: a / b),
            "value": self._values,
            "trend": self._trend,
            "correlation": self._correlation,
            "bold": self._bold,
        }
        return forms[form](body)

    def _selected(self, op: dict[str, Any]) -> list[Statistic]:
        want = {key: [str(x) for x in _listed(value)] for key, value in self.where.items()}
        want |= {key: [str(x) for x in _listed(op[key])] for key in KEYS if key in op}
        bar, head = _listed(op.get("except", [])), want.get("method") == ["_head"]
        found = [
            cell
            for cell in self.cells
            if cell.method not in bar
            and (cell.method != "_head" or head)
            and all(getattr(cell, key) in allowed for key, allowed in want.items())
        ]
        self.seen |= {cell.key for cell in found}
        return found

    def _terms(self, op: dict[str, Any]) -> list[Term]:
        """Return the terms that an operand stands for."""
        terms = []
        for cell in self._selected(op):
            value = _stat(cell, op.get("stat", "value"))
            if value is not None:
                noise = cell.noise if op.get("stat", "value") == "value" else None
                terms.append(Term(dict(zip(KEYS, cell.key, strict=True)), value, noise=noise))
        if "take" in op:
            terms = [_taken(group, op["take"]) for group in _by_column(terms)]
        if "minus" in op:
            terms = list(self._less(terms, op))
        return [term._replace(value=abs(term.value)) for term in terms] if op.get("abs") else terms

    def _less(self, terms: list[Term], op: dict[str, Any]) -> Iterator[Term]:
        """Yield the terms minus the same cells with some keys replaced."""
        other = op["minus"]
        dropped = ("minus", "abs", "take", *(["except"] if "method" in other else []))
        free = _named(other)
        lists: list[Any] = [each.get("method") for each in (op, other)]
        step = all(isinstance(each, list) for each in lists) and len(lists[0]) == len(lists[1]) and "take" not in other
        subtracted = self._terms({**{k: v for k, v in op.items() if k not in dropped}, **other})
        for a, b in _meeting(terms, subtracted, free):
            if not step or lists[0].index(a.keys["method"]) == lists[1].index(b.keys["method"]):
                less = "" if "take" in other else " ".join(b.keys[key] for key in KEYS if key in free)
                yield Term(a.keys, a.value - b.value, less, _noise(a, b))

    def _pairs(self, body: dict[str, Any]) -> Iterator[tuple[Term, Term]]:
        left, right = body["left"], body["right"]
        for a, b in _meeting(self._terms(left), self._terms(right), _named(left) | _named(right)):
            if body.get("pair") == "zip":
                of = [_listed(op["method"]).index(t.keys["method"]) for op, t in ((left, a), (right, b))]
                if of[0] != of[1]:
                    continue
            yield a, b

    def _top(self, body: dict[str, Any]) -> Iterator[Check]:
        mine, places, sign = _listed(body["method"]), body.get("places", 1), -1 if body.get("lowest") else 1
        op = {key: value for key, value in body.items() if key in (*KEYS, "stat", "minus", "abs") and key != "method"}
        if "among" in body:
            op["method"] = [*body["among"], *(method for method in mine if method not in body["among"])]
        for column in _by_column(self._terms(op)):
            ranked = sorted(column, key=lambda term: -sign * term.value)
            own = [term for term in ranked if term.keys["method"] in mine]
            others = [term for term in ranked if term.keys["method"] not in mine]
            if len(own) >= places and others:
                a, b = own[places - 1], others[0]
                yield _compared(sign * (a.value - b.value), a, b, body, a.column)

    def _greater(self, body: dict[str, Any]) -> Iterator[Check]:
        for a, b in self._pairs(body):
            margin = a.value - b.value if a.value != b.value else 0.0  # both may be infinite
            yield _compared(margin, a, b, body, b.column)

    def _values(self, body: dict[str, Any]) -> Iterator[Check]:
        return _inside([(term.value, _named_cell(term), term) for term in self._terms(body["of"])], body)

    def _ranges(self, body: dict[str, Any], of: Callable[[float, float], float]) -> Iterator[Check]:
        met = [(a, b) for a, b in self._pairs(body) if a.value or b.value]
        return _inside([(of(a.value, b.value), _versus(a, b), a) for a, b in met], body)

    def _trend(self, body: dict[str, Any]) -> Iterator[Check]:
        ((axis, order),) = body["along"].items()
        sign = 1 if body["direction"] == "up" else -1
        apart = [key for key in KEYS if key != axis and not (key == "table" and body.get("across_tables"))]
        series: dict[tuple[str, ...], dict[str, Term]] = defaultdict(dict)
        for term in self._terms({**body["of"], axis: order}):
            series[tuple(term.keys[key] for key in apart)][term.keys[axis]] = term
        for points in series.values():
            there = [points[str(at)] for at in order if str(at) in points]
            steps = [(there[0], there[-1])] if body.get("by") == "ends" else list(pairwise(there))
            for a, b in steps if len(there) > 1 else []:
                if abs(a.value) != float("inf") or abs(b.value) != float("inf"):
                    check = _compared(sign * (b.value - a.value), b, a, body, ())
                    yield check._replace(said=f"{_named_cell(b)} vs {a.keys[axis]}: {b.value:.4g}, {a.value:.4g}")

    def _correlation(self, body: dict[str, Any]) -> Iterator[Check]:
        sign = 1 if body["sign"] == "positive" else -1

        def place(term: Term) -> tuple[str, ...]:
            return tuple(term.keys[key] for key in ("table", "dataset", "setting"))

        xs = {place(term): term.value for term in self._terms(body["x"])}
        series: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
        for term in self._terms(body["y"]):
            if place(term) in xs:
                series[*place(term)[:2], term.keys["method"], term.less].append((xs[place(term)], term.value))
        for name, points in series.items():
            if len(points) > 2:
                r = correlation(*zip(*points, strict=True))
                yield Check(sign * r > 0, f"{' '.join(name)}: r = {r:.2f}", ())

    def _bold(self, body: dict[str, Any]) -> Iterator[Check]:
        columns = defaultdict(list)
        over = [key for key in COLUMN if key != "setting" or body.get("over") != "settings"]
        for cell in self._selected({}):
            columns[tuple(getattr(cell, key) for key in over)].append(cell)
        for cells in columns.values():
            sign = -1 if cells[0].metric in LOW else 1
            top = max(sign * cell.value for cell in cells)
            bold = [cell for cell in cells if cell.best]
            holds = bool(bold) and all(sign * cell.value > top - EPS for cell in bold)
            for column in dict.fromkeys(cell.column for cell in cells):
                yield Check(holds, f"bold {', '.join(cell.method for cell in bold) or 'nothing'}", column)


def _inside(numbers: list[tuple[float, str, Term]], body: dict[str, Any]) -> Iterator[Check]:
    """Yield a check of each number, or of one that stands for all, against the range."""
    low, high = body["is"]

    def within(number: float) -> bool:
        return bool(low - EPS <= number <= high + EPS)

    reduce = body.get("reduce", "each")
    if reduce == "each":
        for number, said, term in numbers:
            yield Check(within(number), f"{said}: {number:.4g}", term.column)
    elif numbers and reduce == "mean":
        number = fmean(each[0] for each in numbers)
        yield Check(within(number), f"mean: {number:.4g}", ())
    elif numbers:
        number, said, term = (max if reduce == "max" else min)(numbers, key=lambda each: each[0])
        there = all(term.keys[key] == str(value) for key, value in body.get("at", {}).items())
        yield Check(within(number) and there, f"{said}: {number:.4g}", ())


def _compared(margin: float, a: Term, b: Term, body: dict[str, Any], column: tuple[str, ...]) -> Check:
    """Return the check whether a beats b by more than it has to, and by more than the noise of both besides."""
    low, noise = body.get("margin", 0), _noise(a, b)
    clear = None if noise is None else margin > low + noise + EPS
    return Check(_above(margin, low, body), _versus(a, b), column, clear)


def _noise(a: Term, b: Term) -> float | None:
    """Return the noise of a difference of two numbers; None where one's is not known."""
    return None if a.noise is None or b.noise is None else hypot(a.noise, b.noise)


def _above(margin: float, low: float, body: dict[str, Any]) -> bool:
    return bool(margin > low + EPS or (body.get("ties") and margin > low - EPS))


def _stat(cell: Statistic, stat: str) -> float | None:
    if stat == "value":
        return cell.value
    return None if cell.std is None else cell.std if stat == "std" else cell.value - cell.std


def _by_column(terms: Iterable[Term]) -> list[list[Term]]:
    columns = defaultdict(list)
    for term in terms:
        columns[term.column].append(term)
    return list(columns.values())


def _taken(column: list[Term], take: str) -> Term:
    value = TAKE[take]([term.value for term in column])
    one = next((term for term in column if term.value == value), None)
    if one is None:  # a mean, or a median between two
        return Term({**column[0].keys, "method": take}, value)
    return Term(one.keys, value, noise=one.noise)


def _meeting(left: list[Term], right: list[Term], free: set[str]) -> Iterator[tuple[Term, Term]]:
    """Yield the pairs that agree in every key that is not free."""
    fixed = [key for key in KEYS if key not in free]
    by_fixed = defaultdict(list)
    for term in right:
        by_fixed[tuple(term.keys[key] for key in fixed)].append(term)
    for a in left:
        for b in by_fixed[tuple(a.keys[key] for key in fixed)]:
            yield a, b


def _named(op: dict[str, Any]) -> set[str]:
    return {key for key in KEYS if key in op} | ({"method"} if "except" in op else set())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _named_cell(term: Term) -> str:
    return " ".join(term.keys[key] for key in ("method", "dataset", "setting", "metric"))


def _versus(a: Term, b: Term) -> str:
    apart = [key for key in KEYS if a.keys[key] != b.keys[key]] or ["method"]
    own, other = (", ".join(term.keys[key] for key in sorted({*apart, "method"}, key=KEYS.index)) for term in (a, b))
    where = re.sub(" +", " ", " ".join(a.keys[key] for key in ("dataset", "setting", "metric") if key not in apart))
    return f"{own} vs {other} ({where}): {a.value:.4g}, {b.value:.4g}"
