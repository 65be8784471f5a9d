"""FedPAC: features are held near global centroids; heads are combined where that lowers a client's expected loss."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Empty, Given, Ids, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.qp import combined, gram, min_norm
from pflsweep.methods.task import Batch, by_class, cross_entropy, mean_over
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [F] theta, the shared extractor
    heads: Tensor  # [N, H] phi_i, combined for each client
    prototypes: Tensor  # [K, D] c_k, the global centroids; 0 for a class that no client has sent yet
    known: Tensor  # [K] whether a client has sent the class


class Down(NamedTuple):
    w: Vector  # [C, F]
    head: Vector  # [C, H]
    prototypes: Vector  # [C, K, D]
    known: Ids  # [C, K]


class Work(NamedTuple):
    w: Tensor  # [C, P] extractor and head
    head_opt: Tensor  # [C, H] or [C, 0]
    body_opt: Tensor  # [C, F] or [C, 0]
    h: Tensor  # [C, K, D] h_ik = P_i(y = k) E_i[f(x) | y = k], of the received extractor
    variance: Tensor  # [C] V_i


class Up(NamedTuple):
    w: Vector  # [C, F]
    head: Vector  # [C, H]
    prototypes: Vector  # [C, K, D] c_ik, of the trained extractor
    counts: Ids  # [C, K] n_ik
    h: Vector  # [C, K, D]
    variance: Scalars  # [C]


@dataclass(frozen=True, kw_only=True)
class FedPAC(Method):
    """Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration. ICLR 2023.
    https://arxiv.org/abs/2306.11867

    Written from the authors' code (JianXu95/FedPAC); the paper's text was not at hand. What is decided here, or
    differs:
    - the head learns first, for `head_epochs` epochs, then the extractor; each has its own optimiser;
    - the weights alpha_i are the exact optimum (the code: cvxpy's result for a matrix without its small eigenvalues,
      with weights of at most 0.001 set to 0);
    - heads are combined within the cohort, and absent clients keep theirs (the same at full participation);
    - a class without a global centroid is not aligned (the code: to the client's own centroid before the turn);
    - extractors are averaged with the run's weights (the code: by samples).
    """

    paper = "Xu et al., ICLR 2023"
    rows_on_server = ("heads",)
    unsampled_model = "the newest extractor with the common initial head"
    cost = (
        "an epoch on the head and two forward passes over the data, for statistics and centroids; the server keeps N "
        "heads and solves M quadratic programs of M weights"
    )
    dp_incompatible_reason = "it sends feature statistics and label counts"

    lam: float = hyper("weight of the distance between features and global centroids (lambda)", low=0)
    head_epochs: int = hyper("epochs on the head, before the epochs on the extractor", low=0)
    head_lr: float | None = hyper("learning rate of the head, without decay; null: train.lr", low=0)

    init_client = stock.stateless_client
    class_features = stock.class_features
    global_model = stock.no_global_model

    relative_gradients = classmethod(stock.gradients_with_head)

    def init(self, w: Tensor, setup: Setup) -> Server:
        known = torch.zeros(setup.classes, dtype=torch.bool, device=w.device)
        heads = w[self.task.head].repeat(setup.clients, 1)
        return Server(w[self.task.extractor], heads, w.new_zeros(setup.classes, self.task.width), known)

    def send(self, server: Server, turn: Turn) -> Down:
        w, prototypes, known = (stock.for_each(part, turn) for part in (server.w, server.prototypes, server.known))
        return Down(w, server.heads[turn.ids], prototypes, known)

    def start(self, given: Given, data: Any) -> Work:
        """Compute h_i and V_i = 1 / n_i (E |f(x)|^2 - sum_k |h_ik|^2), the trace in the variance of the head."""
        w = torch.cat([given.down.w, given.down.head], 1)
        h, squares = data.mean(self.statistics, w)
        variance = (squares - h.square().sum((1, 2))) / given.turn.n
        return Work(w, self.opt.init(given.down.head), self.opt.init(given.down.w), h, variance)

    @per_client
    def statistics(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        z = self.task.batch_features(w, batch)
        return by_class(z, batch, self.task.classes)[0], mean_over(z.square().sum(1), batch)

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        work = stock.run(self.head_step, given, work, data.train(self.head_epochs, "head"))
        return stock.run(self.body_step, given, work, data.train(self.epochs))

    @per_client
    def head_step(self, given: Given, work: Work, batch: Batch) -> Work:
        g = self.task.grad(work.w, batch, part=self.task.head)
        lr = given.turn.lr if self.head_lr is None else self.head_lr
        w, opt = self.opt.update(work.w, work.head_opt, g, lr, self.task.head)
        return work._replace(w=w, head_opt=opt)

    @per_client
    def body_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD of the extractor on F_i + lambda R_i, R_i = 1 / n sum_l 1 / d |f(x_l) - c_{y_l}|^2."""

        def loss(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
            alignment = stock.prototype_distance(given.down.prototypes, given.down.known, z, batch)
            return cross_entropy(logits, batch) + self.lam * alignment

        body = self.task.extractor
        _, g = self.task.value_and_grad(work.w, batch, loss, part=body, features=True)
        w, opt = self.opt.update(work.w, work.body_opt, g, given.turn.lr, body)
        return work._replace(w=w, body_opt=opt)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, Empty]:
        prototypes = stock.class_means(*data.mean(self.class_features, work.w))
        w, head = work.w[:, self.task.extractor], work.w[:, self.task.head]
        return Up(w, head, prototypes, given.class_counts, work.h, work.variance), Empty()

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        prototypes, known = stock.average_prototypes(server.prototypes, server.known, up.prototypes, up.counts)
        heads = server.heads.clone()
        heads[turn.ids] = combined(collaboration(up.h, up.variance), up.head)
        return Server(turn.share @ up.w, heads, prototypes, known)

    def personal(self, server: Server, client: Empty, data: Any, turn: Turn) -> Tensor:
        return torch.cat([stock.to_all(server.w, turn), server.heads[turn.ids]], 1)


def collaboration(h: Tensor, variance: Tensor) -> Tensor:
    """Return the weights alpha [M, M] of all heads in each client's combined head, from h [M, K, D] and V [M].

    Row i minimises sum_j alpha_ij^2 V_j + |sum_j alpha_ij (h_i - h_j)|^2 over the simplex: variance plus squared bias
    of the combined head.
    """
    rows = h.flatten(1)
    return torch.stack([min_norm(gram(row - rows) + variance.double().diag()) for row in rows])
