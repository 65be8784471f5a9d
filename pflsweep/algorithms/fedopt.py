"""FedOpt: FedAvg whose server treats the clients' mean update as a gradient and takes an adaptive optimiser's step.

FedAdagrad, FedAdam and FedYogi differ in one line, the update of the second moment.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method, Setup, Turn, hyper


class Server(NamedTuple):
    w: Tensor  # [P] x, the global model
    m: Tensor  # [P] the mean update
    v: Tensor  # [P] the second moment of each coordinate


@dataclass(frozen=True, kw_only=True)
class FedOpt(Method):
    """Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization. ICLR 2021.
    https://arxiv.org/abs/2003.00295 (Algorithm 2)

    The moments have no bias correction, as in the paper. Where we or public code differ:
    - updates are averaged with the run's weights (Algorithm 2: a plain mean; their experiments: by samples);
    - v starts at tau^2, the least that Algorithm 2 allows (FL-bench: at 0);
    - beta_1 = 0 in FedAdagrad is the paper's choice, set in its YAML file.
    """

    paper = "Reddi et al., ICLR 2021"
    supports_ala = True
    unsampled_model = "the global model"
    cost = "the server keeps two moments (2P)"
    dp_incompatible_reason = ""

    rule: str = hyper("update of the second moment", choices=("adagrad", "adam", "yogi"))
    global_lr: float = hyper("the server's rate (eta)", low=0)
    beta_1: float = hyper("decay of the mean update", low=0, below=1)
    beta_2: float = hyper("decay of the second moment; Adagrad has none", low=0, below=1)
    tau: float = hyper("degree of adaptivity: what is added to the root of the second moment", above=0)

    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    finish = stock.upload
    personal = stock.personal_is_global
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, torch.zeros_like(w), torch.full_like(w, self.tau**2))

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        """m <- beta_1 m + (1 - beta_1) Delta; x <- x + eta m / (sqrt(v) + tau)."""
        delta = turn.share @ up.w - server.w
        m = self.beta_1 * server.m + (1 - self.beta_1) * delta
        v = self.second_moment(server.v, delta.square())
        return Server(server.w + self.global_lr * m / (v.sqrt() + self.tau), m, v)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return v_t from v_{t-1} and Delta_t^2, all [P], by one of the three lines of Algorithm 2."""
        if self.rule == "adagrad":
            return v + square
        if self.rule == "adam":
            return self.beta_2 * v + (1 - self.beta_2) * square
        return v - (1 - self.beta_2) * square * torch.sign(v - square)
