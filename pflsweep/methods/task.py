"""The task: a model's layers behind one flat vector `w [P]`, and its loss and gradients.

A model is an nn.Sequential of named blocks, bottom to top; its last block, the head, is one nn.Linear. In `w` the
blocks follow one another, extractor first and head last, so that a part of a model is a slice. Methods see `w` alone,
never layers. Everything here is written for one client and also runs under vmap for many (see ops/vmap.py).
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
from pflsweep.ops.vmap import vmapped, vmapping

Loss = Callable[..., Tensor]  # (logits [B, K], batch) -> mean over the batch, a scalar


class Private(NamedTuple):
    """How the gradients of a DP-SGD batch are clipped and noised, and a count of how many were taken."""

    size: Tensor  # [] the expected number of samples in the batch
    key: Tensor  # [] int64 key of the noise
    clip: float  # C: largest norm of one sample's gradient
    noise: float  # sigma: the noise on the sum of gradients has the standard deviation sigma C
    gradients: list[None]  # one entry for each gradient; shared by the clients of a chunk, who take equally many


class Batch(NamedTuple):
    """One mini-batch of one client. For a chunk of clients every tensor has a first axis C."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    mask: Tensor | None  # [B] 1 for a sample, 0 for padding; None: nothing is padded
    live: Tensor | None  # [] whether this client has a batch at all; None: it has
    key: Tensor | None  # [] int64 key of dropout and other noise in this step
    private: Private | None = None  # set in DP-SGD: Task.grad then clips and noises


def mean_over(values: Tensor, batch: Batch) -> Tensor:
    """Return the mean of per-sample values [B, ...] over the samples of a batch; 0 if it has none.

    Raises ValueError where there is not one value for each row. In DP-SGD a loss is given one row at a time, so that
    it must not use tensors of the whole batch.
    """
    if len(values) != len(batch.y):
        raise ValueError(
            f"mean_over: {len(values)} values for {len(batch.y)} rows. In DP-SGD a loss is given one row at a time: "
            "what it computes from the batch has to be computed inside it, from batch.x"
        )
    if batch.mask is None:
        return values.mean(0)
    mask = batch.mask.to(values.dtype)
    # A value of a padded row may be infinite, and infinity times 0 is NaN: so it is replaced, not multiplied by 0.
    values = torch.where(batch.mask.view(-1, *[1] * (values.dim() - 1)), values, 0)
    return torch.tensordot(mask / mask.sum().clamp(min=1), values, dims=1)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of logits [B, K], a scalar: the loss of every paper here."""
    if batch.mask is None:
        return F.cross_entropy(logits, batch.y)
    return mean_over(F.cross_entropy(logits, batch.y, reduction="none"), batch)


def by_class(values: Tensor, batch: Batch, classes: int) -> tuple[Tensor, Tensor]:
    """Return values [B, D] summed by class [K, D] and the class counts [K], both divided by the batch's samples."""
    here = (batch.y[:, None] == torch.arange(classes, device=batch.y.device)).to(values.dtype)
    if batch.mask is None:
        return here.T @ values / len(values), here.mean(0)
    here = here * batch.mask[:, None].to(values.dtype) / batch.mask.sum().clamp(min=1)
    return here.T @ torch.where(batch.mask[:, None], values, 0), here.sum(0)


