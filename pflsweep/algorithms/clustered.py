"""Clustered FL: where a converged model's clients still pull it apart, their cluster is split into two."""

from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple

import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method, Setup, Turn, hyper
from pflsweep.methods.qp import gram, lengths


class Server(NamedTuple):
    models: Tensor  # [K, P] theta_c, one a cluster; K grows
    cluster: Tensor  # [N] c(i)


@dataclass(frozen=True, kw_only=True)
class Clustered(Method):
    """Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under
    Privacy Constraints. IEEE TNNLS 2021. https://arxiv.org/abs/1910.01991

    Without a split it is FedAvg with uniform weights. A run of few rounds needs a smaller `after`: no cluster splits
    before. What the paper leaves open, or where the authors' code differs:
    - a cluster is cut by complete linkage on -cos and always accepted, as in the code; `split=paper` minimises the
      largest similarity across the cut (which is single linkage) and accepts it only where gamma_max permits;
    - a split waits for more than `after` rounds and needs more than two clients (the code);
    - means are plain ones (the code; the paper weighs by data);
    - with partial participation (the paper: all clients) a split looks at the present members of a cluster; absent
      members join the part with the lowest client key, and a cluster without present members stays as it is;
    - the code numbers clients by position in later splits and evaluates in training mode: not done here.
    """

    paper = "Sattler et al., IEEE TNNLS 2021"
    version = 2
    unsampled_model = "the model of its cluster"
    cost = "the server computes inner products of M updates in float64 (M^2 P) and keeps a model per cluster"
    dp_incompatible_reason = ""

    eps1: float = hyper("a cluster has converged where its mean update is shorter than this (epsilon_1)", low=0)
    eps2: float = hyper("its clients disagree where the longest update is longer than this (epsilon_2)", low=0)
    after: int = hyper("rounds before the first split", low=0)
    split: str = hyper("complete linkage, always accepted, or the paper's cut", choices=("code", "paper"))
    gamma_max: float = hyper("noise below which the paper's cut is accepted", low=0, high=1)

    init_client = stock.stateless_client
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    finish = stock.upload
    global_model = stock.no_global_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w[None], torch.zeros(setup.clients, dtype=torch.int64, device=w.device))

    def send(self, server: Server, turn: Turn) -> stock.Down:
        return stock.Down(server.models[server.cluster[turn.ids]])

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        """Split clusters, then theta_c += mean of Delta_i over the present members of cluster c."""
        delta = up.w - server.models[server.cluster[turn.ids]]
        models, cluster = server.models, server.cluster.clone()
        if turn.round > self.after:
            for c in range(len(models)):
                here = (cluster[turn.ids] == c).nonzero().flatten()
                leaving = self.leaving(delta[here])
                if len(leaving):
                    cluster[turn.ids[here[leaving]]] = len(models)
                    models = torch.cat([models, models[c : c + 1]])
        models = models.clone()
        for c in cluster[turn.ids].unique():
            models[c] += delta[cluster[turn.ids] == c].mean(0)
        return Server(models, cluster)

    def leaving(self, delta: Tensor) -> Tensor:
        """Return the indices of those of a cluster's updates [m, P] that move to a new cluster; none without a split.

        The cohort is in the order of clients' keys, and the part with the first update stays.
        """
        nobody = torch.zeros(0, dtype=torch.int64, device=delta.device)
        if len(delta) <= 2 or not (delta.mean(0).norm() < self.eps1 and delta.norm(dim=1).max() > self.eps2):
            # Not a stationary point, or one on which all agree
            return nobody
        alike = cosines(delta)
        part = bipartition(alike, "complete" if self.split == "code" else "single").to(delta.device)
        if self.split == "paper" and not accepted(float(alike[part][:, ~part].max()), self.gamma_max):
            return nobody
        if part[0]:
            part = ~part
        return part.nonzero().flatten()

    def personal(self, server: Server, client: object, data: object, turn: Turn) -> Tensor:
        return server.models[server.cluster[turn.ids]]

    def show(self, server: Server) -> dict[str, Tensor]:
        same = server.cluster[:, None] == server.cluster
        return {"clusters": torch.tensor(float(len(server.models))), "same cluster": same.float()}


def cosines(delta: Tensor) -> Tensor:
    """Return alpha_ij = cos(Delta_i, Delta_j) [m, m] in float64; 0 if one of them is 0."""
    products = gram(delta)
    length = lengths(products)
    scale = 1 / torch.where(length > 0, length, 1)
    return scale[:, None] * products * scale


def bipartition(alike: Tensor, method: Literal["complete", "single"]) -> Tensor:
    """Cut clients of similarity [m, m] in two by hierarchical clustering. Return membership of one part, [m] bool."""
    distance = (1 - alike).clamp(min=0).cpu().numpy()
    merged = linkage(squareform(distance, checks=False), method)
    return torch.from_numpy(cut_tree(merged, n_clusters=[2])[:, 0] == 1)


def accepted(across: float, gamma_max: float) -> bool:
    """Return whether a cut separates the clients' distributions: sqrt((1 - alpha_cross) / 2) > gamma_max."""
    return sqrt(max(0.0, (1 - across) / 2)) > gamma_max
