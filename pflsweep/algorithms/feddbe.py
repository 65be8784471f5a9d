"""FedDBE: each client learns an offset to the features, and the mean of the features is held near a common value."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch, cross_entropy, mean_over
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [P] the global model
    consensus: Tensor  # [D] z-bar^g, from round 1 on


class Client(NamedTuple):
    bias: Tensor  # [D] z-bar_i^p, the personalised representation bias memory (PRBM)


class Down(NamedTuple):
    w: Vector  # [C, P]
    consensus: Vector  # [C, D]


class Work(NamedTuple):
    w: Tensor  # [C, P + D] the model and the PRBM, which are trained together
    opt: Tensor  # [C, P + D] or [C, 0]
    mean: Tensor  # [C, D] z-bar_i^g, the moving mean of the features


class Up(NamedTuple):
    w: Vector  # [C, P]
    mean: Vector | None  # [C, D] z-bar_i^g in round 1


@dataclass(frozen=True, kw_only=True)
class FedDBE(Method):
    """Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in Representation
    Space. NeurIPS 2023. https://arxiv.org/abs/2311.14975 (FedAvg + DBE)

    Round 1 is FedAvg, and determines the consensus. Where we or the authors' code differ:
    - the consensus is the mean over the first round's cohort, whose models are kept; the paper trains all clients
      before round 1, and the code drops their models;
    - MR is the mean squared error of the two means (code: half of it);
    - the moving mean starts from 0 in each turn, as in the code, and stores features without dropout;
    - the run's momentum and weight decay act on the PRBM too (code: plain SGD).
    """

    paper = "Zhang et al., NeurIPS 2023"
    unsampled_model = "the newest global model"
    cost = "a step adds a forward pass for the moving mean; D numbers are sent to a client, which keeps D"
    dp_incompatible_reason = "clients send the mean of their features"

    kappa: float = hyper("weight of the mean regularisation", low=0)
    mu: float = hyper("weight of the newest batch in the features' moving mean", above=0, high=1)

    fit = stock.local_epochs
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, w.new_zeros(self.task.width))

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w.new_zeros(self.task.width))

    def send(self, server: Server, turn: Turn) -> Down:
        return Down(stock.to_all(server.w, turn), stock.to_all(server.consensus, turn))

    def start(self, given: Given, data: Any) -> Work:
        w = torch.cat([given.down.w, given.client.bias], 1)
        return Work(w, self.opt.init(w), torch.zeros_like(given.client.bias))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD on CE(head(z + z-bar_i^p)) + kappa MSE(z-bar_i^g, z-bar^g); in round 1 on CE(head(z)) alone.

        z-bar_i^g <- (1 - mu) z-bar_i^g + mu mean_B(z), with gradients through the newest batch alone.
        """
        w, bias = work.w[: self.task.size], work.w[self.task.size :]

        def moved(z: Tensor, batch: Batch) -> Tensor:
            return (1 - self.mu) * work.mean + self.mu * mean_over(z, batch)

        def loss(w: Tensor, batch: Batch) -> Tensor:
            z = self.task.trained_features(w, batch)
            logits = self.task.classify(w[self.task.head], z + w[self.task.size :])
            regulariser = (moved(z, batch) - given.down.consensus).square().mean()
            return cross_entropy(logits, batch) + self.kappa * regulariser

        if given.turn.round == 1:
            g = torch.cat([self.task.grad(w, batch), torch.zeros_like(bias)])
        else:
            _, g = self.task.value_and_grad_of(loss, work.w, batch)
        mean = moved(self.task.batch_features(w, batch), batch)
        return Work(*self.opt.update(work.w, work.opt, g, given.turn.lr), mean)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, Client]:
        w, bias = work.w[:, : self.task.size], work.w[:, self.task.size :]
        return Up(w, work.mean if given.turn.round == 1 else None), Client(bias)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """theta <- sum_i p_i theta_i; in round 1 also z-bar^g <- sum_i p_i z-bar_i^g."""
        return Server(turn.share @ up.w, server.consensus if up.mean is None else turn.share @ up.mean)

    def personal(self, server: Server, client: Client, data: Any, turn: Turn) -> Tensor:
        return torch.cat([stock.to_all(server.w, turn), client.bias], 1)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return head(z + z-bar_i^p) of a personal model [P + D]."""
        w, bias = w[: self.task.size], w[self.task.size :]
        return self.task.classify(w[self.task.head], self.task.features(w, x) + bias)
