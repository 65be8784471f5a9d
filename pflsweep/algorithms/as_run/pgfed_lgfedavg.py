"""LG-FedAvg as PGFed's authors run it: for each batch a step of the body, then one of the head."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.algorithms.lgfedavg import Client, LGFedAvg
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P]
    body_opt: Tensor  # [C, P - D] or [C, 0]
    head_opt: Tensor  # [C, D] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class PgfedLGFedAvg(LGFedAvg):
    """LG-FedAvg (Liang et al., NeurIPS 2019 workshop) in pgfed b1d70f7, the code of PGFed's authors.

    Body and head do not move together: the head's gradient is from a second pass of the batch, after the body's step.
    With the PyTorch that the code requires (1.4) the frozen half may still move by its momentum; here it does not.
    """

    paper = "Liang et al., NeurIPS 2019 workshop, as PGFed's authors run it"
    dp_incompatible_reason = ""
    cost = "a step computes two gradients, of the body and of the head; a client keeps its lower layers"

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        # A head's gradient is little more than a forward pass
        return 4 / 3

    def start(self, given: Given, data: Any) -> Work:  # type: ignore[override]
        body, head = given.client.body, given.down.w
        return Work(torch.cat([body, head], 1), self.opt.init(body), self.opt.init(head))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        lr, w = given.turn.lr, work.w
        w, body_opt = self.opt.update(w, work.body_opt, self.task.grad(w, batch, part=self.body), lr, self.body)
        w, head_opt = self.opt.update(w, work.head_opt, self.task.grad(w, batch, part=self.shared), lr, self.shared)
        return Work(w, body_opt, head_opt)

    def finish(  # type: ignore[override]
        self, given: Given, data: Any, work: Work
    ) -> tuple[stock.Up, Client]:
        return stock.Up(work.w[:, self.shared]), Client(work.w[:, self.body])
