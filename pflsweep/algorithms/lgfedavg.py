"""LG-FedAvg: each client keeps its own lower layers, and all share the layers on top: the opposite of FedPer."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper


class Client(NamedTuple):
    body: Tensor  # [P - D] the local representation's layers


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Method):
    """Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated
    Learning with Local and Global Representations. NeurIPS 2019 workshop on federated learning.
    https://arxiv.org/abs/2001.01523

    layers = 0 is Local, all layers is FedAvg. Both parts learn together on the supervised loss; the paper's other ways
    to learn a local representation (unsupervised, fair) are not included. Where we differ from the paper or its code:
    - all layers start from the common initial model (the code: from a trained FedAvg model, whose rounds cost
      communication too);
    - the shared layers are averaged with the run's weights (the code: a plain mean);
    - a client is evaluated with its newest model (the code keeps for each client the one best on its test data);
    - there is no ensemble of all clients' models for a new client.
    """

    paper = "Liang et al., NeurIPS 2019 workshop"
    unsampled_model = "the newest shared layers on the common initial ones"
    cost = "nothing; a client keeps its lower layers"
    dp_incompatible_reason = ""

    layers: int = hyper("the top blocks that all share", low=0)

    send = stock.broadcast
    step = stock.sgd_step
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.no_global_model

    def __post_init__(self) -> None:
        stock.top_layers(self)

    @property
    def shared(self) -> slice:
        """Return the slice of the shared layers in w."""
        return stock.top_layers(self)

    @property
    def body(self) -> slice:
        """Return the slice of the local layers in w."""
        return slice(0, self.shared.start)

    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        return stock.Server(w[self.shared])

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w[self.body])

    def start(self, given: Given, data: Any) -> stock.Work:
        w = torch.cat([given.client.body, given.down.w], 1)
        return stock.Work(w, self.opt.init(w))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, Client]:
        return stock.Up(work.w[:, self.shared]), Client(work.w[:, self.body])

    def personal(self, server: stock.Server, client: Client, data: Any, turn: Turn) -> Tensor:
        return torch.cat([client.body, stock.to_all(server.w, turn)], 1)
