"""Write for one client, lift to many: `each`, and what it needs to know about nested tuples of tensors.

A *tree* is a tensor, or a (named) tuple or dict of trees; anything else in it (None, a Python number) is the
same for all clients. At cohort level every tensor of a tree has the clients of the chunk as its first dimension, C.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

_here = threading.local()


def tree_map(fn: Callable, first: Any, *rest: Any) -> Any:
    """`fn` on every tensor of equally shaped trees; other leaves are taken from the first tree."""
    if isinstance(first, Tensor):
        return fn(first, *rest)
    if isinstance(first, tuple):
        if rest:
            mapped = [tree_map(fn, *group) for group in zip(first, *rest, strict=True)]
        else:  # in every step of every client: worth the second line
            mapped = [fn(part) if isinstance(part, Tensor) else tree_map(fn, part) for part in first]
        return type(first)._make(mapped) if hasattr(first, "_make") else tuple(mapped)
    if isinstance(first, dict):
        return {name: tree_map(fn, part, *(tree[name] for tree in rest)) for name, part in first.items()}
    return first


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in the order in which `tree_map` visits them."""
    found: list[Tensor] = []
    tree_map(found.append, tree)
    return found


def rebuilt(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """The opposite of `leaves`: a tree of this structure with these tensors in it."""
    supply = iter(tensors)
    return tree_map(lambda _: next(supply), tree)


def vmapped() -> bool:
    """Whether the code that asks runs under torch.func.vmap, for several clients (or samples) at once."""
    return getattr(_here, "mode", None) == "vmap"


@contextmanager
def vmapping() -> Iterator[None]:
    """Inside it, `vmapped` says so: for what is put under torch.func.vmap over other things than clients."""
    before = getattr(_here, "mode", None)
    _here.mode = "vmap"
    try:
        yield
    finally:
        _here.mode = before


def per_client(fn: Callable) -> Callable:
    """Marks a method written for ONE client; callers hand it the trees of a whole chunk [C, ...].

    A chunk of one client runs plainly (no vmap: on a CPU that is faster), a larger one under torch.func.vmap.
    Raises RuntimeError where such a method calls another through its lifted name.
    """

    @wraps(fn)
    def lifted(self: Any, *args: Any) -> Any:
        if getattr(_here, "mode", None) is not None:
            raise RuntimeError(f"{fn.__qualname__} is lifted with @per_client and was called for one client.")
        clients = leaves(args)[0].shape[0]
        one, args = _for_one(fn, self, args)
        _here.mode = "one" if clients == 1 else "vmap"
        try:
            return _one(one, args) if clients == 1 else _vmap(one, args)
        finally:
            _here.mode = None

    lifted.of_one = fn  # type: ignore[attr-defined]
    return lifted


def alone(step: Callable, given: Any) -> Callable[[Any, Any], Any] | None:
    """Return step(given, work, batch) for the only client of a chunk, as a function of its own (work, batch).

    What does not differ from step to step is taken apart once. None where `step` is not marked @per_client, or the
    chunk has more clients.
    """
    fn, clients = getattr(step, "of_one", None), leaves(given)[0].shape[0]
    if fn is None or clients > 1:
        return None
    one, args = _for_one(fn, step.__self__, (given,))  # type: ignore[attr-defined]
    fixed = only(args)

    def own(work: Any, batch: Any) -> Any:
        _here.mode = "one"
        try:
            return one(*fixed, work, batch)
        finally:
            _here.mode = None

    return own


class ClientNumber:
    """What stands for a number of a method that differs among the clients of a chunk, since they are of stacked trials.

    Inside @per_client it is the client's own. Anywhere else nothing can be done with it: TypeError.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def _unknown(self, *_: object) -> Any:
        raise TypeError(f"{self.name} differs among stacked trials, and is read where all clients are trained at once")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _unknown


def with_client_numbers(owner: Any, numbers: dict[str, Tensor]) -> Any:
    """A copy of a method in which some numbers are each client's own, [C] each."""
    several = copy(owner)
    several.__dict__.update({name: ClientNumber(name) for name in numbers}, _per_client=numbers)
    return several


def _for_one(fn: Callable, owner: Any, args: tuple) -> tuple[Callable, tuple]:
    """What is called for one client, and the trees of the chunk that it is called with."""
    numbers = getattr(owner, "_per_client", None)
    if numbers is None:
        return partial(fn, owner), args

    def one(own: dict[str, Tensor], *args: Any) -> Any:
        client = copy(owner)
        client.__dict__.update(own, _per_client=None)
        return fn(client, *args)

    return one, (numbers, *args)


def _one(fn: Callable, args: tuple) -> Any:
    return chunk_of(fn(*only(args)))


def only(tree: Any) -> Any:
    """The tree of the one client of a chunk."""
    return tree_map(_squeeze, tree)


def chunk_of(tree: Any) -> Any:
    """The opposite of `only`."""
    return tree_map(_unsqueeze, tree)


def _squeeze(leaf: Tensor) -> Tensor:
    return leaf.squeeze(0)


def _unsqueeze(leaf: Tensor) -> Tensor:
    return leaf.unsqueeze(0)


def _vmap(fn: Callable, args: tuple) -> Any:
    """vmap takes and gives flat lists of tensors here, so that trees may hold None and numbers too."""
    shape: list[Any] = []

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        result = fn(*rebuilt(args, tensors))
        shape.append(result)
        return tuple(leaves(result))

    out = torch.func.vmap(flat)(*leaves(args))
    return rebuilt(shape[0], out)
