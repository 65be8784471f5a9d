"""Matrix products in float32 on a CPU, by the library that is faster on this kind of processor.

PyTorch calls MKL, which uses no 512-bit vectors on AMD processors. On those that have AVX-512, large products are twice
as fast with oneDNN; on all others MKL is faster (docs/speed.md). The kind of processor decides, not a measurement at
run time, so that the same kind of machine always gives the same bits.
"""

from functools import cache

import torch
from torch import Tensor

from pflsweep.util import processor

# Multiply-adds from which oneDNN is faster: smaller products do not make up for its call from Python.
LARGE = 1 << 21


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x [B, in] @ weight [out, in].T + bias [out]. Autograd does not support it."""
    if is_for_onednn(x, weight):
        return by_onednn(x, weight, bias)
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a [m, k] @ b [k, n], written to `out` if given. Autograd does not support it."""
    if not is_for_onednn(a, b):
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)
    found = by_onednn(a, b.t())
    return found if out is None else out.copy_(found)


def is_for_onednn(a: Tensor, b: Tensor) -> bool:
    """Return True if oneDNN is faster here for the product of a [m, k] with a matrix b of k * n entries."""
    return (
        provider() == "oneDNN"
        and a.shape[0] > 1
        and a.shape[0] * b.numel() >= LARGE
        and a.dtype == b.dtype == torch.float32
        and a.device.type == "cpu"
    )


def by_onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a [m, k] @ b [n, k].T + bias [n] by oneDNN."""
    # PyTorch has no public name for this operation; _has_onednn tries it first
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


@cache
def provider() -> str:
    """Return what computes large products on this CPU: "oneDNN", or "torch" for PyTorch's default."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return "oneDNN" if wide and processor.vendor() == "AuthenticAMD" and _has_onednn() else "torch"


def _has_onednn() -> bool:
    """Return True if this version of PyTorch has the operation that `by_onednn` calls."""
    try:
        a = torch.ones(2, 3)
        return torch.equal(by_onednn(a, a), torch.mm(a, a.t()))
    except (AttributeError, RuntimeError, TypeError):
        return False
