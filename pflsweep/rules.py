"""What the values of keys may be."""

import math
from dataclasses import dataclass
from typing import Any, get_args

from pflsweep.errors import UserError, nearest


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
            (isinstance(value, int) or math.isfinite(value))
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
        limits = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
        kinds = " or ".join(names.get(kind, kind.__name__) for kind in self.kinds)
        text = [f"{kinds} {limits}".strip()] if kinds else []
        text += ["one of " + ", ".join(map(str, self.choices))] if len(self.choices) > 1 else map(str, self.choices)
        return " or ".join([*text, *(["null"] if self.null else [])])


RULES = {
    "seed": Rule((int,), low=0),
    "device": Rule((), choices=("auto", "cpu", "cuda")),
    "data.root": Rule((str,), null=True),
    "data.validation": Rule((float,), low=0, below=1),
    "data.limit": Rule((int,), low=1, null=True),
    "data.targets": Rule((), choices=("own", "permuted")),
    "data.shuffle": Rule((int,), low=0),
    "data.new": Rule((int,), low=0),
    "data.new_epochs": Rule((int,), low=0),
    "paths.runs": Rule((str,), empty=False),
    "checkpoint.every": Rule((float,), low=0),
    "tracking.backend": Rule((), choices=("mlflow", "none")),
    "tracking.uri": Rule((str,), null=True, empty=False),
    "tracking.experiment": Rule((str,), empty=False),
    "tracking.every": Rule((float,), low=0),
    "train.rounds": Rule((int,), low=1),
    "train.participation": Rule((float,), above=0, high=1),
    "train.sampling": Rule((), choices=("uniform", "size", "dirichlet")),
    "train.sampling_alpha": Rule((float,), above=0),
    "train.weights": Rule((), choices=("share", "uniform")),
    "train.epochs": Rule((int,), low=1),
    "train.batch": Rule((int,), low=1),
    "train.lr": Rule((float,), above=0, below=1e38),  # weights are of 32 bits
    "train.lr_decay": Rule((float,), above=0),
    "train.momentum": Rule((float,), low=0, below=1),
    "train.optimiser_state": Rule((), choices=("fresh", "kept")),
    "train.weight_decay": Rule((float,), low=0),
    "train.eval_every": Rule((int,), low=1),
    "train.eval_batch": Rule((int,), low=1),
    "metrics.subset": Rule((float,), low=0, high=1),
    "metrics.subset_size": Rule((), choices=("union", "own")),
    "train.precision": Rule((), choices=("fp32", "tf32", "bf16")),
    "train.compile": Rule((bool,)),
    "train.chunk": Rule((int,), low=1, choices=("auto",)),
    "train.threads": Rule((int,), low=1, high=1024, choices=("auto",)),
    "train.workers": Rule((int,), low=1, high=1024, choices=("auto",)),
}


def require(key: str, value: Any, rule: Rule) -> None:
    if not rule.allows(value):
        guess = nearest(value, [str(c) for c in rule.choices]) if isinstance(value, str) else ""
        raise UserError(f"{key} is {value!r}: it must be {rule}.{guess}")


def field_rule(hint: Any, field: Any) -> Rule:
    """The rule of a dataclass field, from its type and `hyper` metadata."""
    kinds = kinds_of(hint)
    choices = tuple(field.metadata.get("choices") or ())
    bounds = field.metadata.get("bounds", {})
    null = type(None) in get_args(hint)
    return Rule(() if choices else kinds, choices=choices, null=null, **bounds)


def kinds_of(hint: Any) -> tuple[type, ...]:
    """The types in an annotation such as `int | None`."""
    return tuple(kind for kind in (get_args(hint) or (hint,)) if isinstance(kind, type) and kind is not type(None))
