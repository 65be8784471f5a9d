"""The task alone knows layers: a model is one flat vector `w [P]`, extractor first, head last, blocks contiguous.

A model is an nn.Sequential of named blocks, bottom to top; its last block, the head, is one nn.Linear. So a part of
a model is a slice of `w`. Everything here is written for one client and runs lifted as well (see vmap.py).
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.methods.dense import DenseGradient
from pflsweep.models.blocks import head_of
from pflsweep.models.layers import NORM_LAYERS, context, number_layers
from pflsweep.ops import random
from pflsweep.ops.compiled import Program
from pflsweep.ops.vmap import vmapped, vmapping

Loss = Callable[..., Tensor]  # (logits [B, K], batch) -> scalar mean


class Private(NamedTuple):
    """What makes a batch's gradients private: how they are clipped and noised, and a tally of how many were taken."""

    size: Tensor  # [] the expected number of samples in the batch
    key: Tensor  # [] int64 of the noise
    clip: float  # C, the longest that one sample's gradient may be
    noise: float  # sigma: the noise on their sum has the standard deviation sigma C
    looks: list[None]  # an entry a gradient; shared by all clients of the chunk, who take equally many


class Batch(NamedTuple):
    """One mini-batch of one client; at cohort level every tensor has the clients C in front."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    mask: Tensor | None  # [B] 1 for a sample, 0 for padding; None: nothing is padded
    live: Tensor | None  # [] whether this client has a batch at all; None: it has
    key: Tensor | None  # [] int64: dropout and other noise of this step
    private: Private | None = None  # of a step of DP-SGD, whose gradients (Task.grad) are clipped and noised


def mean_over(values: Tensor, batch: Batch) -> Tensor:
    """Mean of per-sample values [B, ...] over the batch's samples; 0 where it has none."""
    if batch.mask is None:
        return values.mean(0)
    mask = batch.mask.to(values.dtype)
    values = torch.where(batch.mask.view(-1, *[1] * (values.dim() - 1)), values, 0)  # not times 0: it may be infinite
    return torch.tensordot(mask / mask.sum().clamp(min=1), values, dims=1)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy: the loss of every paper here. Scalar."""
    if batch.mask is None:
        return F.cross_entropy(logits, batch.y)
    return mean_over(F.cross_entropy(logits, batch.y, reduction="none"), batch)


def by_class(values: Tensor, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Values [B, D] summed by class [K, D], and the classes' counts [K], both divided by the batch's samples."""
    here = (batch.y[:, None] == torch.arange(classes, device=batch.y.device)).to(values.dtype)
    if batch.mask is None:
        return here.T @ values / len(values), here.mean(0)
    here = here * batch.mask[:, None].to(values.dtype) / batch.mask.sum().clamp(min=1)
    return here.T @ torch.where(batch.mask[:, None], values, 0), here.sum(0)


