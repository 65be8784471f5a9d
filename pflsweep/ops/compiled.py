"""Gradients as compiled programs: torch.compile of what a gradient does with tensors.

It is traced (make_fx) and not read, so the compiler needs to understand nothing of ours; and a trace says all that a
program does, so equal ones are compiled once in a process, however many trials have them. What a model works out of its
input outside of PyTorch (in numpy, say) is a constant of its trace.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pflsweep.ops import memory
from pflsweep.ops.vmap import vmapped
from pflsweep.util.errors import UserError

Gradient = Callable[..., tuple[Tensor, Tensor]]  # (how, *tensors) -> loss [], gradient [..]
_compiled: dict[Any, Callable] = {}  # by trace and by what it was traced with
_lock = threading.RLock()  # trials of a stack are threads, and none of them may run a program while another is traced


class Program:
    """A gradient compiled: a program for each `how` and each shape of its tensors, of which some may be None. Under
    vmap it is one for all clients.

    Raises UserError where PyTorch cannot compile it.
    """

    def __init__(self) -> None:
        self._programs: dict[Any, Callable] = {}

    def __call__(self, eager: Gradient, how: tuple, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return _Lifted.apply(self, eager, how, *tensors) if vmapped() else self.run("one", eager, how, tensors)

    def run(self, whose: str, fn: Gradient, how: tuple, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
        """whose: the gradient of "one" client or of "all" of a chunk, in which `fn` differs."""
        given = [memory.in_order(tensor) for tensor in tensors if tensor is not None]  # a program takes one layout
        key = (whose, how, *(None if tensor is None else _kind(tensor) for tensor in tensors))

        def of_given(*given: Tensor) -> tuple[Tensor, Tensor]:
            supply = iter(given)
            return fn(how, *(None if tensor is None else next(supply) for tensor in tensors))

        with _lock, torch.no_grad():  # a program is of one grad mode
            if key not in self._programs:
                self._programs[key] = _made(of_given, given)
            return self._programs[key](*given)


class _Lifted(torch.autograd.Function):
    """A program under torch.func.vmap, which hands over the tensors of all clients."""

    @staticmethod
    def forward(program: Program, eager: Gradient, how: tuple, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        raise RuntimeError("a lifted gradient was called for one client")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Nothing is differentiated through a gradient."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, program: Program, eager: Gradient, how: tuple, *tensors: Tensor | None
    ) -> tuple[Any, Any]:
        chunk = [
            None if tensor is None else tensor.expand(info.batch_size, *tensor.shape) if dim is None
            else tensor.movedim(dim, 0) for tensor, dim in zip(tensors, in_dims[3:], strict=True)
        ]  # fmt: skip

        def lifted(how: tuple, *chunk: Tensor | None) -> tuple[Tensor, Tensor]:
            dims = tuple(None if tensor is None else 0 for tensor in chunk)
            return torch.func.vmap(lambda *own: eager(how, *own), dims)(*chunk)

        return program.run("all", lifted, how, tuple(chunk)), (0, 0)


def _made(fn: Callable, given: list[Tensor]) -> Callable:
    """The program, after its first run. Raises UserError where there can be none."""
    try:
        program = _program(fn, given)
        program(*given)
    except Exception as error:
        cause = getattr(error, "inner_exception", error)  # as the compiler hands on what it has met
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        said = " ".join(str(error).partition("\n\n")[0].split())  # what follows is for PyTorch's developers
        raise UserError(
            "train.compile is true, but PyTorch cannot compile the gradient of this model. It needs a C++ compiler "
            "on a CPU and triton on a GPU, and a model that does the same whatever its numbers are; "
            f"train.compile=false does without. What it says: {type(error).__name__}: {said}"
        ) from error
    return program


def _program(fn: Callable, given: list[Tensor]) -> Callable:
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it takes a second

    traced = make_fx(fn)(*given)
    if any(node.op in ("get_attr", "call_module") for node in traced.graph.nodes):  # of which the code has only names
        return _fast(traced)
    key = (traced.code, torch.get_num_threads(), *map(_kind, given))
    if key not in _compiled:
        _compiled[key] = _fast(traced)
    return _compiled[key]


def _fast(traced: torch.fx.GraphModule) -> Callable:
    # its forward: around a module's errors fx has code on which the compiler stumbles, so they would come as others
    return torch.compile(traced.forward, dynamic=False, fullgraph=True)


def _kind(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device
