"""The explicit gradient of a dense model: the same matrix products as autograd's, without its graph.

A step of a small model is mostly overhead. This code makes a third of the calls and computes each parameter's gradient
in its place in the flat vector, so that gradients need not be joined afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pflsweep.models import layers
from pflsweep.ops import products

Parameters = list[tuple[Tensor, Tensor | None]]  # of each layer: weight [outputs, inputs] and bias [outputs]


class Layer(NamedTuple):
    """A linear layer, and whether ReLU follows it. Its weight begins at w[start], and its bias follows."""

    start: int
    outputs: int
    inputs: int
    bias: bool
    relu: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of entries of the weight and of the bias."""
        return self.outputs * self.inputs, self.outputs if self.bias else 0


@dataclass(frozen=True)
class DenseGradient:
    """The gradient of a batch's mean cross-entropy, for a model of linear layers and ReLU, without padding.

    layers: bottom to top. below: for each block the number of layers under it. starts_with_relu: blocks that begin with
    a ReLU. It belongs to the layer below, so that the layers from such a block on do not compute what the block does.
    """

    layers: tuple[Layer, ...]
    below: tuple[int, ...]
    starts_with_relu: frozenset[int] = frozenset()

    @classmethod
    def of(cls, model: nn.Sequential) -> "DenseGradient | None":
        """Return the gradient of a model; None if it has other layers than Linear, ReLU and a Flatten at its start, or
        hooks, which run where a layer is called.
        """
        if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
            return None
        found: list[Layer] = []
        below, size = [], 0
        starts_with_relu: set[int] = set()
        for number, block in enumerate(model):
            below.append(len(found))
            for module in _modules(block):
                if type(module) is nn.Linear or type(module) is layers.Linear:
                    bias = module.bias is not None
                    found.append(Layer(size, module.out_features, module.in_features, bias, relu=False))
                    size += sum(found[-1].sizes)
                elif type(module) is nn.ReLU and found:
                    found[-1] = found[-1]._replace(relu=True)
                    if len(found) == below[-1]:
                        starts_with_relu.add(number)
                elif not (type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1) and not found):
                    return None
        return cls(tuple(found), tuple(below), frozenset(starts_with_relu))

    def parameters(self, w: Tensor, first: int = 0) -> Parameters:
        """Return the parameters of each layer as views of w, which has those from block `first` on."""
        chain = self.layers[self.below[first] :]
        pieces = iter(w.split([size for layer in chain for size in layer.sizes]))
        return [
            (weight.view(own.outputs, own.inputs), bias if own.bias else None)
            for own, weight, bias in zip(chain, pieces, pieces, strict=True)
        ]

    def logits(self, parameters: Parameters, x: Tensor) -> Tensor:
        """Return the logits [B, K] on x [B, ...]."""
        return _forward(self.layers, parameters, x)[-1]

    def value_and_grad(
        self, parameters: Parameters, x: Tensor, y: Tensor, part: slice | None = None, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy, a scalar, and its gradient [len(part)], or of all parameters.

        parameters: from block `first` on, which is none of `starts_with_relu`. x [B, ...]: what that block sees.
        y [B]: labels. part: a slice of the whole model's w, made of whole parameters.
        """
        chain = self.layers[self.below[first] :]
        seen = _forward(chain, parameters, x)
        logp = F.log_softmax(seen[-1], 1)
        loss = F.nll_loss(logp, y)
        offset, size = chain[0].start, chain[-1].start + sum(chain[-1].sizes) - chain[0].start
        start, stop = (0, size) if part is None else (part.start - offset, part.stop - offset)
        lowest = max((k for k, own in enumerate(chain) if own.start - offset <= start), default=0)
        grad = logp.new_empty(size)  # of all parameters; what is outside the part is not filled
        grads = self.parameters(grad, first)
        for k, error in _errors(chain, parameters, seen, _less_one(logp.exp_(), y).div_(len(y)), lowest):
            weight, bias = grads[k]
            if chain[k].start - offset < stop:
                products.product(error.t(), seen[k], out=weight)
                if bias is not None:
                    torch.sum(error, 0, out=bias)
        return loss, grad[start:stop]


def _forward(chain: Sequence[Layer], parameters: Parameters, x: Tensor) -> list[Tensor]:
    """Return the input of each layer [B, inputs], and last the logits [B, K]."""
    seen = [x.flatten(1)]
    for own, (weight, bias) in zip(chain, parameters, strict=True):
        a = products.linear(seen[-1], weight, bias)
        seen.append(a.relu_() if own.relu else a)
    return seen


def _less_one(p: Tensor, y: Tensor) -> Tensor:
    """Return p [B, K] minus 1 at each label y [B], in place.

    For p the softmax this is B times the gradient of the mean cross-entropy at the logits.
    """
    return p.scatter_add_(1, y.unsqueeze(1), p.new_full((len(y), 1), -1))


def _errors(
    chain: Sequence[Layer], parameters: Parameters, seen: list[Tensor], error: Tensor, lowest: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield each layer's number and the loss's gradient at its outputs [B, outputs], down to the layer `lowest`.

    error: the gradient at the logits [B, K].
    """
    for k in reversed(range(lowest, len(chain))):
        if chain[k].relu:
            error = torch.ops.aten.threshold_backward(error, seen[k + 1], 0)
        yield k, error
        if k > lowest:
            error = products.product(error, parameters[k][0])


def _modules(block: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of a block in the order in which it applies them."""
    if type(block) is nn.Sequential:
        for module in block:
            yield from _modules(module)
    else:
        yield block
