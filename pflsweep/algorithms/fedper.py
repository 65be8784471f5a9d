"""FedPer: clients share the base layers and keep their own top layers; both are trained together."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.util.once import warn_once


@dataclass(frozen=True, kw_only=True)
class FedPer(Method):
    """Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. arXiv 2019.
    https://arxiv.org/abs/1912.00818 (FedPer-Client and FedPer-Server)

    layers = 0 is FedAvg, all layers is Local. Where we differ:
    - the own layers start from the common initial model (the paper: from a random one for each client);
    - momentum and weight decay are the run's and act on the whole model;
    - clients may be sampled; an absent one keeps its layers and is evaluated with the newest base.
    """

    paper = "Arivazhagan et al., arXiv 2019"
    unsampled_model = "the newest base with the common initial own layers"
    cost = "nothing; a client keeps its own layers"
    dp_incompatible_reason = ""

    layers: int = hyper("K_P: the top blocks that stay with their client", low=0)

    send = stock.broadcast
    step = stock.sgd_step
    fit = stock.local_epochs
    aggregate = stock.average  # W_B = sum_j gamma_j W_Bj
    global_model = stock.no_global_model

    def __post_init__(self) -> None:
        stock.top_layers(self)
        if not self.layers:
            text = "algorithm.layers=0: no layer stays with its client, so that FedPer is FedAvg here"
            warn_once(__name__, text)

    @property
    def own(self) -> slice:
        """Return the slice of the personalization layers W_P in w."""
        return stock.top_layers(self)

    @property
    def base(self) -> slice:
        """Return the slice of the base layers W_B in w."""
        return slice(0, self.own.start)

    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        return stock.Server(w[self.base])

    def init_client(self, w: Tensor, setup: Setup) -> stock.OwnHead:
        return stock.OwnHead(w[self.own])

    def start(self, given: Given, data: Any) -> stock.Work:
        """Join (W_B, W_Pj), which one SGD trains as a whole."""
        w = torch.cat([given.down.w, given.client.head], 1)
        return stock.Work(w, self.opt.init(w))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, stock.OwnHead]:
        return stock.Up(work.w[:, self.base]), stock.OwnHead(work.w[:, self.own])

    def personal(self, server: stock.Server, client: stock.OwnHead, data: Any, turn: Turn) -> Tensor:
        return torch.cat([stock.to_all(server.w, turn), client.head], 1)
