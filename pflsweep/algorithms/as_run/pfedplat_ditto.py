"""Ditto as FedPG's platform runs it: one model, which takes two steps a batch along the same gradient."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [P] the global model
    clients: Tensor  # [] N


@dataclass(frozen=True, kw_only=True)
class PfedplatDitto(Method):
    """Ditto (Li et al., ICML 2021) in pfedplat bce4bd1, the public platform of FedPG's authors.

    Where it differs from the paper:
    - a client has one model, which is its personal one and is sent. Each batch moves it twice with the gradient from
      before: w <- w - lr g, then w <- w - lr (g + lam (w - w^t));
    - the server moves by one client after the other, in the cohort's order: w^t <- w^t + (w_i - w^t) / N, so that a
      round goes 9.6% of the way with 10 of 100 clients and 63% with all of them;
    - the second step has the learning rate of the client (train.lr_of=last_turn: that of the round after its last
      turn), the first that of the round.
    """

    paper = "Li et al., ICML 2021, as FedPG's platform runs it"
    supports_per_client_lr = True
    unsampled_model = "the common initial model"
    cost = "a second step along the same gradient reads the received model (2P); a client keeps P"
    dp_incompatible_reason = ""

    lam: float = hyper("strength of the pull towards the global model (lambda)", low=0)

    init_client = stock.own_model
    send = stock.broadcast
    start = stock.start_from_down
    fit = stock.local_epochs
    finish = stock.upload_and_keep
    personal = stock.personal_is_own
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, torch.tensor(setup.clients, device=w.device))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        lr, g = given.turn.lr, self.task.grad(work.w, batch)
        w, opt = self.opt.update(work.w, work.opt, g, given.turn.round_lr)
        return stock.Work(*self.opt.update(w, opt, stock.proximal_gradient(g, self.lam, w, given.down.w), lr))

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        w = server.w
        for trained in up.w:
            w = w + (trained - w) / server.clients
        return server._replace(w=w)
