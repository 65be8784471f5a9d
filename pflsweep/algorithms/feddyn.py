"""FedDyn: a regulariser that changes every round makes the clients' optima agree with the global one."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [P] theta, the global model
    h: Tensor  # [P] the mean of all clients' g
    clients: int  # m


class Client(NamedTuple):
    g: Tensor  # [P] grad L_k(theta_k) of its last turn, by the optimality condition


@dataclass(frozen=True, kw_only=True)
class FedDyn(Method):
    """Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization.
    ICLR 2021. https://arxiv.org/abs/2111.04263 (Algorithm 1)

    Both sums over the cohort are unweighted, as in the paper, whatever the run's aggregation weights. In round 1
    clients train like FedProx's with mu = alpha. Where we or the authors' code differ:
    - the local problem is not solved exactly but by E epochs of SGD, as in the code;
    - alpha is the same for all; the code scales it by each client's share of the data;
    - the code clips gradients at a norm of 10 and also evaluates the plain mean of the clients' models.
    """

    paper = "Acar et al., ICLR 2021"
    unsampled_model = "the global model"
    cost = "a step reads the received model and the client's gradient (2P); a client keeps P"
    dp_incompatible_reason = ""

    alpha: float = hyper("strength of the dynamic regulariser", above=0)

    send = stock.broadcast
    start = stock.start_from_down
    fit = stock.local_epochs
    personal = stock.personal_is_global
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, torch.zeros_like(w), setup.clients)

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(torch.zeros_like(w))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on L_k(w) - <g_k, w> + alpha/2 |w - theta|^2."""
        g = self.task.grad(work.w, batch).sub_(given.client.g)
        g = stock.proximal_gradient(g, self.alpha, work.w, given.down.w)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, Client]:
        """g_k <- g_k - alpha (theta_k - theta), which is the gradient if the local problem is solved exactly."""
        return stock.Up(work.w), Client(given.client.g - self.alpha * (work.w - given.down.w))

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        """h <- h - alpha/m sum_S (theta_k - theta); theta <- mean_S theta_k - h / alpha."""
        h = server.h - self.alpha / server.clients * (up.w - server.w).sum(0)
        return server._replace(w=up.w.mean(0) - h / self.alpha, h=h)
