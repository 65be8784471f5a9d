"""Stateless layers, and the context that passes them the step's key, the padding mask and batch-norm statistics.

    with context(key=key, mask=mask):          # training: dropout draws, batch norm reads the batch
        model(x)
    with context(mask=mask, collect=moments):  # calibration: the batch's statistics are collected
        model(x)
    with context(stats=moments):               # evaluation: uses those statistics
        model(x)
    model(x)                                   # evaluation of a model without batch norm

The layers keep no state, so a model is fully described by its parameters. Everything here runs under
torch.func.functional_call, grad and vmap, and in several threads at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from pflsweep.ops import memory, products, random
from pflsweep.ops.vmap import vmapped
from pflsweep.util.errors import UserError, nearest

NORMS = ("group", "batch", "none")


class Moments(NamedTuple):
    """Statistics of one batch-norm layer over the batches seen so far."""

    total: Tensor  # [] number of samples
    mean: Tensor  # [channels]
    var: Tensor  # [channels] biased, as batch norm uses it


Stats = dict[int, Moments]  # by the layer's number


class Context(NamedTuple):
    """The values that `context` passes to the layers of a model, as its docstring describes them."""

    key: Tensor | None
    mask: Tensor | None
    stats: Stats | None
    collect: Stats | None


# A context variable, so that each thread has its own context.
_context: ContextVar[Context | None] = ContextVar("pflsweep_layers", default=None)


@contextmanager
def context(
    *,
    key: Tensor | None = None,
    mask: Tensor | None = None,
    stats: Stats | None = None,
    collect: Stats | None = None,
) -> Iterator[None]:
    """Set what the layers see in the forward passes inside. Without `stats` the passes are those of training.

    key: [] int64, the key of this step; None: no dropout. Two passes with the same key drop the same units.
    mask: [B] bool or float, 0 for padding; None: no padding. collect: a dict that receives the batch-norm statistics;
    under vmap it must be created inside. stats: collected statistics, for evaluation.
    """
    token = _context.set(Context(key, mask, stats, collect))
    try:
        yield
    finally:
        _context.reset(token)


class Numbered(nn.Module):
    """A layer with a number in its model, which separates its draws or statistics from those of other layers."""

    number: int = 0


def number_layers(model: nn.Module) -> None:
    """Number the layers of a model that draw or collect statistics. A second call changes nothing."""
    for number, layer in enumerate(module for module in model.modules() if isinstance(module, Numbered)):
        layer.number = number


def channels_last(x: Tensor) -> Tensor:
    """Return images [B, channels, H, W] in channels-last layout where they are on a CPU; else as they are.

    Convolutions, ReLU and pooling keep the layout. For the McMahan CNN it gives a third more images a second in
    training, and twice as many in evaluation (docs/speed.md).
    """
    if x.device.type != "cpu" or vmapped():
        return x
    # in_order, not contiguous: a single channel too must have stride 1 to count as channels last
    return memory.in_order(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Conv2d(nn.Conv2d):
    """nn.Conv2d whose input and output on a CPU are in channels-last layout: the first layer of a CNN."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(channels_last(x))


class _Product(torch.autograd.Function):
    """The product a [m, k] @ b [n, k].T by oneDNN, which also computes its gradients of any order."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return products.by_onednn(a, b)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        of_a, of_b = ctx.needs_input_grad
        return _Product.apply(g, b.t()) if of_a else None, _Product.apply(g.t(), a.t()) if of_b else None


class Linear(nn.Linear):
    """nn.Linear whose large products on a CPU are computed by the faster library (see ops/products.py)."""

    def forward(self, x: Tensor) -> Tensor:
        # shapes are compared last: a tracer, for which _computes returns False, must not see it
        taken = products.provider() == "oneDNN" and _computes() and x.dim() == 2
        if not (taken and products.is_for_onednn(x, self.weight)):
            return super().forward(x)
        out = _Product.apply(x, self.weight)
        return out if self.bias is None else out + self.bias


def _computes() -> bool:
    """Return True if PyTorch only computes operations here, and their gradients.

    False under torch.func, a compiler, a tracer, forward-mode derivatives or autocast.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled("cpu")
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    )