class Task:
    """A model's architecture and its loss, as functions of a flat parameter vector w [P].

    precision: "fp32"; "tf32", which the trial sets for all products on a GPU; or "bf16", PyTorch's autocast in training
    passes, where parameters, sums of gradients, updates and evaluation stay fp32.

    Attributes: size is P, classes K, and width D, the number of features that the head sees. extractor and head are
    slices of w; blocks has one slice for each block, bottom to top. dense is the explicit gradient of a model of linear
    layers and ReLU; it is None for other models, whose gradients autograd computes.

    A task is not thread-safe: a forward pass puts its parameters into the one model.
    """

    def __init__(self, model: nn.Sequential, precision: str = "fp32") -> None:
        self.model, self.precision = model, precision
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
        # Dropout layers draw by their numbers. A user's own nn.Sequential may not have numbered them yet.
        number_layers(model)
        self.size = start
        self.dense = DenseGradient.of(model)
        self._last: tuple[Tensor, Callable, Any] | None = None  # cache of _views: w, the function, and its result
        self.head = self.blocks[-1]
        self.extractor = slice(0, self.head.start)
        self.classes, self.width = head_of(model).out_features, head_of(model).in_features
        self.calibrated = any(getattr(module, "calibrated", False) for module in model.modules())
        blocks = list(model._modules.items())
        self._spans = {
            # Not model[i:j]: slicing calls the constructor of the model's class, which may be the user's own.
            (i, j): nn.Sequential(OrderedDict(blocks[i:j]))
            for i in range(len(blocks))
            for j in range(i + 1, len(blocks) + 1)
        }

    def top(self, blocks: int) -> slice:
        """Return the slice of w with the top `blocks` blocks (FedALA's p). It is empty for 0."""
        return slice(self.blocks[-blocks].start, self.size) if blocks else slice(self.size, self.size)

    def vector(self, model: nn.Sequential) -> Tensor:
        """Return a model's parameters as one vector [P]."""
        named = dict(model.named_parameters())
        return torch.cat([named[name].detach().reshape(-1) for entries in self._layout for name, _, _ in entries])

    def state_dict(self, w: Tensor) -> dict[str, Tensor]:
        """Return w [P] as a state_dict of the plain model, copied: the inverse of `vector`."""
        return {name: piece.clone() for name, piece in self.views(w).items()}

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Return w [P] as views by parameter name, without a copy."""
        return self._pieces(w, 0, None)

    @cached_property
    def norm(self) -> Tensor:
        """Return a mask [P] of the parameters of normalisation layers."""
        marked = torch.zeros(self.size, dtype=torch.bool)
        for at, module in self.model.named_modules():
            if isinstance(module, NORM_LAYERS):
                for name, _ in module.named_parameters(at):
                    marked[self._where[name]] = True
        return marked

    # Forward passes

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the logits [B, K] of model w [P] on x [B, ...], without dropout."""
        if self.dense is not None and not vmapped():
            return self.dense.logits(self._views(w, self.dense.parameters), x)
        return self._forward(self._pieces(w, 0, None), x, 0, None)

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the features [B, D] that the head sees. w: [P], or the extractor alone. x: [B, ...]."""
        return self.activations_below(w, x, 1)

    def classify(self, head: Tensor, z: Tensor) -> Tensor:
        """Return the logits [B, K] of the head alone. head: its slice [H] of some w. z: features [B, D]."""
        return self.logits_from(head, z, 1)

    def activations_below(self, w: Tensor, x: Tensor, top: int) -> Tensor:
        """Return the activations [B, ...] below the `top` topmost blocks. w: [P], or its part below. x: [B, ...]."""
        last = len(self.blocks) - top
        return self._forward(self._pieces(w, 0, last), x, 0, last) if last else x

    def logits_from(self, part: Tensor, a: Tensor, top: int) -> Tensor:
        """Return the logits [B, K] of the `top` topmost blocks alone.

        part: the parameters of these blocks. a: the activations below them.
        """
        first = len(self.blocks) - top
        return self._forward(self._pieces(part, first, None), a, first, None)

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch in a training pass, a scalar."""
        return cross_entropy(self._noisy(self._pieces(w, 0, None), batch), batch)

    def batch_features(self, w: Tensor, batch: Batch) -> Tensor:
        """Return the features [B, D] of a batch that the head sees, without dropout. w: [P], or the extractor alone."""
        return self.batch_below(w, batch, 1).x

    def batch_below(self, w: Tensor, batch: Batch, top: int) -> Batch:
        """Return the batch as the `top` topmost blocks see it, without dropout.

        So these blocks can be trained alone while those below them run only once.
        """
        with context(mask=batch.mask):
            return batch._replace(x=self.activations_below(w, batch.x, top), key=None)

    # Gradients

    def grad(self, w: Tensor, batch: Batch, loss: Loss = cross_entropy, part: slice | None = None) -> Tensor:
        """Return the gradient of `loss` at w [P], or that of its `part` alone. Pure."""
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
        """Return the loss, a scalar, and its gradient [P], or [len(part)]. Pure.

        part: a slice of w that is made of whole parameters.
        top: w is the part of the `top` topmost blocks alone, and batch.x the activations below them.
        features: the loss is a function of (logits [B, K], features that the head sees [B, D], batch).
        The gradient of a private batch is clipped and noised (DP-SGD). Its loss is not, and must not leave the client.
        Raises ValueError if the part cuts through a parameter.
        """
        if batch.private is not None:
            return self._private(batch.private, w, batch, loss, part, top, features)
        first = 0 if top is None else len(self.blocks) - top
        plain = loss is cross_entropy and not features and self._is_plain(batch)
        if self.dense is not None and plain and first not in self.dense.starts_with_relu:
            if part is not None:
                self._names(part.start, part.stop)
            parameters_of = self.dense.parameters
            parameters = parameters_of(w, first) if first else self._views(w, parameters_of)
            return self.dense.value_and_grad(parameters, batch.x, batch.y, part, first)
        return self._joined(w, batch, loss, part, top, features)

    def grads(self, w: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the gradient by parameter name, as `views` returns w.

        Unless `is_joined`, this saves `grad`'s pass over P that joins the gradients.
        """
        if self.is_joined(batch):
            return self.views(self.grad(w, batch))
        return self._grads(w, batch, cross_entropy, None, None, False)[1]

    def is_joined(self, batch: Batch) -> bool:
        """Return whether `grad` computes one vector directly, rather than joining gradients by parameter."""
        private, written_out = batch.private is not None, self.dense is not None and self._is_plain(batch)
        return vmapped() or private or written_out

    def trained_features(self, w: Tensor, batch: Batch) -> Tensor:
        """Return the features [B, D] that the head sees in a training pass, with dropout. w: [P + Q].

        For losses that are given to `value_and_grad_of`.
        """
        with context(key=batch.key, mask=batch.mask), self._cast(batch.x):
            return self.activations_below(w, batch.x, 1).to(w.dtype)

    def value_and_grad_of(self, loss: Loss, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return loss(w, batch), a scalar, and its gradient in all of w [P + Q].

        The last Q numbers of w are the method's: so it can have layers of its own beside the model's. The method writes
        the loss as a training pass with `trained_features` and `classify`. Raises ValueError for a private batch, whose
        gradient this does not clip.
        """
        if batch.private is not None:
            raise ValueError("value_and_grad_of does not clip: a method that uses it must say dp_incompatible_reason")
        if vmapped():
            g, value = torch.func.grad_and_value(loss)(w, batch)
            return value, g
        free = w.detach().requires_grad_()
        with torch.enable_grad():
            value = loss(free, batch)
        return value.detach(), torch.autograd.grad(value, free, materialize_grads=True)[0]

    # Inside

    def _is_plain(self, batch: Batch) -> bool:
        """Return whether a batch is that of one client, without padding, at full precision."""
        return batch.mask is None and self.precision != "bf16" and not vmapped()

    def _joined(
        self, w: Tensor, batch: Batch, loss: Loss, part: slice | None, top: int | None, features: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and its gradient as one vector. Arguments as in value_and_grad."""
        result, grads = self._grads(w, batch, loss, part, top, features)
        return result, torch.cat([grad.reshape(-1) for grad in grads.values()]) if grads else w.new_zeros(0)

    def _grads(
        self, w: Tensor, batch: Batch, loss: Loss, part: slice | None, top: int | None, features: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its gradient by parameter name. Arguments as in value_and_grad."""
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
        # The part may be empty: a model that is only a head has no extractor.
        if not free:
            return value().detach(), {}
        if vmapped():
            grads, result = torch.func.grad_and_value(value, argnums=tuple(range(len(free))))(*free)
        else:
            free = free if whole else [piece.detach().requires_grad_() for piece in free]
            with torch.enable_grad():
                result = value(*free)
            # Zero where the loss does not depend on a parameter, as under torch.func.vmap
            grads = torch.autograd.grad(result, free, materialize_grads=True)
        return result.detach(), dict(zip(names, grads, strict=True))

    def _leaves(self, w: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name, as leaves of autograd's graph."""
        return {name: piece.detach().requires_grad_() for name, piece in self.views(w).items()}

    def _views(self, w: Tensor, make: Callable[[Tensor], Any]) -> Any:
        """Return make(w), cached for the last w: a local loop that writes into w gets the same views in each step."""
        if self._last is None or self._last[0] is not w or self._last[1] != make:
            self._last = w, make, make(w)
        return self._last[2]

    def _private(self, how: Private, w: Tensor, batch: Batch, *options: Any) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the private gradient (sum of clipped gradients + N(0, sigma^2 C^2 I)) / size.

        Abadi et al. 2016, Algorithm 1. how: clip, noise and size. options: the last ones of `_joined`.
        """

        def one(x: Tensor, y: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
            key = None if batch.key is None else random.fold(batch.key, number)
            with vmapping():
                return self._joined(w, Batch(x[None], y[None], None, None, key), *options)

        numbers = torch.arange(batch.y.shape[0], device=batch.y.device)
        losses, grads = torch.func.vmap(one)(batch.x, batch.y, numbers)
        counts = grads.isfinite().all(1)  # a gradient that is not finite cannot be clipped and is left out
        if batch.mask is not None:
            counts = counts & batch.mask
        grads = torch.where(counts[:, None], grads, 0)
        scale = torch.where(counts, (how.clip / grads.norm(dim=1)).clamp(max=1), 0)
        total = scale @ grads
        if how.noise:
            key = random.fold(how.key, len(how.gradients))
            total = total + how.noise * how.clip * random.normal(key, total.shape).to(total.dtype)
        how.gradients.append(None)
        return mean_over(losses, batch), total / how.size

    def _names(self, start: int, stop: int) -> list[str]:
        """Return the names of the parameters within w[start:stop]. Raises ValueError if it cuts through one."""
        if (start, stop) in self._parts:
            return self._parts[start, stop]
        inside = [name for name, where in self._where.items() if start <= where.start and where.stop <= stop]
        if sum(self._where[name].stop - self._where[name].start for name in inside) != stop - start:
            raise ValueError(f"w[{start}:{stop}] cuts through a parameter: a part is made of whole ones")
        self._parts[start, stop] = inside
        return inside

    def _pieces(self, part: Tensor, first: int, last: int | None) -> dict[str, Tensor]:
        """Return views by parameter name of a flat part that holds the blocks [first, last)."""
        offset = self.blocks[first].start
        return {
            name: part[where.start - offset : where.stop - offset].view(shape)
            for entries in self._layout[first:last]
            for name, where, shape in entries
        }

    def _forward(self, pieces: dict[str, Tensor], x: Tensor, first: int, last: int | None) -> Tensor:
        """Return the output of the blocks [first, last) with these parameters, by name, on x.

        This is torch.func.functional_call without its checks, which take a tenth of a small model's step.
        """
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
        """Return the logits of a training pass: dropout draws from the batch's key, batch norm reads its mask."""
        with context(key=batch.key, mask=batch.mask), self._cast(batch.x):
            return self._forward(pieces, batch.x, first, None).to(_dtype(pieces))

    def _noisy_with_features(self, pieces: dict[str, Tensor], batch: Batch, first: int) -> tuple[Tensor, Tensor]:
        """Return the logits [B, K] of a training pass, and the features [B, D] that the head sees in it."""
        last = len(self.blocks) - 1
        head = {name for name, _, _ in self._layout[last]}
        with context(key=batch.key, mask=batch.mask), self._cast(batch.x):
            lower = {name: piece for name, piece in pieces.items() if name not in head}
            z = self._forward(lower, batch.x, first, last) if last > first else batch.x
            out = self._forward({name: piece for name, piece in pieces.items() if name in head}, z, last, None)
            return out.to(_dtype(pieces)), z.to(_dtype(pieces))

    def _cast(self, x: Tensor) -> AbstractContextManager[Any]:
        """Return the context of a training pass: autocast to bfloat16 with precision "bf16"."""
        return torch.autocast(x.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()


def _dtype(pieces: dict[str, Tensor]) -> torch.dtype:
    return next(iter(pieces.values())).dtype
