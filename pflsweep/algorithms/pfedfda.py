"""pFedFDA: the extractor learns under the classifier of a global feature distribution, which each client adapts."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Empty, Given, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch, cross_entropy
from pflsweep.ops import random
from pflsweep.ops.vmap import per_client
from pflsweep.util.errors import UserError

EPSILON = 1e-4  # of priors and of the classifier's covariance, in the authors' code
BETAS = 21  # values of beta that are tried, from 0 to 1
FOLDS = 2  # of the cross-validation that chooses beta; also the least samples of a class with a local mean


class Server(NamedTuple):
    w: Tensor  # [F] the extractor
    means: Tensor  # [K, D] mu_g
    covariance: Tensor  # [D, D] Sigma_g


class Down(NamedTuple):
    w: Vector  # [C, F]
    means: Vector  # [C, K, D]
    covariance: Vector  # [C, D, D]


class Up(NamedTuple):
    w: Vector  # [C, F]
    means: Vector  # [C, K, D] mu_i, adapted
    covariance: Vector  # [C, D, D] Sigma_i, adapted


@dataclass(frozen=True, kw_only=True)
class PFedFDA(Method):
    """McLaughlin, Su: Personalized Federated Learning via Feature Distribution Adaptation. NeurIPS 2024.
    https://arxiv.org/abs/2411.00329 (with one beta for means and covariance)

    Features of class k are taken to be N(mu_k, Sigma), whose Bayes classifier is linear: it is the model's head.
    Written from the authors' code (cj-mclaughlin/pFedFDA); the paper's text was not at hand. What is decided here, or
    differs:
    - beta is the best of 21 values in 2-fold cross-validation (the code: L-BFGS from 0.5, and separate betas by
      default); folds alternate within each class, and classes with one sample are left out;
    - statistics are those of the trained extractor (the code: of all models during training, in tests of the newest);
    - `ridge` is added to the diagonal of local covariances; the code adds 1 there, and 1e-4 everywhere;
    - a class of which a client has fewer than two samples gets the global mean;
    - clients adapt at every evaluation, from the newest extractor and statistics; the result is not kept.
    """

    paper = "McLaughlin and Su, NeurIPS 2024"
    unsampled_model = "the newest extractor and distribution, adapted to its own data as every client's"
    cost = (
        "a turn and each evaluation of a client solve 42 systems of D equations, after a forward pass over its data; "
        "steps have no gradient of the head"
    )
    dp_incompatible_reason = "it sends statistics of features"

    ridge: float = hyper("added to the diagonal of a client's covariance", above=0)

    init_client = stock.stateless_client
    fit = stock.local_epochs
    global_model = stock.no_global_model

    def __post_init__(self) -> None:
        if self.task.size - self.task.head.start == self.task.classes * self.task.width:
            raise UserError("The model's last layer has no bias, which pFedFDA's classifier needs: use another model.")

    def init(self, w: Tensor, setup: Setup) -> Server:
        means = random.uniform(setup.key, (setup.classes, self.task.width)).to(w)
        return Server(w[self.task.extractor], means, torch.eye(self.task.width, dtype=w.dtype, device=w.device))

    def send(self, server: Server, turn: Turn) -> Down:
        return Down(*(stock.for_each(part, turn) for part in server))

    def start(self, given: Given, data: Any) -> stock.Work:
        """Start with the classifier of the global distribution and the client's own prior as the head."""
        head = self.classifier(given.down.means, given.down.covariance, given.class_counts)
        return stock.Work(torch.cat([given.down.w, head], 1), self.opt.init(given.down.w))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        g = self.task.grad(work.w, batch, part=self.task.extractor)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr, self.task.extractor))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Up, Empty]:
        w = work.w[:, self.task.extractor]
        means, covariance, _ = self.adapted(given.down._replace(w=w), data)
        return Up(w, means, covariance), Empty()

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        return Server(*(torch.tensordot(turn.share, part, dims=1) for part in up))

    def personal(self, server: Server, client: Empty, data: Any, turn: Turn) -> Tensor:
        down = self.send(server, turn)
        return torch.cat([down.w, self.classifier(*self.adapted(down, data))], 1)

    def adapted(self, down: Down, data: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return clients' adapted means [C, K, D] and covariances [C, D, D], and their class counts [C, K]."""
        parts = [(self.features(down.w, batch), batch.y, batch.mask) for batch in data.sample(1.0, "adapt")]
        z, y = (torch.cat([part[k] for part in parts], 1) for k in (0, 1))
        here = torch.cat([torch.ones_like(y, dtype=torch.bool) if mask is None else mask for _, y, mask in parts], 1)
        return self.interpolated(down.means, down.covariance, z, y, here)

    @per_client
    def features(self, w: Tensor, batch: Batch) -> Tensor:
        return self.task.batch_features(w, batch)

    @per_client
    def interpolated(
        self, means: Tensor, covariance: Tensor, z: Tensor, y: Tensor, here: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return beta mu_i + (1 - beta) mu_g, beta Sigma_i + (1 - beta) Sigma_g and class counts [K] of one client.

        z [n, D]: features of its samples. y [n]: classes. here [n]: False for padding.
        """
        of_class = (y[:, None] == torch.arange(len(means), device=y.device)) & here[:, None]
        counts = of_class.sum(0)
        position = of_class.cumsum(0).gather(1, y[:, None])[:, 0] - 1  # of a sample among those of its class
        fold = position % FOLDS
        tried = here & (counts >= FOLDS)[y]
        losses = []
        for k in range(FOLDS):
            local = self.estimated(means, z, of_class & (tried & (fold != k))[:, None])
            held = Batch(z, y, tried & (fold == k), None, None)
            steps = torch.arange(BETAS, device=z.device).to(z.dtype) / (BETAS - 1)
            losses.append(torch.stack([self.loss_at(beta, local, (means, covariance), counts, held) for beta in steps]))
        beta = torch.stack(losses).sum(0).argmin().to(z.dtype) / (BETAS - 1)
        own_means, own_covariance = self.estimated(means, z, of_class)
        return beta * own_means + (1 - beta) * means, beta * own_covariance + (1 - beta) * covariance, counts

    def estimated(self, means: Tensor, z: Tensor, of_class: Tensor) -> tuple[Tensor, Tensor]:
        """Return maximum likelihood means [K, D] and common covariance [D, D] of the samples in of_class [n, K]."""
        n = of_class.sum(0)[:, None]
        z = torch.where(of_class.any(1)[:, None], z, 0)  # features of padding may be infinite
        own = of_class.to(z.dtype).T @ z / n.clamp(min=1)
        own = torch.where(n >= FOLDS, own, means)
        apart = (z - of_class.to(z.dtype) @ own) * of_class.any(1)[:, None]
        return own, apart.T @ apart / (n.sum() - 1).clamp(min=1) + self.ridge * torch.eye(z.shape[1]).to(z)

    def loss_at(self, beta: Tensor, local: Any, common: Any, counts: Tensor, held: Batch) -> Tensor:
        """Return the loss on held-out samples of the classifier between the local and the common distribution."""
        means, covariance = (beta * a + (1 - beta) * b for a, b in zip(local, common, strict=True))
        return cross_entropy(self.task.classify(bayes(means, covariance, counts), held.x), held)

    @per_client
    def classifier(self, means: Tensor, covariance: Tensor, counts: Tensor) -> Tensor:
        return bayes(means, covariance, counts)


def bayes(means: Tensor, covariance: Tensor, counts: Tensor) -> Tensor:
    """Return the head [H] with weights Sigma^-1 mu_k and biases log pi_k - mu_k^T Sigma^-1 mu_k / 2."""
    counts = counts.to(means.dtype)
    prior = counts / counts.sum() + EPSILON
    eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    shrunk = (1 - EPSILON) * covariance + EPSILON * covariance.trace() / len(covariance) * eye
    weights = torch.linalg.solve(shrunk, means.T).T
    bias = (prior / prior.sum()).log() - (means * weights).sum(1) / 2
    return torch.cat([weights.flatten(), bias])
