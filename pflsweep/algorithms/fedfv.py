"""FedFV: the server projects conflicts out of the clients' updates before it averages them."""

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.qp import gram


class Server(NamedTuple):
    w: Tensor  # [P] theta, the global model
    ids: Tensor  # [tau, M] the cohorts of the last tau rounds, oldest first; -1: no such round yet
    deltas: Tensor  # [tau, M, P] their updates


class Work(NamedTuple):
    w: Tensor  # [C, P]
    opt: Tensor  # [C, P] or [C, 0]
    loss: Tensor  # [C] f_i of the received model


class Up(NamedTuple):
    w: Vector  # [C, P]
    loss: Scalars  # [C]


@dataclass(frozen=True, kw_only=True)
class FedFV(Method):
    """Wang, Fan, Qi, Wen, Wang, Yu: Federated Learning with Fair Averaging. IJCAI 2021.
    https://arxiv.org/abs/2104.14937 (Algorithms 1 to 3)

    Internal conflicts are those among a cohort's updates Delta_i = theta - theta_i; external ones are with updates of
    clients that were last seen in the tau rounds before. Without conflicts it is FedAvg with uniform weights. What the
    paper leaves open, or where public code differs:
    - of M clients, the M - ceil((M - 1)(1 - alpha)) with the highest loss keep their update; none for alpha = 0 (as in
      FedLF's code); clients of equal loss are ordered by their keys;
    - external conflicts are looked for in the rounds t - k, k = tau, ..., 1; public code has k = tau - 1, ..., 0, which
      includes this round's own updates (`external=code`);
    - f_i is the mean loss over all local data, without dropout;
    - the personalised model is the client's own trained one (the paper has none).
    """

    paper = "Wang et al., IJCAI 2021"
    unsampled_model = "the newest global model"
    cost = (
        "a forward pass over the local data; the server computes inner products of M updates in float64 (M^2 P) and "
        "keeps the updates of tau rounds (tau M P)"
    )
    dp_incompatible_reason = "it sends the loss of the received model"

    alpha: float = hyper("share of the clients, those of highest loss, whose updates are kept", low=0, high=1)
    tau: int = hyper("rounds for which updates are remembered; 0: no external conflicts", low=0)
    external: str = hyper("rounds t - tau to t - 1, or t - tau + 1 to t (public code)", choices=("paper", "code"))

    init_client = stock.own_model
    send = stock.broadcast
    step = stock.sgd_step
    fit = stock.local_epochs
    loss = stock.loss
    personal = stock.personal_is_own_once_sampled
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        width = max(setup.cohort, setup.first_cohort)
        ids = torch.full((self.tau, width), -1, dtype=torch.int64, device=w.device)
        return Server(w, ids, w.new_zeros(self.tau, width, len(w)))

    def start(self, given: Given, data: Any) -> Work:
        w = given.down.w
        return Work(w, self.opt.init(w), data.mean(self.loss, w))

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, stock.Own]:
        return Up(work.w, work.loss), stock.Own(work.w)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """Mitigate both kinds of conflicts, and scale the step to the length of the mean update (Algorithm 1)."""
        now = server.w - up.w
        # A first round of all clients makes the memory wider than later cohorts
        rest = server.ids.shape[1] - len(now)
        ids = torch.cat([server.ids, F.pad(turn.ids, (0, rest), value=-1)[None]])
        deltas = torch.cat([server.deltas, F.pad(now, (0, 0, 0, rest))[None]])
        g = self.without_internal(now, up.loss, turn.key)
        if turn.round > self.tau:
            g = self.without_external(g, ids, deltas)
        length = g.norm()
        g = g * (now.mean(0).norm() / torch.where(length > 0, length, 1))
        return Server(server.w - g, ids[1:], deltas[1:])

    def without_internal(self, deltas: Tensor, loss: Tensor, key: Tensor) -> Tensor:
        """Project each update off those it conflicts with, in ascending order of loss; return the mean (Algorithm 2).

        Row i of c has the coefficients of the i-th update in terms of the original ones, so that inner products are all
        that is needed.
        """
        m = len(deltas)
        order = key.argsort()
        order = order[loss[order].argsort(stable=True)]
        kept = torch.zeros(m, dtype=torch.bool, device=deltas.device)
        if self.alpha:
            kept[order[ceil((m - 1) * (1 - self.alpha) - 1e-9) :]] = True
        products = gram(deltas)
        c = torch.eye(m, dtype=products.dtype, device=products.device)
        for j in order:
            inner = c @ products[:, j]
            conflict = (inner < 0) & ~kept
            conflict[j] = False
            c[:, j] -= torch.where(conflict, inner / products[j, j], 0)
        return c.mean(0).to(deltas.dtype) @ deltas

    def without_external(self, g: Tensor, ids: Tensor, deltas: Tensor) -> Tensor:
        """Project g off the sum of a round's updates that it conflicts with, oldest round first (Algorithm 3).

        ids [tau + 1, M], deltas [tau + 1, M, P]: of the last rounds, this one last. A client counts in the round in
        which it was last seen.
        """
        first = 0 if self.external == "paper" else 1
        for k in range(first, first + self.tau):
            latest = ~torch.isin(ids[k], ids[k + 1 :])
            against = latest & (deltas[k] @ g < 0)
            total = against.to(g.dtype) @ deltas[k]
            inner = (g @ total).clamp(max=0)
            square = total @ total
            g = g - inner / torch.where(square > 0, square, 1) * total
        return g
