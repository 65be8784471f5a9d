"""APFL: a client predicts with a mixture of the global model and a private one, which is trained inside the mixture."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Client(NamedTuple):
    v: Tensor  # [P] v_i, the private model
    alpha: Tensor  # [] alpha_i, its weight in the mixture


class Work(NamedTuple):
    w: Tensor  # [C, P] w_i, the copy of the global model
    opt: Tensor  # [C, P] or [C, 0]
    v: Tensor  # [C, P]
    v_opt: Tensor  # [C, P] or [C, 0]
    alpha: Tensor  # [C]
    first: Tensor  # [C] whether the round's first step is still to come


@dataclass(frozen=True, kw_only=True)
class APFL(Method):
    """Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. arXiv 2020.
    https://arxiv.org/abs/2003.13461 (Algorithm 1)

    The global model is FedAvg's. With alpha = 0 all clients predict with it, with alpha = 1 the private models are
    Local's. Where the paper is silent or we differ:
    - models are averaged with the run's weights (the paper: a plain mean);
    - both gradients are taken before either model moves, and the run's momentum and weight decay act on w and on v
      each (the authors' code takes v's gradient after w's step, and mixes logits instead of models);
    - an adaptive alpha takes one step a round, on the first batch, as in the authors' code; 0.02 alpha, which the code
      adds to the gradient of alpha, is left out here;
    - v_i starts from the common initial model.
    """

    paper = "Deng et al., arXiv 2020"
    supports_per_client_lr = True
    unsampled_model = "the newest global model mixed with the common initial model"
    cost = "a step computes the mixture (3P) and a second gradient at it; a client keeps P + 1 numbers"
    dp_incompatible_reason = ""

    alpha: float = hyper("weight of the private model in the mixture; adaptive: its initial value", low=0, high=1)
    adaptive: bool = hyper("whether each client learns its alpha, by one step a round")

    init = stock.global_server
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.shared_model
    relative_gradients = classmethod(stock.two_gradients)

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w, w.new_tensor(self.alpha))

    def start(self, given: Given, data: Any) -> Work:
        w, client = given.down.w, given.client
        first = torch.ones(len(w), dtype=torch.bool, device=w.device)
        return Work(w, self.opt.init(w), client.v, self.opt.init(client.v), client.alpha, first)

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """w <- w - eta grad f(w) and v <- v - eta alpha grad f(v-bar)"""
        lr, alpha = given.turn.lr, work.alpha
        g, g_mix = self.task.grad(work.w, batch), self.task.grad(mixture(alpha, work.v, work.w), batch)
        if self.adaptive:
            # alpha <- alpha - eta <v - w, grad f(v-bar)>, in [0, 1]
            learnt = (alpha - lr * (work.v - work.w) @ g_mix).clamp(0, 1)
            alpha = torch.where(work.first, learnt, alpha)
        return Work(
            *self.opt.update(work.w, work.opt, g, lr),
            *self.opt.update(work.v, work.v_opt, work.alpha * g_mix, lr),
            alpha,
            torch.zeros_like(work.first),
        )

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, Client]:
        return stock.Up(work.w), Client(work.v, work.alpha)

    def personal(self, server: stock.Server, client: Client, data: Any, turn: Turn) -> Tensor:
        return mixture(client.alpha, client.v, stock.to_all(server.w, turn))


def mixture(alpha: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Return v-bar = alpha v + (1 - alpha) w, for one client or several."""
    alpha = alpha[..., None]
    return alpha * v + (1 - alpha) * w
