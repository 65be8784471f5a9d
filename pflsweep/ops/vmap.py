"""Lift functions that are written for one client to chunks of clients (`per_client`), and map over trees of tensors.

A *tree* is a tensor, or a (named) tuple or dict of trees; anything else in it (None, a Python number) is the
same for all clients. At cohort level every tensor of a tree has the clients of the chunk as its first dimension, C.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import fields
from functools import partial, wraps
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from pflsweep.ops.random import REMEDY
from pflsweep.util.errors import UserError

# _here.mode is "one" or "vmap" inside a lifted method, for a chunk of one client or of several; otherwise None.
_here = threading.local()


def tree_map(fn: Callable, first: Any, *rest: Any) -> Any:
    """Return the tree of fn(*tensors) over trees of the same structure. Other leaves are those of the first tree."""
    if isinstance(first, Tensor):
        return fn(first, *rest)
    if isinstance(first, tuple):
        if rest:
            mapped = [tree_map(fn, *group) for group in zip(first, *rest, strict=True)]
        else:  # the usual case, in every step of every client: a direct call of `fn` saves time
            mapped = [fn(part) if isinstance(part, Tensor) else tree_map(fn, part) for part in first]
        return type(first)._make(mapped) if hasattr(first, "_make") else tuple(mapped)
    if isinstance(first, dict):
        return {name: tree_map(fn, part, *(tree[name] for tree in rest)) for name, part in first.items()}
    return first


def leaves(tree: Any) -> list[Tensor]:
    """Return all tensors of a tree, in the order in which `tree_map` visits them."""
    found: list[Tensor] = []
    tree_map(found.append, tree)
    return found


def rebuilt(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """Return a tree of the same structure with other tensors in it, in the order of `leaves`."""
    supply = iter(tensors)
    return tree_map(lambda _: next(supply), tree)


def select(tree: Any, where: Any) -> Any:
    """Return some clients of a tree whose tensors have the clients as their first axis.

    where: a slice, or their positions. A tensor that is expanded from one client to all stays so, without memory.
    """

    def some(leaf: Tensor) -> Tensor:
        if isinstance(where, Tensor) and leaf.stride(0) == 0:
            return leaf[:1].expand(len(where), *leaf.shape[1:])
        return leaf[where]

    return tree_map(some, tree)


def own_copy(tree: Any) -> Any:
    """Return a copy of a tree whose tensors are contiguous and share memory with nothing."""
    return tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), tree)


def vmapped() -> bool:
    """Return True if the caller runs under torch.func.vmap, for several clients (or samples) at once."""
    return getattr(_here, "mode", None) == "vmap"


@contextmanager
def vmapping() -> Iterator[None]:
    """Let `vmapped` return True inside, for code that calls torch.func.vmap over something other than clients."""
    before = getattr(_here, "mode", None)
    _here.mode = "vmap"
    try:
        yield
    finally:
        _here.mode = before


def per_client(fn: Callable) -> Callable:
    """Lift a method that is written for ONE client: callers pass it the trees of a whole chunk [C, ...].

    A chunk of one client runs without vmap, which is faster on a CPU; a larger one runs under torch.func.vmap. The
    lifted method raises RuntimeError where it is called from inside another one, and TypeError if an argument is named.
    """

    @wraps(fn)
    def lifted(self: Any, *args: Any, **named: Any) -> Any:
        if named:
            raise TypeError(f"{fn.__qualname__} is lifted with @per_client, and takes its arguments by position.")
        if getattr(_here, "mode", None) is not None:
            raise RuntimeError(f"{fn.__qualname__} is lifted with @per_client and was called for one client.")
        clients = leaves(args)[0].shape[0]
        one, args = _for_one(fn, self, args)
        _here.mode = "one" if clients == 1 else "vmap"
        try:
            return unsqueeze_client(one(*squeeze_client(args))) if clients == 1 else _vmap(one, args, fn.__qualname__)
        finally:
            _here.mode = None

    lifted.of_one = fn  # type: ignore[attr-defined]
    return lifted


def step_of_single_client(step: Callable, given: Any) -> Callable[[Any, Any], Any] | None:
    """Return step(given, work, batch) for the only client of a chunk, as a function of (work, batch) without C.

    `given`, which is the same in every step, is unpacked once. Returns None if `step` is not marked @per_client, or
    where the chunk has more clients.
    """
    fn, clients = getattr(step, "of_one", None), leaves(given)[0].shape[0]
    if fn is None or clients > 1:
        return None
    one, args = _for_one(fn, step.__self__, (given,))  # type: ignore[attr-defined]
    fixed = squeeze_client(args)

    def own(work: Any, batch: Any) -> Any:
        _here.mode = "one"
        try:
            return one(*fixed, work, batch)
        finally:
            _here.mode = None

    return own


def step_of_subset(step: Callable, where: Tensor) -> Callable:
    """Return a lifted method for some clients of its chunk. where: their positions."""
    numbers = getattr(step.__self__, "_per_client", None)  # type: ignore[attr-defined]
    if numbers is None:
        return step
    fewer = copy(step.__self__)  # type: ignore[attr-defined]
    fewer.__dict__["_per_client"] = select(numbers, where)
    return MethodType(step.__func__, fewer)  # type: ignore[attr-defined]


class ClientNumber:
    """Placeholder for a hyperparameter that differs among the clients of a chunk, since they belong to stacked trials.

    Inside @per_client the attribute is the client's number instead. Anywhere else, using it raises TypeError.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def _unknown(self, *_: object) -> Any:
        raise TypeError(f"{self.name} differs among stacked trials, and is read where all clients are trained at once")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _unknown


