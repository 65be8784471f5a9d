"""Poisson-sampled batches for DP-SGD."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflsweep.data.chunk import NO_ROWS, Chunk, Tally
from pflsweep.methods.task import Batch, Private
from pflsweep.ops import random
from pflsweep.util.errors import UserError


class Poisson:
    """The training data of a chunk of clients under DP-SGD: a method sees private batches only.

    A batch has each of a client's n samples with probability rate = min(1, B / n), independently, and may be empty. An
    epoch has ceil(n / B) batches, as in opacus' loader, or train.steps where that is set; other values of
    train.shuffle and train.last_batch than their defaults are refused. Gradients are divided by the expected size,
    min(B, n). Held-out data (FedFomo's validation data) are not trained on and stay as they are.
    """

    def __init__(self, data: Any, chunk: Chunk, tally: Tally, clip: float, noise: float) -> None:
        """data: the ClientData of this chunk, whose type cannot be named here since loader.py imports this module."""
        self._data, self._chunk, self._tally, self._clip, self._noise = data, chunk, tally, clip, noise

    def train(self, epochs: int, stream: str = "epochs") -> Iterator[Batch]:
        """Return private batches as ClientData.train does, but draw anew in each call.

        So a method that reads the data twice spends its privacy budget twice, and one that reduces to another, such as
        Ditto with lam = 0 to Local, does so without DP-SGD alone.
        """
        stream = f"{stream}/poisson/{next(self._tally.poisson_passes)}"
        plans = [self._sampled(c, epochs, stream) for c in range(len(self._chunk))]
        self._tally.samples += [sum(map(len, plan)) for plan in plans]
        return self._batches(plans, stream)

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
        plans = []
        for epoch in range(epochs):
            generator = self._chunk.generator(c, stream, epoch)
            counts = generator.binomial(len(own), min(1, batch / max(1, len(own))), steps or -(-len(own) // batch))
            plans += [generator.choice(own, count, replace=False, shuffle=False) for count in counts]
        return plans

    def _batches(self, plans: list[list[np.ndarray]], stream: str) -> Iterator[Batch]:
        chunk, federation = self._chunk, self._chunk.federation
        n = torch.tensor([max(1, len(own)) for own in chunk.rows["train"]], dtype=torch.float64)
        size = n.clamp(max=chunk.batch)
        steps = range(max(map(len, plans), default=0))
        for step, key in zip(steps, chunk.keys(stream, steps, list(range(len(plans)))), strict=True):
            rows = [plan[step] if step < len(plan) else NO_ROWS for plan in plans]
            if len(rows) == 1 and len(rows[0]):
                (batch,) = chunk.of_one(rows, key[None])
                live = torch.ones(1, dtype=torch.bool)
            else:
                live = torch.tensor([step < len(plan) for plan in plans])
                sizes = torch.tensor([len(own) for own in rows])
                index = torch.from_numpy(chunk.block(rows))
                batch = chunk.padded(*(each.to(federation.device) for each in (index, sizes, key, live)))
            gradients: list[None] = []
            self._tally.private.append((live, size / n, gradients))
            expected = size.to(federation.device, federation.dtype)
            yield batch._replace(
                private=Private(expected, random.fold(key, random.DP_NOISE), self._clip, self._noise, gradients)
            )
