"""Check a claim as it stands in reports/paper/claims.yaml, before it is judged."""

from collections.abc import Iterator
from typing import Any

from pflsweep.config.keys import is_number
from pflsweep.report.paper.claims import FORMS, KEYS, TAKE, listed
from pflsweep.util.errors import UserError, nearest, require_known, require_one_of

QUANTIFIERS = ("all", "most", "most_per_column", "some", "mixed")
PAIRED = ("left", "right")
COMPARED = ("margin", "ties", "quantifier")
RANGE = ("reduce", "at", "quantifier")
OPERANDS = ("of", *PAIRED, "x", "y")
OPERAND_KEYS = (*KEYS, "except", "stat", "take", "minus", "abs")
# The keys that a form needs, and those that it may have
FORM_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "top": (("method",), ("places", "among", "lowest", "stat", "minus", "abs", *KEYS, *COMPARED)),
    "greater": (PAIRED, ("pair", *COMPARED)),
    "value": (("of", "is"), RANGE),
    "diff": ((*PAIRED, "is"), ("pair", *RANGE)),
    "ratio": ((*PAIRED, "is"), ("pair", *RANGE)),
    "trend": (("of", "along", "direction"), ("by", "across_tables", *COMPARED)),
    "correlation": (("x", "y", "sign"), ("quantifier",)),
    "bold": ((), ("over", "quantifier")),
}
VALUES: dict[str, tuple[Any, ...]] = {  # of keys of a form or an operand
    "quantifier": QUANTIFIERS,
    "reduce": ("each", "max", "min", "mean"),
    "direction": ("up", "down"),
    "by": ("steps", "ends"),
    "sign": ("positive", "negative"),
    "stat": ("value", "std", "value-std"),
    "take": tuple(TAKE),
    "pair": ("zip",),
    "over": ("settings",),
}
NEEDED = ("id", "paper", "table", "quote", "expr", "basis", "needs_rerun")
FIELDS = (*NEEDED, "holds_in_print", "kind", "where", "rerun", "note", "numbers")
BASES = ("stated", "reading", "extended", "consistency")
HOLDS = (True, "partly", False)


def check(claim: Any, file: str) -> None:
    """Raise UserError if a claim lacks a field, or its form is none. file: for the message."""
    where = f"{file}: claim {claim.get('id', '')!r}" if isinstance(claim, dict) else f"{file}: {claim!r}"
    if not isinstance(claim, dict):
        raise UserError(f"{where} is no claim: it has {', '.join(NEEDED)}.")
    require_known(claim, FIELDS, where)
    printed = () if claim.get("needs_rerun") else ("holds_in_print",)
    _require(claim, (*NEEDED, *printed), where)
    if not isinstance(claim["table"], list):
        raise UserError(f"{where}: table is {claim['table']!r}: it has to be a list of tables, as in [1].")
    fields = (("basis", BASES), ("needs_rerun", (True, False)), *((key, HOLDS) for key in printed))
    for key, allowed in fields:
        require_one_of(key, claim[key], allowed, where)
    expr = claim["expr"]
    if not isinstance(expr, dict) or len(expr) != 1 or (form := next(iter(expr))) not in FORMS:
        said = ", ".join(map(str, expr)) if isinstance(expr, dict) else str(expr)
        raise UserError(f"{where}: expr has '{said}': it has one of {', '.join(FORMS)}.{nearest(said, list(FORMS))}")
    body, (needed, further) = expr[form] or {}, FORM_KEYS[form]
    _check_part(body, needed, (*needed, *further), f"{where}: {form}")
    for key, right, like in (("is", _is_range, "[low, high], two numbers"), ("along", _is_one, "{setting: [a, b, c]}")):
        if key in body and not right(body[key]):
            raise UserError(f"{where}: {form}.{key} is {body[key]!r}: it has to be {like}.")
    for key in OPERANDS:
        if key in body:
            _check_operand(body[key], f"{where}: {form}.{key}")
    if "minus" in body:
        _check_operand(body["minus"], f"{where}: {form}.minus")
    _check_part(claim.get("where") or {}, (), KEYS, f"{where}: where")


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] <= value[1]


def _is_one(value: Any) -> bool:
    return isinstance(value, list | dict) and len(value) == 1


def _check_operand(op: Any, where: str) -> None:
    _check_part(op, (), OPERAND_KEYS, where)
    if "minus" in op:
        _check_operand(op["minus"], f"{where}.minus")


def _check_part(part: Any, needed: tuple[str, ...], allowed: tuple[str, ...], where: str) -> None:
    if not isinstance(part, dict):
        raise UserError(f"{where} is {part!r}: it has to be a mapping of {', '.join(allowed)}.")
    require_known(part, allowed, where)
    _require(part, needed, where)
    for key, value in part.items():
        if key in VALUES:
            require_one_of(key, value, VALUES[key], where)


def _require(part: dict[str, Any], needed: tuple[str, ...], where: str) -> None:
    for key in needed:
        if key not in part:
            raise UserError(f"{where} has no '{key}'. It needs {', '.join(needed)}.")


def names_in(claim: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each key of KEYS with each value that a claim names for it, but for tables."""
    ((form, body),) = claim["expr"].items()
    parts = [claim.get("where") or {}, *([body] if form == "top" else []), (body or {}).get("along", {})]
    parts += [body[key] for key in OPERANDS if key in (body or {})]
    for part in parts:  # it grows
        parts += [part["minus"]] if "minus" in part else []
        of_methods = ("method", "except", "among")
        for key in (*KEYS[1:], *of_methods[1:]):
            for value in listed(part.get(key, [])):
                yield ("method" if key in of_methods else key), str(value)
