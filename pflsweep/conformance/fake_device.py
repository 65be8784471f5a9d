"""A fake device, so that a machine without a GPU can test that all tensors are on one device.

Its tensors hold CPU tensors. To compute with these and with CPU tensors together is an error, as on a GPU. So is an
operation for which the CPU waits, in a function that a GPU would replay as a CUDA graph (ops/graph.py).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pflsweep.ops import graph

# A device that PyTorch knows on every machine and that nothing here uses: its real tensors have shapes, but no values.
NAME = "meta"
# Operations that accept indices on the CPU for tensors on a GPU.
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
MOVES = ("aten::copy_", "aten::_to_copy")  # operations between devices
# Operations that give the CPU a number, or a shape that depends on numbers.
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2")
_replaying = threading.local()


class FakeTensor(Tensor):
    """A tensor on the fake device. It holds a CPU tensor with its values."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "FakeTensor":
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=torch.device(NAME)
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


class _FactoryMode(TorchDispatchMode):
    """Intercepts operations without tensor arguments, which make tensors on a device that they are told."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})


class _FunctionMode(TorchFunctionMode):
    """Intercepts functions that PyTorch does not dispatch as operations, such as data_ptr and torch.save's."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.__reduce_ex__:  # called by torch.save; torch.load then makes a CPU tensor
            return args[0].cpu().__reduce_ex__(*args[1:])
        if function in (Tensor.data_ptr, Tensor.untyped_storage):
            return function(args[0].held if isinstance(args[0], FakeTensor) else args[0])
        if function is Tensor.tolist:
            return args[0].cpu().tolist()
        if function is Tensor.new_tensor:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(args[0].device)
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            return function(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        return function(*args, **kwargs)


@contextmanager
def another_device() -> Iterator[str]:
    """Make the fake device available, and yield its name."""
    with _FunctionMode(), _FactoryMode(), patch.dict(graph.recorders, {NAME: _record}):
        yield NAME


def _record(fn: graph.Repeat) -> graph.Repeat:
    """Return what a CUDA graph of fn would do. Unlike a graph it runs the whole function each time."""

    def replay() -> None:
        _replaying.on = True
        try:
            fn()
        finally:
            _replaying.on = False

    return replay


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation of PyTorch on the CPU tensors that are held. Raises RuntimeError if it mixes devices."""
    name = op._schema.name
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    given = pytree.tree_leaves((args, kwargs))
    there = [value for value in given if isinstance(value, FakeTensor)]
    if getattr(_replaying, "on", False):
        _require_no_wait(name, args, device, given)
    if there and name not in MOVES:
        _require_one_device(name, args, given)
    # Such an operation changes the shape of its argument: of the wrapper, and of what it holds.
    if there and torch.Tag.inplace_view in op.tags:
        _held(op, args, kwargs)
        with torch._C._DisableTorchDispatch():
            return op(*args, **kwargs)
    to_fake = device is not None and device.type == NAME
    result = _held(op, args, {**kwargs, "device": torch.device("cpu")} if to_fake else kwargs)
    if name == "aten::copy_":
        to_fake = args[0].device.type == NAME
    elif device is None:
        to_fake = bool(there)
    if not to_fake:
        return result
    same = {id(tensor.held): tensor for tensor in there}  # arguments that the operation has returned, written in place
    return pytree.tree_map_only(
        Tensor, lambda tensor: same[id(tensor)] if id(tensor) in same else FakeTensor(tensor), result
    )


def _require_one_device(name: str, args: Any, given: list[Any]) -> None:
    """Raise RuntimeError if an argument is on the CPU. As on a GPU, tensors without dimensions may be."""
    indices = pytree.tree_leaves(args[1]) if name in INDEXED else []
    for value in given:
        on_cpu = isinstance(value, Tensor) and not isinstance(value, FakeTensor) and value.dim() > 0
        if on_cpu and not any(value is index for index in indices):
            raise RuntimeError(f"{name}: a tensor {list(value.shape)} is on the CPU and others are on another device")


def _require_no_wait(name: str, args: Any, device: torch.device | None, given: list[Any]) -> None:
    """Raise RuntimeError for an operation that a CUDA graph cannot record: one for which the CPU waits."""
    chosen = pytree.tree_leaves(args[1]) if name == "aten::index" else []
    by_mask = any(isinstance(index, Tensor) and index.dtype == torch.bool for index in chosen)
    target = args[0].device if name == "aten::copy_" else device
    moves = target is not None and any(
        isinstance(value, FakeTensor) != (target.type == NAME) for value in given if isinstance(value, Tensor)
    )
    if name in WAITS or by_mask or (name in MOVES and moves):
        raise RuntimeError(f"{name}: the CPU would wait for the device, so that a CUDA graph cannot record it")


def _held(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation with CPU tensors in place of those on the fake device."""
    args, kwargs = pytree.tree_map_only(FakeTensor, lambda tensor: tensor.held, (args, kwargs))
    return op(*args, **kwargs)
