"""Test instruments: detect in-place writes to arguments, and overwrite consumed state with NaN."""

import inspect
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from pflsweep.conformance.case import difference
from pflsweep.methods import stock
from pflsweep.methods.optimizer import WHOLE, Sgd
from pflsweep.methods.protocol import Verbs
from pflsweep.methods.task import Batch, Task
from pflsweep.ops import graph
from pflsweep.ops.vmap import leaves, vmapped

DATA = (bool, int, float, str, list, dict, set, bytearray, deque, np.ndarray, Tensor)
_WORK = {"fit": 2, "step": 1}  # verb -> position of the work, which the optimiser may write into


@dataclass(frozen=True)
class Pure(Sgd):
    """An optimiser that writes into nothing. With it, not even the work may change."""

    def update(
        self, w: Tensor, state: Tensor, g: Tensor, lr: float | Tensor, part: slice = WHOLE
    ) -> tuple[Tensor, Tensor]:
        return super().update(w.clone(), state.clone(), g, lr, part)

    def descend(self, task: Task, w: Tensor, state: Tensor, batch: Batch, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        return super().descend(task, w.clone(), state.clone(), batch, lr)


@dataclass(frozen=True)
class Poisoning(Sgd):
    """An optimiser that overwrites the old model and momentum with NaN: reading them after the update shows."""

    def update(
        self, w: Tensor, state: Tensor, g: Tensor, lr: float | Tensor, part: slice = WHOLE
    ) -> tuple[Tensor, Tensor]:
        new = super().update(w.clone(), state.clone(), g, lr, part)
        self._spoil(w, state)
        return new

    def descend(self, task: Task, w: Tensor, state: Tensor, batch: Batch, lr: float | Tensor) -> tuple[Tensor, Tensor]:
        new = super().descend(task, w.clone(), state.clone(), batch, lr)
        self._spoil(w, state)
        return new

    def _spoil(self, *old: Tensor) -> None:
        for tensor in old if not vmapped() else ():
            tensor.fill_(float("nan"))


def guarded(verbs: Verbs, *, donated: bool) -> Verbs:
    """Return verbs that raise AssertionError where they have written into an argument.

    donated: whether `fit` may write into its work.
    """
    named = {name: verb for name, verb in verbs._asdict().items() if name not in Verbs._field_defaults}
    watched: dict[str, Any] = {name: guard(name, donated, verb) for name, verb in named.items()}
    return verbs._replace(**watched)


def guard(name: str, donated: bool, verb: Callable) -> Callable:
    """Return a verb, or a step, that raises AssertionError where it has written into an argument."""
    spared = _WORK.get(name) if donated else None

    def watched(*args: Any) -> Any:
        inputs = [arg for k, arg in enumerate(args) if k != spared]
        before = [leaf.clone() for leaf in leaves(tuple(inputs))]
        result = verb(*args)
        if inspect.isgenerator(result):
            return _to_its_end(name, result, before, inputs)
        _assert_untouched(name, before, inputs)
        return result

    return watched


def _to_its_end(name: str, conversation: Any, before: list[Tensor], inputs: list[Any]) -> Any:
    """Run an `aggregate` that asks back, and check its arguments when it has returned."""
    result = yield from conversation
    _assert_untouched(name, before, inputs)
    return result


def _assert_untouched(name: str, before: list[Tensor], inputs: list[Any]) -> None:
    """Raise AssertionError if inputs differ from what they were. before: copies of their leaves."""
    for old, (where, leaf) in zip(before, _named(inputs), strict=True):
        reason = difference(leaf, old)
        assert not reason, f"{name} writes into what it was given: {where} {reason}"


def _named(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the leaves of a tree in the order of `leaves`, each with the names of the fields that lead to it."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _named(value, f"{name}.{key}")
    elif isinstance(tree, tuple | list):
        fields = getattr(tree, "_fields", range(len(tree)))
        for field, value in zip(fields, tree, strict=True):
            yield from _named(value, f"{name or type(tree).__name__}.{field}" if hasattr(tree, "_fields") else name)


@contextmanager
def steps_through(wrap: Callable[[Callable], Callable]) -> Iterator[None]:
    """Make `stock.run` call each step through `wrap`. A method that has a loop of its own is not affected.

    No step becomes a CUDA graph, since what `wrap` looks at would not be computed while it is recorded.
    """

    def run(step: Callable, *args: Any) -> Any:
        return original(wrap(step), *args)

    original = stock.run
    with patch.object(stock, "run", run), patch.dict(graph.recorders, clear=True):
        yield


def memory_of(method: Any) -> dict[str, bytes]:
    """Return the data that a method, its classes and their modules hold, by name, serialised to be compared.

    Hyperparameters are left out, since they cannot change, and so is what the method derives in a cached_property.
    """
    declared = {each.name for each in fields(method)}
    held = {
        f"self.{name}": value
        for name, value in vars(method).items()
        if name not in declared and not isinstance(getattr(type(method), name, None), cached_property)
    }
    for owner in type(method).__mro__[:-1]:
        module = sys.modules[owner.__module__]
        for place, values in ((owner.__name__, vars(owner)), (module.__name__, vars(module))):
            data = {name: value for name, value in values.items() if isinstance(value, DATA) and "__" not in name}
            held |= {f"{place}.{name}": value for name, value in data.items()}
    found = {}
    for name, value in held.items():
        # Some values cannot be serialised, such as a dictionary of functions that are local to another
        with suppress(Exception):
            found[name] = pickle.dumps(value)
    return found


def poisoned(step: Callable) -> Callable:
    """Return a step for a chunk of one client that afterwards overwrites the old work with NaN.

    Memory that the new work uses too is spared. Larger chunks need the old work, for clients that are out of batches.
    """

    def spoiling(given: Any, work: Any, batch: Any) -> Any:
        new = step(given, work, batch)
        kept = {leaf.untyped_storage().data_ptr() for leaf in leaves(new)}
        for leaf in leaves(work):
            if leaf.is_floating_point() and leaf.untyped_storage().data_ptr() not in kept:
                leaf.fill_(float("nan"))
        return new

    return spoiling