class Task:
    """A model's architecture and its loss.

    precision: "fp32"; "tf32", which the trial sets for all products on a GPU; or "bf16", PyTorch's autocast in training
    passes: parameters, gradients' sums, updates and evaluation stay fp32.
    compiled: the size of batches on which gradients of the plain loss are compiled programs; 0: none are.
    size: P. classes: K. width: D, features that the head sees. extractor, head: slices of w. blocks: one slice a block,
    bottom to top. A task is one thread's: a forward pass puts its parameters into the one model.
    dense: the gradient written out, where all layers are linear or ReLU; else None, and autograd computes it.
    """

    def __init__(self, model: nn.Sequential, precision: str = "fp32", compiled: int = 0) -> None:
        self.model, self.precision, self.compiled = model, precision, compiled
        self._program = Program()
        self.blocks: list[slice] = []
        self._layout: list[list[tuple[str, slice, torch.Size]]] = []  # per block; names are those of `model`
        start = 0
        for block_name, block in model.named_children():
            begin, entries = start, []
            for name, parameter in block.named_parameters():
                entries.append((f"{block_name}.{name}", slice(start, start + parameter.numel()), parameter.shape))
                start += parameter.numel()
            self._layout.append(entries)
            self.blocks.append(slice(begin, start))
        self._parts: dict[tuple[int, int], list[str]] = {}
        self._homes: dict[str, tuple[dict[str, Any], str]] = {
            f"{at}.{name}": (module._parameters, name)
            for at, module in model.named_modules()
            for name in module._parameters
        }
        self._where = {name: where for entries in self._layout for name, where, _ in entries}
        number_layers(model)  # a user's own nn.Sequential too: each dropout layer draws in a way of its own
        self.size = start
        self.dense = DenseGradient.of(model)
        self._last: tuple[Tensor, Callable, Any] | None = None  # w of the last gradient, and what was made of it
        self.head = self.blocks[-1]
        self.extractor = slice(0, self.head.start)
        self.classes, self.width = head_of(model).out_features, head_of(model).in_features
        self.calibrated = any(getattr(module, "calibrated", False) for module in model.modules())
        blocks = list(model._modules.items())
        self._spans = {
            (i, j): nn.Sequential(OrderedDict(blocks[i:j]))  # model[i:j] would call the class of one's own
            for i in range(len(blocks))
            for j in range(i + 1, len(blocks) + 1)
        }

    def top(self, blocks: int) -> slice:
        """The slice of w that holds the top `blocks` blocks (FedALA's p). Empty for 0."""
        return slice(self.blocks[-blocks].start, self.size) if blocks else slice(self.size, self.size)

    def vector(self, model: nn.Sequential) -> Tensor:
        """A model's parameters as one vector [P]."""
        named = dict(model.named_parameters())
        return torch.cat([named[name].detach().reshape(-1) for entries in self._layout for name, _, _ in entries])

    def state_dict(self, w: Tensor) -> dict[str, Tensor]:
        """The opposite of `vector`: w [P] as a state_dict of the plain model."""
        return {name: piece.clone() for name, piece in self.views(w).items()}

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """The same without a copy."""
        return self._pieces(w, 0, None)

    @cached_property
    def norm(self) -> Tensor:
        """[P] bool: which parameters are those of normalisation layers."""
        marked = torch.zeros(self.size, dtype=torch.bool)
        for at, module in self.model.named_modules():
            if isinstance(module, NORM_LAYERS):
                for name, _ in module.named_parameters(at):
                    marked[self._where[name]] = True
        return marked

    # Forward passes

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """w [P], x [B, ...] -> [B, K]."""
        if self.dense is not None and not vmapped():
            return self.dense.logits(self._views(w, self.dense.parameters), x)
        return self._forward(self._pieces(w, 0, None), x, 0, None)

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """What the head sees: w [P] (or the extractor alone), x [B, ...] -> [B, D]."""
        return self.lower(w, x, 1)

    def classify(self, head: Tensor, z: Tensor) -> Tensor:
        """The head alone: its slice [H] of some w, features z [B, D] -> [B, K]."""
        return self.upper(head, z, 1)

    def lower(self, w: Tensor, x: Tensor, top: int) -> Tensor:
        """Activations below the `top` topmost blocks: w [P] (or its part below them), x [B, ...] -> [B, ...]."""
        last = len(self.blocks) - top
        return self._forward(self._pieces(w, 0, last), x, 0, last) if last else x

    def upper(self, part: Tensor, a: Tensor, top: int) -> Tensor:
        """The `top` topmost blocks alone: their part of w, the activations a below them -> logits [B, K]."""
        first = len(self.blocks) - top
        return self._forward(self._pieces(part, first, None), a, first, None)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of a batch. Scalar."""
        return cross_entropy(self._noisy(self._pieces(w, 0, None), batch), batch)

    def below(self, w: Tensor, batch: Batch, top: int) -> Batch:
        """The batch as the `top` topmost blocks see it, without dropout: for training them alone, repeatedly."""
        with context(mask=batch.mask):
            return batch._replace(x=self.lower(w, batch.x, top), key=None)

    # Gradients

    def grad(self, w: Tensor, batch: Batch, loss: Loss = cross_entropy, part: slice | None = None) -> Tensor:
        """Gradient of `loss` at w [P], or of its `part` alone. Pure."""
        return self.value_and_grad(w, batch, loss, part)[1]

    def value_and_grad(
        self,
        w: Tensor,
        batch: Batch,
        loss: Loss = cross_entropy,
        part: slice | None = None,
        top: int | None = None,
        features: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The loss, a scalar, and its gradient [P] (or [len(part)], a union of blocks). Pure.

        top: w is the part of the `top` topmost blocks alone, and batch.x the activations below them.
        features: the loss is a function of (logits [B, K], what the head sees [B, D], batch).
        A private batch's gradient is clipped and noised (DP-SGD); its loss is not, and must not leave the client.
        """
        if batch.private is not None:
            return self._private(batch.private, w, batch, loss, part, top, features)
        if loss is cross_entropy and self._compiles(batch):
            how = (None if part is None else (part.start, part.stop), top)
            return self._program(self._gradient, how, w, batch.x, batch.y, batch.mask, batch.key)
        if self.dense is not None and loss is cross_entropy and not features and self._is_plain(batch):
            if part is not None:
                self._names(part.start, part.stop)
            first = 0 if top is None else len(self.blocks) - top
            of = self.dense.parameters
            parameters = of(w, first) if first else self._views(w, of)
            return self.dense.value_and_grad(parameters, batch.x, batch.y, part, first)
        return self._joined(w, batch, loss, part, top, features)

    def grads(self, w: Tensor, batch: Batch) -> dict[str, Tensor]:
        """`grad` by parameter, as `views` has w. To join them is a pass over P more, unless `is_joined`."""
        if self.is_joined(batch):
            return self.views(self.grad(w, batch))
        return self._grads(w, batch, cross_entropy, None, None, False)[1]

    def is_joined(self, batch: Batch) -> bool:
        """Whether `grad` is made as one vector, not of a gradient by parameter."""
        private, written_out = batch.private is not None, self.dense is not None and self._is_plain(batch)
        return vmapped() or private or written_out or self._compiles(batch)

    def trained_features(self, w: Tensor, batch: Batch) -> Tensor:
        """What the head sees in a training pass, dropout included, for `value_and_grad_of`: w [P + Q] -> [B, D]."""
        with context(key=batch.key, mask=batch.mask), self._cast(batch.x):
            return self.lower(w, batch.x, 1).to(w.dtype)

    def value_and_grad_of(self, loss: Loss, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return loss(w, batch), a scalar, and its gradient in all of w [P + Q], whose last Q numbers are the method's.

        So a method has layers of its own beside the model's. The loss is a training pass that it writes, of
        `trained_features` and `classify`. Raises ValueError for a private batch, which this does not clip.
        """
        if batch.private is not None:
            raise ValueError("value_and_grad_of does not clip: a method that uses it must say dp_incompatible_reason")
        if vmapped():
            g, value = torch.func.grad_and_value(loss)(w, batch)
            return value, g
        free = w.detach().requires_grad_()
        with torch.enable_grad():
            value = loss(free, batch)
        return value.detach(), torch.autograd.grad(value, free)[0]

    # Inside

    def _is_plain(self, batch: Batch) -> bool:
        """Whether a batch is one client's, without padding, at full precision."""
        return batch.mask is None and self.precision != "bf16" and not vmapped()

    def _compiles(self, batch: Batch) -> bool:
        """Only batches of one size: those that are cut short would each need a program of their own."""
        return self.compiled > 0 and batch.y.shape[0] == self.compiled

    def _gradient(
        self, how: tuple, w: Tensor, x: Tensor, y: Tensor, mask: Tensor | None, key: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """value_and_grad of the plain loss, of tensors alone."""
        part, top = how
        batch = Batch(x, y, mask, None, key)
        return self._joined(w, batch, cross_entropy, None if part is None else slice(*part), top, False)

    def _joined(
        self, w: Tensor, batch: Batch, loss: Loss, part: slice | None, top: int | None, features: bool
    ) -> tuple[Tensor, Tensor]:
        """The loss and its gradient as one vector."""
        result, grads = self._grads(w, batch, loss, part, top, features)
        return result, torch.cat([grad.reshape(-1) for grad in grads.values()]) if grads else w.new_zeros(0)

    def _grads(
        self, w: Tensor, batch: Batch, loss: Loss, part: slice | None, top: int | None, features: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its gradient by parameter."""
        first = 0 if top is None else len(self.blocks) - top
        whole = part is None and not first and not vmapped()
        pieces = self._views(w, self._leaves) if whole else self._pieces(w, first, None)
        names = list(pieces) if part is None else self._names(part.start, part.stop)

        def value(*free: Tensor) -> Tensor:
            at = {**pieces, **dict(zip(names, free, strict=True))}
            if features:
                return loss(*self._noisy_with_features(at, batch, first), batch)
            return loss(self._noisy(at, batch, first), batch)

        free = [pieces[name] for name in names]
        if not free:  # such as what is below the head of a model that is all head
            return value().detach(), {}
        if vmapped():
            grads, result = torch.func.grad_and_value(value, argnums=tuple(range(len(free))))(*free)
        else:
            free = free if whole else [piece.detach().requires_grad_() for piece in free]
            with torch.enable_grad():
                result = value(*free)
            grads = torch.autograd.grad(result, free)
        return result.detach(), dict(zip(names, grads, strict=True))

    def _leaves(self, w: Tensor) -> dict[str, Tensor]:
        """The parameters as leaves of autograd's graphs."""
        return {name: piece.detach().requires_grad_() for name, piece in self.views(w).items()}

    def _views(self, w: Tensor, of: Callable[[Tensor], Any]) -> Any:
        """Return what `of` makes of w. A local loop that writes into w gets the same in each step."""
        if self._last is None or self._last[0] is not w or self._last[1] != of:
            self._last = w, of, of(w)
        return self._last[2]

    def _private(self, how: Private, w: Tensor, batch: Batch, *options: Any) -> tuple[Tensor, Tensor]:
        """Abadi et al. 2016, Algorithm 1: (sum of the samples' clipped gradients + N(0, sigma^2 C^2 I)) / size."""

        def one(x: Tensor, y: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
            key = None if batch.key is None else random.fold(batch.key, number)
            with vmapping():
                return self._joined(w, Batch(x[None], y[None], None, None, key), *options)

        numbers = torch.arange(batch.y.shape[0], device=batch.y.device)
        losses, grads = torch.func.vmap(one)(batch.x, batch.y, numbers)
        counts = grads.isfinite().all(1)  # a gradient that cannot be clipped has no say at all
        if batch.mask is not None:
            counts = counts & batch.mask
        grads = torch.where(counts[:, None], grads, 0)
        scale = torch.where(counts, (how.clip / grads.norm(dim=1)).clamp(max=1), 0)
        total = scale @ grads
        if how.noise:
            key = random.fold(how.key, len(how.looks))
            total = total + how.noise * how.clip * random.normal(key, total.shape).to(total.dtype)
        how.looks.append(None)
        return mean_over(losses, batch), total / how.size

    def _names(self, start: int, stop: int) -> list[str]:
        """The parameters within w[start:stop]. Raises ValueError where it cuts one."""
        if (start, stop) in self._parts:
            return self._parts[start, stop]
        inside = [name for name, where in self._where.items() if start <= where.start and where.stop <= stop]
        if sum(self._where[name].stop - self._where[name].start for name in inside) != stop - start:
            raise ValueError(f"w[{start}:{stop}] cuts through a parameter: a part is made of whole ones")
        self._parts[start, stop] = inside
        return inside

    def _pieces(self, part: Tensor, first: int, last: int | None) -> dict[str, Tensor]:
        """Views of a flat part that begins with block `first`, by parameter name."""
        offset = self.blocks[first].start
        return {
            name: part[where.start - offset : where.stop - offset].view(shape)
            for entries in self._layout[first:last]
            for name, where, shape in entries
        }

    def _forward(self, pieces: dict[str, Tensor], x: Tensor, first: int, last: int | None) -> Tensor:
        """The blocks [first, last) with these parameters: torch.func.functional_call without its checks, which cost a
        tenth of a small step."""
        homes = [self._homes[name] for name in pieces]
        before = [parameters[name] for parameters, name in homes]
        try:
            for (parameters, name), piece in zip(homes, pieces.values(), strict=True):
                parameters[name] = piece
            return self._spans[first, len(self.blocks) if last is None else last](x)
        finally:
            for (parameters, name), piece in zip(homes, before, strict=True):
                parameters[name] = piece

    def _noisy(self, pieces: dict[str, Tensor], batch: Batch, first: int = 0) -> Tensor:
        """A training pass: dropout draws from the batch's key, batch norm reads the batch's mask."""
        with context(key=batch.key, mask=batch.mask), self._cast(batch.x):
            return self._forward(pieces, batch.x, first, None).to(_dtype(pieces))

    def _noisy_with_features(self, pieces: dict[str, Tensor], batch: Batch, first: int) -> tuple[Tensor, Tensor]:
        """The same pass, (logits, what the head sees)."""
        last = len(self.blocks) - 1
        head = {name for name, _, _ in self._layout[last]}
        with context(key=batch.key, mask=batch.mask), self._cast(batch.x):
            lower = {name: piece for name, piece in pieces.items() if name not in head}
            z = self._forward(lower, batch.x, first, last) if last > first else batch.x
            out = self._forward({name: piece for name, piece in pieces.items() if name in head}, z, last, None)
            return out.to(_dtype(pieces)), z.to(_dtype(pieces))

    def _cast(self, x: Tensor) -> AbstractContextManager[Any]:
        """What a training pass computes in."""
        return torch.autocast(x.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()


def _dtype(pieces: dict[str, Tensor]) -> torch.dtype:
    return next(iter(pieces.values())).dtype
