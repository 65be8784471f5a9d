"""SCAFFOLD: control variates correct the drift of local steps."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client
from pflsweep.util.errors import UserError


class Server(NamedTuple):
    w: Tensor  # [P] x, the global model
    c: Tensor  # [P] the mean of all clients' c_i
    clients: int  # N


class Client(NamedTuple):
    c: Tensor  # [P] c_i, the estimate of this client's gradient


class Down(NamedTuple):
    w: Vector  # [C, P]
    c: Vector  # [C, P]


class Work(NamedTuple):
    w: Tensor  # [C, P] y_i
    opt: Tensor  # [C, 0]
    steps: Tensor  # [C] taken so far; K at the end


class Up(NamedTuple):
    w: Vector  # [C, P] y_i
    delta: Vector  # [C, P] c_i^+ - c_i


@dataclass(frozen=True, kw_only=True)
class Scaffold(Method):
    """Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning. ICML 2020. https://arxiv.org/abs/1910.06378 (Algorithm 1, option II of line 12)

    Both means over the cohort are unweighted, as in the paper, whatever the run's aggregation weights: in
    round 1 it is FedAvg with uniform weights. Where we differ:
    - K is the number of steps that a client actually takes in its E epochs (the paper: the same for all);
    - clients send y_i (the paper: y_i - x);
    - momentum and weight decay are refused, since line 12 computes a gradient from the distance covered.
    """

    paper = "Karimireddy et al., ICML 2020"
    unsampled_model = "the global model"
    cost = "a step reads two control variates (2P); a client keeps P; twice the model is sent in each direction"
    dp_incompatible_reason = ""  # c_i follows from the model sent

    global_lr: float = hyper("the server's step on the mean update (eta_g)", low=0)

    fit = stock.local_epochs
    personal = stock.personal_is_global
    global_model = stock.shared_model

    def __post_init__(self) -> None:
        for name, value in (("momentum", self.opt.momentum), ("weight_decay", self.opt.weight_decay)):
            if value:
                raise UserError(
                    f"train.{name} is {value}: SCAFFOLD's control variates are defined for plain SGD. "
                    f"Use train.{name}=0."
                )

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, torch.zeros_like(w), setup.clients)

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(torch.zeros_like(w))

    def send(self, server: Server, turn: Turn) -> Down:
        return Down(stock.to_all(server.w, turn), stock.to_all(server.c, turn))

    def start(self, given: Given, data: Any) -> Work:
        w = given.down.w
        return Work(w, self.opt.init(w), w.new_zeros(len(w)))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """y_i <- y_i - eta_l (g_i(y_i) - c_i + c) (line 10)."""
        g = self.task.grad(work.w, batch).sub_(given.client.c).add_(given.down.c)
        return Work(*self.opt.update(work.w, work.opt, g, given.turn.lr), work.steps + 1)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, Client]:
        """c_i^+ = c_i - c + (x - y_i) / (K eta_l) (line 12, option II)."""
        covered = (given.down.w - work.w) / (work.steps * given.turn.lr)[:, None]
        delta = covered - given.down.c
        return Up(work.w, delta), Client(given.client.c + delta)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """x += eta_g / |S| sum_S (y_i - x); c += 1 / N sum_S (c_i^+ - c_i) (lines 16 and 17)."""
        w = server.w + self.global_lr * (up.w.mean(0) - server.w)
        return server._replace(w=w, c=server.c + up.delta.sum(0) / server.clients)
