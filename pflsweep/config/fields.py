"""Declare which values a field or key may have, and check them."""

import math
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from pflsweep.config.keys import as_override
from pflsweep.util.errors import UserError, nearest

# The largest whole number for keys without a bound of their own. They are counts; a larger value is a typing error.
LARGEST = 1_000_000_000
SEEDS = 2**63 - 1


@dataclass(frozen=True)
class Rule:
    """The values that a key may have. `low` and `high` are inclusive bounds, `above` and `below` exclusive ones."""

    kinds: tuple[type, ...]  # types
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple = ()  # values that are allowed beside those of the kinds
    null: bool = False  # whether null is allowed
    items: type | None = None  # type of a list's items
    empty: bool = True  # whether text may be empty
    neutral: Any = ...  # the value that all earlier records had without saying so; ... where there is none
    meaning: str = ""

    def allows(self, value: Any) -> bool:
        """Return whether a key may have this value."""
        if value is None:
            return self.null
        if value in self.choices and not isinstance(value, bool):
            return True
        kinds = (*self.kinds, int) if float in self.kinds else self.kinds
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return False
        if isinstance(value, list) and self.items:
            return all(Rule((self.items,)).allows(item) for item in value)
        if isinstance(value, str):
            return self.empty or bool(value)
        return self._inside(value) if isinstance(value, int | float) else True

    def _inside(self, value: float) -> bool:
        """Return whether a number is within the bounds."""
        return (
            _size_allowed(value, self)
            and (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        names = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "text" if self.empty else "text that is not empty",
        }
        names[list] = "a list [a, b]" + (f", each {names[self.items]}" if self.items else "")
        bounds = (
            ("at least", self.low),
            ("above", self.above),
            ("at most", self.high),
            ("below", self.below),
        )
        limits = " and ".join(
            f"{word} {bound if isinstance(bound, int) else format(bound, 'g')}"
            for word, bound in bounds
            if bound is not None
        )
        shown = [kind for kind in self.kinds if kind is not int or float not in self.kinds]
        kinds = " or ".join(names.get(kind, kind.__name__) for kind in shown)
        text = [f"{kinds} {limits}".strip()] if kinds else []
        text += ["one of " + ", ".join(map(str, self.choices))] if len(self.choices) > 1 else map(str, self.choices)
        return " or ".join([*text, *(["null"] if self.null else [])])


def _size_allowed(value: float, rule: Rule) -> bool:
    """Return whether a number is finite and, where its key has no upper bound of its own, not above LARGEST."""
    if isinstance(value, float):
        return math.isfinite(value)
    if float in rule.kinds:
        return abs(value) < 1e308
    return rule.high is not None or abs(value) <= LARGEST


def require(key: str, value: Any, rule: Rule) -> None:
    """Raise UserError if a key's rule does not allow its value."""
    if rule.allows(value):
        return
    guess = nearest(value, [str(c) for c in rule.choices]) if isinstance(value, str) else ""
    if not guess and (written := _as_meant(value, rule)) is not None:
        guess = f" Write {written}."
    shown = repr(value) if isinstance(value, str) else as_override(value)
    raise UserError(
        f"{key} is {shown}: it must be {rule}.{guess}{_too_large(value, rule)}"
        + (f" ({key}: {rule.meaning}.)" if rule.meaning else "")
    )


def _as_meant(value: Any, rule: Rule) -> Any:
    """Return the number that was meant by 1e3, 5.0 or '5', where the rule allows it; else None."""
    try:
        number = float(value) if isinstance(value, str | float) else math.nan
    except ValueError:
        return None
    meant = [int(number), number] if math.isfinite(number) and number.is_integer() else [number]
    return next((each for each in meant if rule.allows(each)), None)


def _too_large(value: Any, rule: Rule) -> str:
    """Return a sentence for a whole number above LARGEST where the key has no upper bound of its own; else ""."""
    whole = [item for item in (value if isinstance(value, list) else [value]) if type(item) is int]
    large = int in (*rule.kinds, rule.items) and rule.high is None and any(abs(item) > LARGEST for item in whole)
    return f" Whole numbers go up to {LARGEST} here." if large else ""


def field_rule(hint: Any, field: Field) -> Rule:
    """Return the rule of a field that `hyper` declares. hint: its type. A text field with choices allows only those."""
    said = field.metadata
    choices = tuple(said.get("choices") or ())
    kinds = tuple(kind for kind in kinds_of(hint) if not (choices and kind is str))
    null = type(None) in get_args(hint)
    return Rule(
        kinds,
        choices=choices,
        null=null,
        neutral=said.get("neutral", ...),
        meaning=said.get("meaning", ""),
        **said.get("bounds", {}),
    )


def kinds_of(hint: Any) -> tuple[type, ...]:
    """Return the types in an annotation such as `int | None`."""
    return tuple(kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type) and kind is not type(None))


def hyper(meaning: str, *, choices: tuple = (), neutral: Any = ..., **bounds: Any) -> Any:
    """Declare a key: its meaning and the values that are allowed. Its default is in conf/, not here.

    bounds: `low` and `high` are inclusive, `above` and `below` exclusive; `empty=False` forbids empty text, `items=str`
    is the type of a list's items. neutral: a key that is added later declares the value with which everything is
    computed as before. A config with this value then has the same identity as one without the key, so that earlier
    records stay valid.
    """
    if stray := sorted(bounds.keys() - {"low", "high", "above", "below", "empty", "items"}):
        value = " Defaults belong in the option's YAML file." if "default" in stray else ""
        raise TypeError(
            f"hyper() takes no '{stray[0]}': it takes choices, neutral, low, high, above, below, empty, items.{value}"
        )
    return field(metadata={"meaning": meaning, "choices": choices, "neutral": neutral, "bounds": bounds})


def hyperparameters(method: type) -> dict[str, Field]:
    """Return the dataclass field of each hyperparameter of a method, a plug-in or a study, by name.

    Fields that the engine sets, such as `task`, are not among them unless they are declared with `hyper`.
    """
    given = {"task", "opt", "epochs", "keys", "method", "plugins"}
    return {
        f.name: f for f in fields(method) if f.default is MISSING and (f.name not in given or "meaning" in f.metadata)
    }


def rules_of(cls: type) -> dict[str, Rule]:
    """Return the rule of each of a class's hyperparameters or keys, by name."""
    hints = get_type_hints(cls)
    return {name: field_rule(hints[name], field) for name, field in hyperparameters(cls).items()}