class Dropout(Numbered):
    """Inverted dropout (Srivastava et al. 2014) whose draws depend on the context's key alone. x [B, ...].

    whole: a sample is kept or dropped as a whole (stochastic depth, Huang et al. 2016).
    """

    def __init__(self, p: float, whole: bool = False) -> None:
        super().__init__()
        self.p, self.whole = p, whole

    def forward(self, x: Tensor) -> Tensor:
        now = _context.get()
        if now is None or now.key is None or self.p == 0:
            return x
        shape = (x.shape[0], *[1] * (x.dim() - 1)) if self.whole else x.shape
        kept = random.uniform(random.fold(now.key, self.number), shape) >= self.p
        return torch.where(kept, x / (1 - self.p), torch.zeros((), dtype=x.dtype, device=x.device))

    def extra_repr(self) -> str:
        return f"p={self.p}, whole={self.whole}"


class BatchNorm2d(Numbered):
    """Batch normalisation (Ioffe and Szegedy 2015) without running statistics. x [B, channels, H, W].

    Training normalises with the statistics of the batch, without its padding. Evaluation uses statistics that are
    recomputed for the weights that are evaluated. So there is no state to send, average or resume.
    """

    # evaluation needs a calibration pass first
    calibrated = True

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised. Raises RuntimeError in evaluation without statistics."""
        now = _context.get()
        if now is None or (now.stats is not None and self.number not in now.stats):
            raise RuntimeError(
                f"batch norm (layer {self.number}) keeps no running statistics: to evaluate, collect them "
                "first with context(collect=...) on training batches and pass them as context(stats=...); "
                "to train, use context(key=..., mask=...)"
            )
        x = x.to(self.weight.dtype)  # statistics are not rounded under autocast
        if now.stats is not None:
            moments = now.stats[self.number]
        else:
            moments = batch_moments(x, now.mask)
            x = _without_padding(x, now.mask)
            if now.collect is not None:
                seen, new = now.collect.get(self.number), Moments(*(value.detach() for value in moments))
                now.collect[self.number] = new if seen is None else merged(seen, new)
        scale = self.weight * torch.rsqrt(moments.var + self.eps)
        return x * scale[:, None, None] + (self.bias - moments.mean * scale)[:, None, None]

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}, eps={self.eps}"


NORM_LAYERS = (BatchNorm2d, nn.GroupNorm, nn.LayerNorm)


def batch_moments(x: Tensor, mask: Tensor | None) -> Moments:
    """Return the moments of each channel over the samples of a batch x [B, channels, H, W], without its padding.

    A batch of padding alone has total, mean and variance 0.
    """
    weight = torch.ones_like(x[:, 0, 0, 0]) if mask is None else mask.to(x.dtype)
    count = weight.sum()
    share = weight / (count.clamp(min=1) * x.shape[2] * x.shape[3])
    x = _without_padding(x, mask)
    mean = torch.einsum("bchw,b->c", x, share)
    var = torch.einsum("bchw,b->c", (x - mean[:, None, None]).square(), share)
    return Moments(count, mean, var)


def merged(a: Moments, b: Moments) -> Moments:
    """Return the moments of two sets of samples together (Chan, Golub and LeVeque 1983)."""
    count = a.total + b.total
    share = b.total / count.clamp(min=1)
    apart = b.mean - a.mean
    var = a.var + share * (b.var - a.var) + share * (1 - share) * apart.square()
    return Moments(count, a.mean + share * apart, var)


def _without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return x with padded rows set to 0, so that their values have no influence, NaN included."""
    if mask is None:
        return x
    return torch.where(mask.bool()[:, None, None, None], x, torch.zeros((), dtype=x.dtype, device=x.device))


def norm_layer(norm: str, channels: int, groups: int, eps: float = 1e-5) -> nn.Module:
    """Return the layer of a norm: `group` is GroupNorm (Wu and He 2018), `batch` BatchNorm2d, `none` the identity.

    Raises UserError on another norm, and if `groups` does not divide the channels.
    """
    if norm not in NORMS:
        raise UserError(f"model.norm is '{norm}': it must be group, batch or none.{nearest(str(norm), list(NORMS))}")
    if norm == "none":
        return nn.Identity()
    if norm == "batch":
        return BatchNorm2d(channels, eps)
    if groups < 1 or channels % groups:
        raise UserError(
            f"model.groups is {groups}: it must divide the channels of each normalised layer, here {channels}."
        )
    return nn.GroupNorm(groups, channels, eps)
