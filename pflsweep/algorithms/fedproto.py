"""FedProto: clients share no parameters but the mean features of each class, and hold their own features near them."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Ids, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch, by_class, cross_entropy
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    prototypes: Tensor  # [K, D] C-bar^(j); 0 for a class that no client has sent yet
    known: Tensor  # [K] whether a client has sent the class


class Down(NamedTuple):
    prototypes: Vector  # [C, K, D]
    known: Ids  # [C, K]


class Up(NamedTuple):
    prototypes: Vector  # [C, K, D] C_i^(j)
    counts: Ids  # [C, K] |D_ij|


@dataclass(frozen=True, kw_only=True)
class FedProto(Method):
    """Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients.
    AAAI 2022. https://arxiv.org/abs/2105.00243 (Algorithm 1)

    lam = 0 trains like Local. Here all models have the same architecture, since a client's model is one vector of
    common length. What the paper leaves open, or where the authors' code differs:
    - regulariser = "prototypes" is eq. 8 with a batch's own class means and the L2 distance; "samples" is the mean
      squared distance of each sample's features to its class's prototype, as the code and other libraries compute it.
      The paper leaves the distance open, and its lambda was chosen with the code's: on the scale of eq. 8, 1 is far too
      strong on digits;
    - a global prototype is the mean over the class's samples, the minimiser in eq. 5; eq. 6 divides by the number of
      clients once more, which would shrink it, and the code takes a plain mean over clients;
    - prototypes are of the trained model (the code: of the changing models during the last epoch);
    - with partial participation, a class that the cohort lacks keeps its prototype;
    - a class without a prototype is never predicted; before there is any, the head predicts. inference = "head", the
      code's other test, evaluates the client's whole model.
    """

    paper = "Tan et al., AAAI 2022"
    unsampled_model = "the common initial model"
    cost = "one more forward pass over the data, for the prototypes; a client keeps P"
    dp_incompatible_reason = "it sends mean features and label counts"

    lam: float = hyper("weight of the distance between local and global prototypes (lambda)", low=0)
    regulariser: str = hyper("distances of class means, or of each sample", choices=("prototypes", "samples"))
    inference: str = hyper("what classifies: the nearest prototype, or the head", choices=("prototypes", "head"))

    init_client = stock.own_model
    start = stock.start_from_own
    fit = stock.local_epochs
    class_features = stock.class_features
    global_model = stock.no_global_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        known = torch.zeros(setup.classes, dtype=torch.bool, device=w.device)
        return Server(w.new_zeros(setup.classes, self.task.width), known)

    def send(self, server: Server, turn: Turn) -> Down:
        return Down(stock.for_each(server.prototypes, turn), stock.for_each(server.known, turn))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on L_S + lambda L_R (eq. 7)."""
        prototypes, known = given.down

        def loss(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
            if self.regulariser == "samples":
                return cross_entropy(logits, batch) + self.lam * stock.prototype_distance(prototypes, known, z, batch)
            sums, share = by_class(z, batch, self.task.classes)
            squares = (stock.class_means(sums, share) - prototypes).square().sum(1)
            lengths = squares.clamp(min=torch.finfo(z.dtype).tiny).sqrt()  # clamped, so that the gradient at 0 is 0
            return cross_entropy(logits, batch) + self.lam * (lengths * (known & (share > 0))).sum()  # eq. 8

        _, g = self.task.value_and_grad(work.w, batch, loss, features=True)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Up, stock.Own]:
        """Upload C_i^(j) = 1 / |D_ij| sum over D_ij of f(phi_i; x) (eq. 3)."""
        sums, share = data.mean(self.class_features, work.w)
        return Up(stock.class_means(sums, share), given.class_counts), stock.Own(work.w)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        """C-bar^(j) = sum_i |D_ij| / N_j C_i^(j) (eq. 6)."""
        return Server(*stock.average_prototypes(server.prototypes, server.known, up.prototypes, up.counts))

    def personal(self, server: Server, client: stock.Own, data: Any, turn: Turn) -> Tensor:
        """Return the client's model and, for `logits`, the prototypes and which are known: [C, P + K D + K]."""
        if self.inference == "head":
            return client.w
        shared = torch.cat([server.prototypes.flatten(), server.known.to(client.w.dtype)])
        return torch.cat([client.w, stock.to_all(shared, turn)], 1)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return minus the distances to the prototypes [B, K], of which the least decides (eq. 4). w: of `personal`.

        A class without a prototype has next to no probability, but not 0: the loss of its samples stays finite.
        """
        size, classes = self.task.size, self.task.classes
        if len(w) == size:
            return self.task.logits(w, x)
        z = self.task.features(w[:size], x)
        prototypes, known = w[size:-classes].view(classes, -1), w[-classes:] > 0
        near = -torch.linalg.vector_norm(z[:, None] - prototypes, dim=2)
        farthest = near.masked_fill(~known, torch.inf).amin(1, keepdim=True)
        near = torch.where(known, near, farthest + math.log(torch.finfo(near.dtype).tiny))
        return torch.where(known.any(), near, self.task.classify(w[self.task.head], z))
