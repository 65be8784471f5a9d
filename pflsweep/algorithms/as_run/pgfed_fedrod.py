"""FedRoD as PGFed's authors run it: class priors are counted in one pass, which drops the last batch."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pflsweep.algorithms.fedrod import FedRoD, Work
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Setup, Turn
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Client(NamedTuple):
    head: Tensor  # [H] h_i^p
    counts: Tensor  # [K] rows of each class in the pass; 0 before the client's first turn


@dataclass(frozen=True, kw_only=True)
class PgfedFedRoD(FedRoD):
    """FedRoD (Chen and Chao, ICLR 2022) in pgfed b1d70f7, the code of PGFed's authors.

    A client counts its classes once, in a shuffled pass over its batches: with train.last_batch=drop the rows of the
    partial last batch do not count. A class that is missed gets the smallest positive prior; the code has 0, with which
    the loss is infinite, but the gradient is the same.
    """

    paper = "Chen and Chao, ICLR 2022, as PGFed's authors run it"

    def init_client(self, w: Tensor, setup: Setup) -> Client:  # type: ignore[override]
        return Client(super().init_client(w, setup).head, w.new_zeros(setup.classes))

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        return stock.local_epochs(self, given._replace(class_counts=self.counts(given, data)), data, work)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, Client]:  # type: ignore[override]
        return stock.Up(work.w), Client(work.head, self.counts(given, data))

    def counts(self, given: Given, data: Any) -> Tensor:
        """Return the class counts [C, K] of the first turn's pass; `fit` and `finish` both need them."""
        first, known = given.turn.last < 0, given.client.counts
        if not first.any():
            return known
        seen = stock.run(self.count, given.turn, torch.zeros_like(known), data.rating("priors", drop=True))
        return torch.where(first[:, None], seen, known)

    @per_client
    def count(self, turn: Turn, counts: Tensor, batch: Batch) -> Tensor:
        rows = one_hot(batch.y, self.task.classes).to(counts.dtype)
        return counts + (rows.sum(0) if batch.mask is None else batch.mask.to(counts.dtype) @ rows)
