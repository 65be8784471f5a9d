"""FedAvgM: FedAvg whose server moves with momentum along the clients' mean update."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method, Setup, Turn, hyper


class Server(NamedTuple):
    w: Tensor  # [P] the global model
    v: Tensor  # [P] the velocity


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Method):
    """Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification.
    arXiv 2019. https://arxiv.org/abs/1909.06335

    beta = 0 with global_lr = 1 is FedAvg. Where we or public code differ:
    - the server's rate `global_lr` is that of Reddi et al. 2021 (Algorithm 1 with SGD and momentum as its ServerOpt);
      Hsu et al. use 1;
    - the momentum is the plain one, as in the paper (FL-bench: Nesterov's).
    """

    paper = "Hsu et al., arXiv 2019"
    supports_ala = True
    unsampled_model = "the global model"
    cost = "the server keeps a velocity (P)"
    dp_incompatible_reason = ""

    beta: float = hyper("momentum of the server", low=0, below=1)
    global_lr: float = hyper("the server's step along its velocity (eta)", low=0)

    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    finish = stock.upload
    personal = stock.personal_is_global
    global_model = stock.shared_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, torch.zeros_like(w))

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        """v <- beta v + Delta w; w <- w - global_lr v, where Delta w = sum_k (n_k / n) (w - w_k)."""
        v = self.beta * server.v + (server.w - turn.share @ up.w)
        return Server(server.w - self.global_lr * v, v)
