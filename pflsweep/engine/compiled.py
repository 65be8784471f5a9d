"""Gradients as compiled programs: torch.compile of what a gradient does with tensors.

It is traced (make_fx) and not read, so the compiler needs to understand nothing of ours; and a trace says all that a
program does, so equal ones are compiled once in a process, however many trials have them.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pflsweep.engine.lift import vmapped
from pflsweep.errors import UserError

_compiled: dict[Any, Callable] = {}  # by trace and by what it was traced with
_lock = threading.RLock()  # trials of a stack are threads, and none of them may run a program while another is traced


class Program:
    """`eager(how, *tensors) -> (loss [], gradient [..])` compiled, with a program for each `how` and each shape of the
    tensors, of which some may be None. Under vmap it is one for all clients, who then have to differ in the tensors.

    Raises UserError where PyTorch cannot compile it.
    """

    def __init__(self, eager: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self._eager = eager
        self._programs: dict[Any, Callable] = {}

    def __call__(self, how: tuple, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return _Lifted.apply(self, how, *tensors) if vmapped() else self._run(how, tensors, self._eager)

    def of_all(self, how: tuple, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
        """The same of the clients of a chunk, [C, ...] each."""
        return self._run(how, tensors, self._lifted)

    def _lifted(self, how: tuple, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        in_dims = tuple(None if tensor is None else 0 for tensor in tensors)
        return torch.func.vmap(lambda *own: self._eager(how, *own), in_dims)(*tensors)

    def _run(self, how: tuple, tensors: tuple[Tensor | None, ...], fn: Callable) -> tuple[Tensor, Tensor]:
        given = [tensor.contiguous() for tensor in tensors if tensor is not None]
        key = (how, fn == self._lifted, *(None if tensor is None else _kind(tensor) for tensor in tensors))

        def of_given(*given: Tensor) -> tuple[Tensor, Tensor]:
            supply = iter(given)
            return fn(how, *(None if tensor is None else next(supply) for tensor in tensors))

        try:
            with _lock:
                if key not in self._programs:
                    self._programs[key] = _program(of_given, given)
                return self._programs[key](*given)
        except (torch.OutOfMemoryError, UserError):
            raise
        except Exception as error:
            said = " ".join(str(error).partition("\n\n")[0].split())  # what follows is for PyTorch's developers
            raise UserError(
                "train.compile is true, but PyTorch cannot compile the gradient of this model. It needs a C++ compiler "
                "on a CPU and triton on a GPU, and a model that does the same whatever its numbers are; "
                f"train.compile=false does without. What it says: {type(error).__name__}: {said}"
            ) from error


class _Lifted(torch.autograd.Function):
    """A program under torch.func.vmap, which hands over the tensors of all clients."""

    @staticmethod
    def forward(program: Program, how: tuple, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        raise RuntimeError("a lifted gradient was called for one client")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Nothing is differentiated through a gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple, program: Program, how: tuple, *tensors: Tensor | None) -> tuple[Any, Any]:
        chunk = [
            None if tensor is None else tensor.expand(info.batch_size, *tensor.shape) if dim is None
            else tensor.movedim(dim, 0) for tensor, dim in zip(tensors, in_dims[2:], strict=True)
        ]  # fmt: skip
        return program.of_all(how, tuple(chunk)), (0, 0)


def _program(fn: Callable, given: list[Tensor]) -> Callable:
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it takes a second

    traced = make_fx(fn)(*given)
    if any(node.op in ("get_attr", "call_module") for node in traced.graph.nodes):  # of which the code has only names
        return torch.compile(traced, dynamic=False, fullgraph=True)
    key = (traced.code, torch.get_num_threads(), *map(_kind, given))
    if key not in _compiled:
        _compiled[key] = torch.compile(traced, dynamic=False, fullgraph=True)
    return _compiled[key]


def _kind(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device
