"""Matrix products of fp32 on a CPU: by the library that is the faster one on this kind of processor.

PyTorch takes MKL's, which on AMD's processors uses no vectors of 512 bits. Where these have such vectors, oneDNN's
large products are twice as fast; elsewhere MKL's are the faster ones (docs/speed.md). The kind of processor decides,
not a measurement at run time, so a kind of machine gives the same bits always.
"""

from functools import cache

import torch
from torch import Tensor

from pflsweep.util import processor

LARGE = 1 << 21  # multiply-adds from which oneDNN's is the faster one: it is called from Python


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [B, in] @ weight [out, in].T + bias [out]. Not for autograd."""
    if is_for_onednn(x, weight):
        return by_onednn(x, weight, bias)
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a [m, k] @ b [k, n], written to `out` where there is one. Not for autograd."""
    if not is_for_onednn(a, b):
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)
    found = by_onednn(a, b.t())
    return found if out is None else out.copy_(found)


def is_for_onednn(a: Tensor, b: Tensor) -> bool:
    """Return whether oneDNN's product of a [m, k] with a matrix b of k times n entries is the faster one here."""
    return (
        provider() == "oneDNN"
        and a.shape[0] > 1
        and a.shape[0] * b.numel() >= LARGE
        and a.dtype == b.dtype == torch.float32
        and a.device.type == "cpu"
    )


def by_onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a [m, k] @ b [n, k].T + bias [n]. PyTorch has no public name for it."""
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


@cache
def provider() -> str:
    """Return what computes large products on a CPU here: "oneDNN", or "torch" for what PyTorch takes by itself."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return "oneDNN" if wide and processor.vendor() == "AuthenticAMD" and _has_onednn() else "torch"


def _has_onednn() -> bool:
    """Return whether this PyTorch has the operation as it is used here."""
    try:
        a = torch.ones(2, 3)
        return torch.equal(by_onednn(a, a), torch.mm(a, a.t()))
    except (AttributeError, RuntimeError, TypeError):
        return False
