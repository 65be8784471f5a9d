"""PGFed, PGFedMo and PGFed-CE: each client minimises its own weighted sum of all clients' risks."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [P] theta_glob
    a: Tensor  # [N, N] A, row i is alpha_i
    last: Tensor  # [M] S_{t-1}; M = 0 in the first round
    grads: Tensor  # [M, P] grad f_j(theta_j), j in S_{t-1}
    g1: Tensor  # [M] mu (f_j(theta_j) - grad_j^T theta_j), the first part of eq. 11


class Down(NamedTuple):
    w: Vector  # [C, P]
    aux: Vector  # [C, P] mu sum_j alpha_ij grad_j (eq. 13); [C, 0] in the first round
    mean: Vector  # [C, P] mu / M sum_j grad_j (g-bar, eq. 14); [C, 0] in the first round and for CE
    g1: Scalars  # [C, M] the constant part of alpha's gradient
    alpha: Scalars  # [C, M] alpha_ij, j in S_{t-1}


class Client(NamedTuple):
    w: Tensor  # [P] theta_i, trained in the client's last turn
    aux: Tensor  # [P] PGFedMo's g-tilde_i; [0] without momentum
    carried: Tensor  # [] whether aux has a value yet


class Work(NamedTuple):
    w: Tensor  # [P]
    opt: Tensor
    aux: Tensor  # [P] the auxiliary gradient of this round
    alpha: Tensor  # [M]


class Up(NamedTuple):
    w: Vector  # [C, P]
    grad: Vector  # [C, P]
    g1: Scalars  # [C]
    alpha: Scalars  # [C, M]


@dataclass(frozen=True, kw_only=True)
class PGFed(Method):
    """Luo, Mendieta, Chen, Wu: PGFed: Personalize Each Client's Global Objective for Federated Learning. ICCV 2023.
    https://arxiv.org/abs/2212.01448 (Algorithm 1)

    beta > 0 is PGFedMo; estimate = "ce" is PGFed-CE, which estimates the others' risks at theta_glob and so need not
    send g-bar. mu = 0 is FedAvg. Where the paper is silent or the authors' code differs:
    - f_i is a mean over the client's data, as in the code, to which mu's grid fits (eq. 2 has a sum);
    - alpha_ij >= 0 is ensured by clipping after every step, as in the code; `clipped` logs the share of zeros;
    - the paper does not state alpha's learning rate;
    - alpha begins at 1 / M with M clients of a cohort, also where all clients train in round 1 (train.first_round=all);
    - PGFedMo's first auxiliary gradient is g-tilde itself;
    - aggregation weights sum to 1 over the cohort (the paper divides by the data of all clients);
    - alpha steps after the model, with the w that the step has reached; in the code it steps before;
    - f_i and its gradient are of all rows, without dropout; in the code of a training pass without its last batch;
    - the code keeps the momentum buffer over rounds: train.optimiser_state=kept.
    """

    paper = "Luo et al., ICCV 2023"
    unsampled_model = "the common initial model"
    cost = (
        "one more pass over the data for the risk's gradient (1 / E of the training); a step reads two vectors "
        "(2P; CE: P) for the gradient and alpha; a client keeps P (Mo: 2P)"
    )
    dp_incompatible_reason = "it sends the gradient and the risk of all local data"

    mu: float = hyper("weight of the auxiliary risk", low=0)
    alpha_lr: float = hyper("learning rate of alpha (eta_2)", low=0)
    beta: float = hyper("momentum of the auxiliary gradient (PGFedMo)", low=0, high=1)
    estimate: str = hyper("where the others' risks are estimated: theta_i, or theta_glob", choices=("full", "ce"))

    fit = stock.local_epochs
    personal = stock.personal_is_own
    global_model = stock.shared_model

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        return 1 + 1 / epochs

    def init(self, w: Tensor, setup: Setup) -> Server:
        a = w.new_full((setup.clients, setup.clients), 1 / setup.cohort)
        return Server(w, a, torch.zeros(0, dtype=torch.int64, device=w.device), w.new_zeros(0, len(w)), w.new_zeros(0))

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(
            w, torch.zeros_like(w) if self.beta else w.new_zeros(0), torch.zeros((), dtype=torch.bool, device=w.device)
        )

    def send(self, server: Server, turn: Turn) -> Down:
        """Send the cohort's estimates of all risks (Algorithm 1, server, lines 4 to 8)."""
        alpha = server.a[turn.ids][:, server.last]
        g1, nothing = server.g1, server.w.new_zeros(0)
        if not len(server.last):
            empty = stock.to_all(nothing, turn)
            return Down(stock.to_all(server.w, turn), empty, empty, empty, alpha)
        mean = self.mu * server.grads.mean(0)
        if self.estimate == "ce":
            # g1_j + mu grad_j^T theta_glob is the same for all clients
            g1, mean = g1 + self.mu * server.grads @ server.w, nothing
        return Down(
            stock.to_all(server.w, turn),
            self.mu * alpha @ server.grads,
            stock.to_all(mean, turn),
            stock.to_all(g1, turn),
            alpha,
        )

    def start(self, given: Given, data: Any) -> Work:
        down, client = given.down, given.client
        aux = down.aux
        if self.beta and aux.shape[1]:  # eq. 15
            mixed = (1 - self.beta) * aux + self.beta * client.aux
            aux = torch.where(client.carried[:, None], mixed, aux)
        return Work(down.w, self.opt.init(down.w), aux, down.alpha)

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        g = self.task.grad(work.w, batch)
        if work.aux.shape[0]:  # not the first round
            g.add_(work.aux)  # eq. 10
        w, opt = self.opt.update(work.w, work.opt, g, given.turn.lr)
        slope = given.down.g1  # eqs. 11 and 12
        if given.down.mean.shape[0]:
            slope = slope + given.down.mean @ w
        return Work(w, opt, work.aux, (work.alpha - self.alpha_lr * slope).clamp(min=0))

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, Client]:
        """Upload the risk on all local data, linearised at the trained model (eq. 7; client, last lines)."""
        risk, grad = data.mean(self.risk, work.w)
        g1 = self.mu * (risk - (grad * work.w).sum(1))
        aux, carried = given.client.aux, given.client.carried
        if self.beta and work.aux.shape[1]:
            aux, carried = work.aux, torch.ones_like(carried)
        return Up(work.w, grad, g1, work.alpha), Client(work.w, aux, carried)

    @per_client
    def risk(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.task.value_and_grad(w, batch)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        a = server.a.clone()
        a[turn.ids[:, None], server.last] = up.alpha
        return Server(turn.share @ up.w, a, turn.ids, up.grad, up.g1)

    def show(self, server: Server) -> dict[str, Tensor]:
        return {"A": server.a, "clipped": (server.a == 0).to(server.a.dtype).mean()}
