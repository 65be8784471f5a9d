"""FedAvg + data: every client also trains on a small public set, which is balanced over the classes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Ids, Method, Turn, Vector, hyper


class Up(NamedTuple):
    w: Vector  # [C, P]
    private: Ids  # [C] |D_i \\ G|


@dataclass(frozen=True, kw_only=True)
class FedAvgData(Method):
    """Zhao, Li, Lai, Suda, Civin, Chandra: Federated Learning with Non-IID Data. arXiv 2018.
    https://arxiv.org/abs/1806.00582 (its data-sharing strategy)

    The public set G is drawn once from all clients' training data, with the same number of samples of each class. A
    client trains on D_i and all of G. Samples in G are no longer private. Every client downloads G once, which the
    traffic does not count. share = 0 is FedAvg. Where we differ:
    - the paper warms the global model up on G and gives each client a random part of G; here neither;
    - G is taken out of the clients' own data (the paper: a separate set), as FedFomo's comparison, which shares 5% and
      says no more, suggests;
    - a client's aggregation weight counts its private data alone: share_i |D_i \\ G| / n_i, normalised to the sum 1. So
      with uniform weights a client that gave a larger part of its data weighs less.
    """

    paper = "Zhao et al., arXiv 2018"
    unsampled_model = "the global model"
    cost = "an epoch passes over the public set too: share * N times a mean client's data"
    dp_incompatible_reason = "a part of the clients' own data becomes public"
    reconstruction = "how the public set is drawn and handed out, as a baseline of FedFomo"

    share: float = hyper("size of the public set, of all clients' training data", low=0, high=1)

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    step = stock.sgd_step
    personal = stock.personal_is_global
    global_model = stock.shared_model

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        """A client also trains on G, which has share * N times its own rows, some of which are its own."""
        return 1 + values["share"] * (values["clients"] - 1)

    def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
        _, joined = data.public(self.share)
        return stock.run(self.step, given, work, joined.train(self.epochs))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Up, Any]:
        private, _ = data.public(self.share)
        return Up(work.w, private.sizes), given.client

    def aggregate(self, server: stock.Server, up: Up, turn: Turn) -> stock.Server:
        weight = turn.share * up.private / turn.n
        total = weight.sum()
        # Where no client has private data the weights are FedAvg's
        weight = torch.where(total > 0, weight / total, turn.share)
        return server._replace(w=weight @ up.w)
