"""Poisson-sampled batches for DP-SGD."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflsweep.methods.task import Batch, Private
from pflsweep.ops import random
from pflsweep.util.errors import UserError

# Separates the noise of a step from its dropout.
NOISE = 1 << 40
# The rows of a client without a batch.
NONE = np.zeros(0, dtype=np.int64)


class Poisson:
    """The training data of a chunk of clients under DP-SGD: a method sees private batches only.

    A batch has each of a client's n samples with probability rate = min(1, B / n), independently, and may be empty. An
    epoch has ceil(n / B) batches, as in opacus' loader. Gradients are divided by the expected size, min(B, n). Held-out
    data (FedFomo's validation data) are not trained on and stay as they are.
    """

    def __init__(self, data: Any, clip: float, noise: float) -> None:
        """data: the ClientData, whose type cannot be named here since loader.py imports this module."""
        self._data, self._clip, self._noise = data, clip, noise

    def train(self, epochs: int, stream: str = "epochs") -> Iterator[Batch]:
        """Return private batches as ClientData.train does, but draw anew in each call.

        So a method that reads the data twice spends its privacy budget twice.
        """
        data, stream = self._data, f"{stream}/poisson/{next(self._data._passes)}"
        orders = [self._sampled(c, epochs, stream) for c in range(len(data._members))]
        data._served += [sum(map(len, order)) for order in orders]
        return self._batches(orders, stream)

    @property
    def sizes(self) -> Tensor:
        return self._data.sizes

    def holdout(self, fraction: float) -> tuple["Poisson", Any]:
        rest, held = self._data.holdout(fraction)
        return rest.poisson(self._clip, self._noise), held

    def __getattr__(self, name: str) -> Any:
        raise UserError(
            f"privacy: the method reads its training data by data.{name}, which DP-SGD does not cover. It covers the "
            "mini-batches of data.train, one at a time."
        )

    def _sampled(self, c: int, epochs: int, stream: str) -> list[np.ndarray]:
        own, batch, steps = self._data._rows["train"][c], self._data._batch, self._data._batching.steps
        orders = []
        for epoch in range(epochs):
            generator = self._data._generator(c, stream, epoch)
            counts = generator.binomial(len(own), min(1, batch / max(1, len(own))), steps or -(-len(own) // batch))
            orders += [generator.choice(own, count, replace=False, shuffle=False) for count in counts]
        return orders

    def _batches(self, orders: list[list[np.ndarray]], stream: str) -> Iterator[Batch]:
        data, device = self._data, self._data._federation.device
        n = torch.tensor([max(1, len(own)) for own in data._rows["train"]], dtype=torch.float64)
        size = n.clamp(max=data._batch)
        steps = range(max(map(len, orders), default=0))
        for step, key in zip(steps, data._keys(stream, steps, list(range(len(orders)))), strict=True):
            rows = [order[step] if step < len(order) else NONE for order in orders]
            if len(rows) == 1 and len(rows[0]):
                (batch,) = data._of_one(rows, key[None])
                live = torch.ones(1, dtype=torch.bool)
            else:
                live = torch.tensor([step < len(order) for order in orders])
                sizes = torch.tensor([len(own) for own in rows])
                index = torch.from_numpy(data._block(rows))
                batch = data._padded(index.to(device), sizes.to(device), key, live.to(device))
            looks: list[None] = []
            data._private.append((live, size / n, looks))
            expected = size.to(device, data._federation.dtype)
            yield batch._replace(private=Private(expected, random.fold(key, NOISE), self._clip, self._noise, looks))
