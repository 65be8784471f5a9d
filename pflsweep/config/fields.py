"""Declare what the value of a field or key may be, and check it."""

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, get_args

from pflsweep.util.errors import UserError, nearest

# Whole numbers without a bound of their own are counts, and none is larger. More digits are a slip of the finger.
LARGEST = 1_000_000_000
SEEDS = 2**63 - 1


@dataclass(frozen=True)
class Rule:
    """What a value may be. `low` and `high` are allowed, `above` and `below` are not."""

    kinds: tuple[type, ...]
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple = ()  # allowed beside the kinds, or instead of any where there are no kinds
    null: bool = False
    items: type | None = None  # what a list is of
    empty: bool = True  # whether text may be empty
    neutral: Any = ...  # the value that every record had before there was this key; ... where all have the key

    def allows(self, value: Any) -> bool:
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
        kinds = " or ".join(names.get(kind, kind.__name__) for kind in self.kinds)
        text = [f"{kinds} {limits}".strip()] if kinds else []
        text += ["one of " + ", ".join(map(str, self.choices))] if len(self.choices) > 1 else map(str, self.choices)
        return " or ".join([*text, *(["null"] if self.null else [])])


# Keys of conf/ that no class describes
RULES = {
    "seed": Rule((int,), low=0, high=SEEDS),
    "device": Rule((), choices=("auto", "cpu", "cuda")),
    "data.root": Rule((str,), null=True, empty=False),
    "data.validation": Rule((float,), low=0, below=1),
    "data.limit": Rule((int,), low=1, null=True, neutral=None),
    "data.targets": Rule((), choices=("own", "permuted"), neutral="own"),
    "data.shuffle": Rule((int,), low=0, high=SEEDS, neutral=0),
    "data.new": Rule((int,), low=0, neutral=0),
    "data.new_epochs": Rule((int,), low=0, high=100_000, neutral=20),
    "data.prescribed": Rule((str,), null=True, neutral=None),
    "partition.seed": Rule((int,), low=0, high=SEEDS, null=True, neutral=None),
    "paths.runs": Rule((str,), empty=False),
    "checkpoint.every": Rule((float,), low=0),
    "tracking.backend": Rule((), choices=("mlflow", "none")),
    "tracking.uri": Rule((str,), null=True),
    "tracking.experiment": Rule((str,)),
    "tracking.every": Rule((float,), low=0),
    "tracking.required": Rule((bool,)),
    "train.rounds": Rule((int,), low=1, high=10_000_000),
    "train.participation": Rule((float,), above=0, high=1),
    "train.sampling": Rule((), choices=("uniform", "size", "dirichlet", "fixed"), neutral="uniform"),
    "train.sampling_alpha": Rule((float,), above=0, neutral=1.0),
    "train.weights": Rule((), choices=("share", "uniform")),
    "train.epochs": Rule((int,), low=1, high=100_000),
    "train.steps": Rule((int,), low=1, high=10_000_000, null=True, neutral=None),
    "train.batch": Rule((int,), low=1),
    "train.shuffle": Rule((), choices=("epoch", "once", "never"), neutral="epoch"),
    "train.last_batch": Rule((), choices=("keep", "drop"), neutral="keep"),
    "train.lr": Rule((float,), above=0, below=1e38),  # weights are of 32 bits
    "train.lr_decay": Rule((float,), above=0, below=1e38),
    "train.momentum": Rule((float,), low=0, below=1),
    "train.optimiser_state": Rule((), choices=("fresh", "kept"), neutral="fresh"),
    "train.weight_decay": Rule((float,), low=0, below=1e38),
    "train.eval_every": Rule((int,), low=1),
    "train.eval_batch": Rule((int,), low=1),
    "metrics.subset": Rule((float,), low=0, high=1),
    "metrics.all": Rule((bool,)),
    "metrics.all_size": Rule((), choices=("union", "own"), neutral="union"),
    "metrics.personal": Rule((), choices=("current", "stale"), neutral="current"),
    "metrics.rows": Rule((), choices=("test", "train"), neutral="test"),
    "metrics.trained": Rule((bool,)),
    "metrics.subset_size": Rule((), choices=("union", "own")),
    "train.precision": Rule((), choices=("fp32", "tf32", "bf16"), neutral="fp32"),
    "train.compile": Rule((bool,), neutral=False),
    "train.chunk": Rule((int,), low=1, choices=("auto",)),
    "train.threads": Rule((int,), low=1, high=1024, choices=("auto",)),
    "train.workers": Rule((int,), low=1, high=1024, choices=("auto",)),
}


def _size_allowed(value: float, rule: Rule) -> bool:
    """Whether a number is finite and, where it is a whole number without an upper bound of its own, no slip."""
    if isinstance(value, float):
        return math.isfinite(value)
    if float in rule.kinds:
        return abs(value) < 1e308
    return rule.high is not None or abs(value) <= LARGEST


def require(key: str, value: Any, rule: Rule) -> None:
    """Raises UserError where a key's value is not what its rule allows."""
    if rule.allows(value):
        return
    guess = nearest(value, [str(c) for c in rule.choices]) if isinstance(value, str) else ""
    if not guess and (written := _as_meant(value, rule)) is not None:
        guess = f" Write {written}."
    raise UserError(
        f"{key} is {'null' if value is None else repr(value)}: it must be {rule}.{guess}{_too_large(value, rule)}"
    )


def _as_meant(value: Any, rule: Rule) -> Any:
    """The number that was meant by 1e3, 5.0 or '5', where the rule allows it; else None."""
    try:
        number = float(value) if isinstance(value, str | float) else math.nan
    except ValueError:
        return None
    meant = [int(number), number] if math.isfinite(number) and number.is_integer() else [number]
    return next((each for each in meant if rule.allows(each)), None)


def _too_large(value: Any, rule: Rule) -> str:
    """What is said of whole numbers that are larger than those of any key without a bound of its own."""
    whole = [item for item in (value if isinstance(value, list) else [value]) if type(item) is int]
    large = int in (*rule.kinds, rule.items) and rule.high is None and any(abs(item) > LARGEST for item in whole)
    return f" Whole numbers go up to {LARGEST} here." if large else ""


def field_rule(hint: Any, field: Any) -> Rule:
    """The rule of a dataclass field, from its type and `hyper` metadata."""
    kinds = kinds_of(hint)
    choices = tuple(field.metadata.get("choices") or ())
    bounds = field.metadata.get("bounds", {})
    null = type(None) in get_args(hint)
    neutral = field.metadata.get("neutral", ...)
    return Rule(() if choices else kinds, choices=choices, null=null, neutral=neutral, **bounds)


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The types in an annotation such as `int | None`."""
    return tuple(kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type) and kind is not type(None))


def hyper(meaning: str, *, choices: tuple = (), neutral: Any = ..., **bounds: float) -> Any:
    """Declare a hyperparameter: its meaning and what is allowed. Its value stands in conf/ alone.

    bounds: `low` and `high` are allowed, `above` and `below` are not. neutral: for a key that is added to a method of
    which there are records, the value with which the method computes what it did before: then a config with this value
    has the identity of one without the key, for ever.
    """
    return field(metadata={"meaning": meaning, "choices": choices, "neutral": neutral, "bounds": bounds})


def hyperparameters(method: type) -> dict[str, Any]:
    """Name -> dataclass field of each hyperparameter of a method (or plug-in, or study)."""
    base = {"task", "opt", "epochs", "keys", "method", "plugins"}
    return {f.name: f for f in fields(method) if f.name not in base and f.default is MISSING}
