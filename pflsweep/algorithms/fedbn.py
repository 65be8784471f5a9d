"""FedBN: clients share all layers except normalisation layers, which each client keeps."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn
from pflsweep.util.once import warn_once


class Client(NamedTuple):
    norm: Tensor  # [D] the parameters of its normalisation layers


@dataclass(frozen=True, kw_only=True)
class FedBN(Method):
    """Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization.
    ICLR 2021. https://arxiv.org/abs/2102.07623 (Algorithm 1)

    Without normalisation layers it is FedAvg. Where we differ:
    - group and layer norm stay local too; the paper has batch norm alone;
    - here every method uses each client's own statistics, since models keep none (docs/design.md); what FedBN adds is
      that scale and shift stay local;
    - the own layers start from the common initial model, and an absent client is evaluated with the newest shared ones;
    - there is no global model: the normalisation layers never leave their clients.
    """

    paper = "Li et al., ICLR 2021"
    unsampled_model = "the newest shared layers with the common initial normalisation layers"
    cost = "nothing; a client keeps its normalisation layers"
    dp_incompatible_reason = ""

    send = stock.broadcast
    step = stock.sgd_step
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.no_global_model

    def __post_init__(self) -> None:
        if not self.task.norm.any():
            text = "the model has no normalisation layer, so that FedBN is FedAvg here: use one with model.norm"
            warn_once(__name__, text)

    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        return stock.Server(w[~self.task.norm.to(w.device)])

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w[self.task.norm.to(w.device)])

    def start(self, given: Given, data: Any) -> stock.Work:
        w = self.joined(given.down.w, given.client.norm)
        return stock.Work(w, self.opt.init(w))

    def joined(self, shared: Tensor, norm: Tensor) -> Tensor:
        """Return whole models [C, P] from shared parameters [C, P - D] and the clients' own [C, D]."""
        own = self.task.norm.to(norm.device)
        w = norm.new_empty(len(norm), self.task.size)
        w[:, own], w[:, ~own] = norm, shared
        return w

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, Client]:
        own = self.task.norm.to(work.w.device)
        return stock.Up(work.w[:, ~own]), Client(work.w[:, own])

    def personal(self, server: stock.Server, client: Client, data: Any, turn: Turn) -> Tensor:
        return self.joined(stock.to_all(server.w, turn), client.norm)
