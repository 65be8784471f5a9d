"""A device that is not the CPU, on a machine that has no other: its tensors hold CPU tensors, and to compute with them
and with others that are not there is an error, as on a GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "meta"  # a device that PyTorch knows everywhere; its own tensors have shapes alone
# whose indices may lie on the CPU on a GPU too
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
MOVES = ("aten::copy_", "aten::_to_copy")


class There(Tensor):
    """A tensor of the other device."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=torch.device(NAME)
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


class _Makes(TorchDispatchMode):
    """What makes tensors is told a device, and has no tensor that would say it."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, args, kwargs or {})


class _Asked(TorchFunctionMode):
    """What PyTorch does not bring to an operation."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.__reduce_ex__:  # torch.save; read again on the CPU
            return args[0].cpu().__reduce_ex__(*args[1:])
        if function is Tensor.data_ptr:
            return (args[0].held if isinstance(args[0], There) else args[0]).data_ptr()
        if function is Tensor.tolist:
            return args[0].cpu().tolist()
        if function is Tensor.new_tensor:
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype, **kwargs}).to(args[0].device)
        if function in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            return function(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        return function(*args, **kwargs)


@contextmanager
def another_device() -> Iterator[str]:
    """Within it there is a device of the name that it gives."""
    with _Asked(), _Makes():
        yield NAME


def _run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """One operation of PyTorch's, on the tensors that are held."""
    name, device = op._schema.name, kwargs.get("device")
    given = pytree.tree_leaves((args, kwargs))
    there = [value for value in given if isinstance(value, There)]
    if there and name not in MOVES:
        _together(name, args, given)
    if there and torch.Tag.inplace_view in op.tags:  # its own shape changes, and what it holds with it
        _held(op, args, kwargs)
        with torch._C._DisableTorchDispatch():
            return op(*args, **kwargs)
    result = _held(op, args, kwargs if device is None else {**kwargs, "device": _beneath(device)})
    here = args[0].device.type != NAME if name == "aten::copy_" else _is_here(device, there)
    if here:
        return result
    same = {id(tensor.held): tensor for tensor in there}  # what was written to in place
    return pytree.tree_map_only(
        Tensor, lambda tensor: same[id(tensor)] if id(tensor) in same else There(tensor), result
    )


def _together(name: str, args: Any, given: list[Any]) -> None:
    """As on a GPU, numbers without a dimension may lie on the CPU."""
    indices = pytree.tree_leaves(args[1]) if name in INDEXED else []
    for value in given:
        on_cpu = isinstance(value, Tensor) and not isinstance(value, There) and value.dim() > 0
        if on_cpu and not any(value is index for index in indices):
            raise RuntimeError(f"{name}: a tensor {list(value.shape)} is on the CPU and others are on another device")


def _held(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    args, kwargs = pytree.tree_map_only(There, lambda tensor: tensor.held, (args, kwargs))
    return op(*args, **kwargs)


def _beneath(device: Any) -> torch.device:
    return torch.device("cpu") if torch.device(device).type == NAME else torch.device(device)


def _is_here(device: Any, there: list[There]) -> bool:
    return not there if device is None else torch.device(device).type != NAME
