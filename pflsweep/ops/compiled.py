"""Gradients as compiled programs (torch.compile).

A gradient is traced with make_fx before it is compiled, so the compiler sees tensor operations alone and none of our
Python. Equal traces are compiled once in a process, however many trials have them. What a model computes outside
PyTorch, for example in numpy, becomes a constant of the trace.
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
# Compiled programs by their trace and by the kinds of the tensors that it was traced with.
_compiled: dict[Any, Callable] = {}
# Stacked trials are threads: none of them may run a program while another one is traced.
_lock = threading.RLock()


class Program:
    """A gradient that is compiled at its first call with each `how` and each shape, dtype and device of its tensors.

    Tensors may be None. Under vmap one program computes the gradients of all clients. A call raises UserError where
    PyTorch cannot compile it.
    """

    def __init__(self) -> None:
        self._programs: dict[Any, Callable] = {}

    def __call__(self, eager: Gradient, how: tuple, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        return _Lifted.apply(self, eager, how, *tensors) if vmapped() else self.run("one", eager, how, tensors)

    def run(self, whose: str, fn: Gradient, how: tuple, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
        """Return fn(how, *tensors), compiled. whose: "one" where `fn` is the gradient of a client, "all" of a chunk."""
        # a program is compiled for one memory layout
        given = [memory.in_order(tensor) for tensor in tensors if tensor is not None]
        key = (whose, how, *(None if tensor is None else _kind(tensor) for tensor in tensors))

        def of_given(*given: Tensor) -> tuple[Tensor, Tensor]:
            supply = iter(given)
            return fn(how, *(None if tensor is None else next(supply) for tensor in tensors))

        with _lock, torch.no_grad():  # a program is compiled for one grad mode
            if key not in self._programs:
                self._programs[key] = _made(of_given, given)
            return self._programs[key](*given)


class _Lifted(torch.autograd.Function):
    """A program under torch.func.vmap, whose rule for this function passes the tensors of all clients at once."""

    @staticmethod
    def forward(program: Program, eager: Gradient, how: tuple, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        raise RuntimeError("a lifted gradient was called for one client")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Save nothing, since gradients are not differentiated themselves."""

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
    """Return the compiled program, after a first run. Raises UserError where PyTorch cannot compile it."""
    try:
        program = _program(fn, given)
        program(*given)
    except Exception as error:
        cause = getattr(error, "inner_exception", error)  # the compiler wraps the errors that it meets
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause from None
        said = " ".join(str(error).partition("\n\n")[0].split())  # the rest is for PyTorch's developers
        raise UserError(
            "train.compile is true, but PyTorch cannot compile the gradient of this model. It needs a C++ compiler "
            "on a CPU and triton on a GPU, and a model that does the same whatever its numbers are; "
            f"train.compile=false does without. What it says: {type(error).__name__}: {said}"
        ) from error
    return program


def _program(fn: Callable, given: list[Tensor]) -> Callable:
    from torch.fx.experimental.proxy_tensor import make_fx  # imported here since it takes a second

    traced = make_fx(fn)(*given)
    # the code of such a trace names tensors or modules without their content, so equal code may mean another program
    if any(node.op in ("get_attr", "call_module") for node in traced.graph.nodes):
        return _fast(traced)
    key = (traced.code, torch.get_num_threads(), *map(_kind, given))
    if key not in _compiled:
        _compiled[key] = _fast(traced)
    return _compiled[key]


def _fast(traced: torch.fx.GraphModule) -> Callable:
    # `forward`, not the module: fx wraps a module's call in error handling that the compiler fails on
    return torch.compile(traced.forward, dynamic=False, fullgraph=True)


def _kind(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device
