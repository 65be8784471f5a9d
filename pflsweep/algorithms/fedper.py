"""FedPer: the base layers are everybody's, the layers on top are the client's own; both learn together."""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pflsweep.engine import parts
from pflsweep.engine.protocol import Given, Method, Setup, Turn, hyper

log = logging.getLogger(__name__)


@cache  # once a process: a sweep builds many trials
def _tell_fedavg() -> None:
    """Say that a trial has no personalization layers at all."""
    log.warning("algorithm.layers=0: no layer stays with its client, so that FedPer is FedAvg here")


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
    unsampled = "the newest base with the common initial own layers"
    cost = "nothing; a client keeps its own layers"
    leaks = ""

    layers: int = hyper("K_P: the top blocks that stay with their client", low=0)

    send = parts.broadcast
    step = parts.sgd_step
    fit = parts.local_epochs
    aggregate = parts.average  # W_B = sum_j gamma_j W_Bj
    global_model = parts.no_global_model

    def __post_init__(self) -> None:
        parts.top_layers(self)
        if not self.layers:
            _tell_fedavg()

    @property
    def own(self) -> slice:
        """The personalization layers W_P in w."""
        return parts.top_layers(self)

    @property
    def base(self) -> slice:
        """The base layers W_B in w."""
        return slice(0, self.own.start)

    def init(self, w: Tensor, setup: Setup) -> parts.Server:
        return parts.Server(w[self.base])

    def init_client(self, w: Tensor, setup: Setup) -> parts.OwnHead:
        return parts.OwnHead(w[self.own])

    def start(self, given: Given, data: Any) -> parts.Work:
        """(W_B, W_Pj), which one SGD trains as a whole."""
        w = torch.cat([given.down.w, given.client.head], 1)
        return parts.Work(w, self.opt.init(w))

    def finish(self, given: Given, data: Any, work: parts.Work) -> tuple[parts.Up, parts.OwnHead]:
        return parts.Up(work.w[:, self.base]), parts.OwnHead(work.w[:, self.own])

    def personal(self, server: parts.Server, client: parts.OwnHead, data: Any, turn: Turn) -> Tensor:
        return torch.cat([parts.to_all(server.w, turn), client.head], 1)
