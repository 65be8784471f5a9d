"""Repeat a function on a GPU as a CUDA graph: its kernels are recorded once, and then launched together.

A training step of a small model is some hundred kernels of a few microseconds each. Python takes milliseconds to
launch them one by one, and a graph takes microseconds. The kernels are the same, and so are the numbers.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pflsweep.ops.vmap import leaves, own_copy, tree_map
from pflsweep.util.once import warn_once

WARM = 2  # calls of a function before it is recorded, in which libraries set themselves up
Repeat = Callable[[], None]


class Repeated:
    """A function of trees, (state, value) -> new state, that is recorded after WARM calls and then replayed.

    It must compute with tensors of one device alone: while it is recorded, the CPU sees no number. A call overwrites
    the state that the one before has returned. Values of another shape, and trees that hold Python objects, are
    computed without a graph; so is everything on a device that has no recorder.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], device: torch.device) -> None:
        self._fn, self._record = fn, recorders.get(device.type)
        self._calls = 0
        self._replay: Repeat | None = None
        self._state: Any = None  # what the graph reads and writes
        self._value: Any = None  # what it reads
        self._like: Any = None  # the shapes of both

    def __call__(self, state: Any, value: Any) -> Any:
        """Return the new state."""
        self._calls += 1
        if self._replay is None and self._record is not None and self._calls > WARM and _is_plain((state, value)):
            self._start(self._record, state, value)
        if self._replay is None or _shapes((state, value)) != self._like:
            return self._fn(state, value)
        for mine, given in zip(leaves((self._state, self._value)), leaves((state, value)), strict=True):
            if mine is not given:
                mine.copy_(given)
        self._replay()
        return self._state

    def _start(self, record: Callable[[Repeat], Repeat], state: Any, value: Any) -> None:
        """Record the function for trees of these shapes, or give up recording it."""
        self._state, self._value, self._like = own_copy(state), own_copy(value), _shapes((state, value))
        try:
            self._replay = record(self._advance)
        except RuntimeError as error:
            self._record = None
            why = str(error).partition("\n")[0]
            warn_once(
                __name__, f"A training step could not be recorded as a CUDA graph, so that it takes longer: {why}"
            )

    def _advance(self) -> None:
        """Compute the new state, and write it where the old one is. Raises RuntimeError if that cannot be."""
        state = self._fn(self._state, self._value)
        if _shapes(state) != _shapes(self._state):
            raise RuntimeError(
                "it changes the shape of the state, or something in it that is not a tensor: what a step counts or "
                "keeps has to be a tensor of a fixed shape"
            )
        old, new = leaves(self._state), leaves(state)
        held = {leaf.untyped_storage().data_ptr() for leaf in old}
        # A new leaf may be a view of an old one, which is overwritten before its turn comes
        new = [
            leaf if leaf is mine or leaf.untyped_storage().data_ptr() not in held else leaf.clone()
            for mine, leaf in zip(old, new, strict=True)
        ]
        for mine, leaf in zip(old, new, strict=True):
            if leaf is not mine:
                mine.copy_(leaf)


def _shapes(tree: Any) -> Any:
    """Return the tree with shapes and types in place of its tensors."""
    return tree_map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def _is_plain(tree: Any) -> bool:
    """Return whether a tree holds nothing that a function could change beside tensors."""
    if isinstance(tree, tuple):
        return all(map(_is_plain, tree))
    if isinstance(tree, dict):
        return all(map(_is_plain, tree.values()))
    return tree is None or isinstance(tree, Tensor | int | float | str)


# CUDA


@cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Return the stream of all recordings on a device: cuBLAS keeps a workspace for each stream."""
    return torch.cuda.Stream(device)


_recording = threading.Lock()  # stacked trials are threads, and the stream records one function at a time
_latest: dict[int, torch.cuda.CUDAGraph] = {}  # by device: it keeps the memory that the next graph uses, too


def _on_cuda(fn: Repeat) -> Repeat:
    """Record what fn launches, without running it, and return what runs it."""
    device = torch.cuda.current_device()
    graph, stream = torch.cuda.CUDAGraph(), _side_stream(device)
    with _recording:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Graphs of one stream may share memory, since they run one after the other
            pool = _latest[device].pool() if device in _latest else None
            # "thread_local": another thread may allocate memory meanwhile
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                fn()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        _latest[device] = graph
    return graph.replay


recorders: dict[str, Callable[[Repeat], Repeat]] = {"cuda": _on_cuda}  # by the type of device
