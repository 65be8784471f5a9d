"""Poisson-sampled batches for DP-SGD."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.chunk import NONE, Chunk, Tally
from pflsweep.methods.task import Batch, Private
from pflsweep.ops import random
from pflsweep.util.errors import UserError

# Separates the noise of a step from its dropout.
NOISE = 1 << 40


class Poisson:
    """The training data of a chunk of clients under DP-SGD: a method sees private batches only.

    A batch has each of a client's n samples with probability rate = min(1, B / n), independently, and may be empty. An
    epoch has ceil(n / B) batches, as in opacus' loader. Gradients are divided by the expected size, min(B, n). Held-out
    data (FedFomo's validation data) are not trained on and stay as they are.
    """

    def __init__(self, data: Any, chunk: Chunk, tally: Tally, clip: float, noise: float) -> None:
        """data: the ClientData of this chunk, whose type cannot be named here since loader.py imports this module."""
        self._data, self._chunk, self._tally, self._clip, self._noise = data, chunk, tally, clip, noise

    def train(self, epochs: int, stream: str = "epochs") -> Iterator[Batch]:
        """Return private batches as ClientData.train does, but draw anew in each call.

        So a method that reads the data twice spends its privacy budget twice.
        """
        stream = f"{stream}/poisson/{next(self._tally.passes)}"
        orders = [self._sampled(c, epochs, stream) for c in range(len(self._chunk))]
        self._tally.samples += [sum(map(len, order)) for order in orders]
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
        own, batch, steps = self._chunk.rows["train"][c], self._chunk.batch, self._chunk.batching.steps
        orders = []
        for epoch in range(epochs):
            generator = self._chunk.generator(c, stream, epoch)
            counts = generator.binomial(len(own), min(1, batch / max(1, len(own))), steps or -(-len(own) // batch))
            orders += [generator.choice(own, count, replace=False, shuffle=False) for count in counts]
        return orders

    def _batches(self, orders: list[list[np.ndarray]], stream: str) -> Iterator[Batch]:
        chunk, federation = self._chunk, self._chunk.federation
        n = torch.tensor([max(1, len(own)) for own in chunk.rows["train"]], dtype=torch.float64)
        size = n.clamp(max=chunk.batch)
        steps = range(max(map(len, orders), default=0))
        for step, key in zip(steps, chunk.keys(stream, steps, list(range(len(orders)))), strict=True):
            rows = [order[step] if step < len(order) else NONE for order in orders]
            if len(rows) == 1 and len(rows[0]):
                (batch,) = chunk.of_one(rows, key[None])
                live = torch.ones(1, dtype=torch.bool)
            else:
                live = torch.tensor([step < len(order) for order in orders])
                sizes = torch.tensor([len(own) for own in rows])
                index = torch.from_numpy(chunk.block(rows))
                batch = chunk.padded(*(each.to(federation.device) for each in (index, sizes, key, live)))
            looks: list[None] = []
            self._tally.private.append((live, size / n, looks))
            expected = size.to(federation.device, federation.dtype)
            yield batch._replace(private=Private(expected, random.fold(key, NOISE), self._clip, self._noise, looks))