def with_client_numbers(owner: Any, numbers: dict[str, Tensor]) -> Any:
    """Return a copy of a method in which some hyperparameters differ by client. numbers: the values by name, [C]."""
    several = copy(owner)
    # What the method has derived from its hyperparameters, as by cached_property, would be that of one trial
    known = {field.name for field in fields(owner)}
    derived = [name for name in several.__dict__ if name not in known]
    for name in derived:
        del several.__dict__[name]
    several.__dict__.update({name: ClientNumber(name) for name in numbers}, _per_client=numbers)
    return several


def _for_one(fn: Callable, owner: Any, args: tuple) -> tuple[Callable, tuple]:
    """Return the function of one client, with `owner` bound, and its arguments as trees of the chunk."""
    numbers = getattr(owner, "_per_client", None)
    if numbers is None:
        return partial(fn, owner), args

    def one(own: dict[str, Tensor], *args: Any) -> Any:
        client = copy(owner)
        client.__dict__.update(own, _per_client=None)
        return fn(client, *args)

    return one, (numbers, *args)


def squeeze_client(tree: Any) -> Any:
    """Return the tree of the only client of a chunk: [1, ...] tensors become [...]."""
    return tree_map(_squeeze, tree)


def unsqueeze_client(tree: Any) -> Any:
    """Return the tree of a chunk that has one client: [...] tensors become [1, ...]."""
    return tree_map(_unsqueeze, tree)


def _squeeze(leaf: Tensor) -> Tensor:
    return leaf.squeeze(0)


def _unsqueeze(leaf: Tensor) -> Tensor:
    return leaf.unsqueeze(0)


# Parts of PyTorch's messages where a function reads a tensor's values under torch.func.vmap
BRANCHES = ("data-dependent control flow", "dynamic shape", ".item()")


def _vmap(fn: Callable, args: tuple, name: str) -> Any:
    """Return `fn` of each client, under torch.func.vmap.

    Raises UserError, with its name, if it draws without a key, or branches on a tensor, which differs among clients.
    """
    # vmap sees flat lists of tensors, so that trees may hold None and numbers as well
    shape: list[Any] = []

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        result = fn(*rebuilt(args, tensors))
        shape.append(result)
        return tuple(leaves(result))

    try:
        out = torch.func.vmap(flat)(*leaves(args))
    except RuntimeError as error:
        if any(sign in str(error) for sign in BRANCHES):
            raise UserError(
                f"{name} reads the value of a tensor, as in `if norm > 1`, .item() or w[mask]. It computes for all "
                "clients of a chunk at once, and they may differ: use torch.where(condition, a, b)."
            ) from error
        if "randomness" not in str(error):
            raise
        raise UserError(
            f"{name} draws from the global generator of PyTorch, so that numbers would not follow from the seed: "
            f"{REMEDY}."
        ) from error
    return rebuilt(shape[0], out)
