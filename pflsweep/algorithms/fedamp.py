"""FedAMP: each client receives its own mix of all clients' models, in which models similar to its own weigh more."""

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Scalars, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client

log = logging.getLogger(__name__)
_warned: WeakSet[Method] = WeakSet()  # methods, one a trial, that have warned that their pull is cut


class Server(NamedTuple):
    models: Tensor  # [N, P] w_j, each client's latest upload; the common initial model before that
    known: Tensor  # [N] whether it has uploaded yet
    xi: Tensor  # [N, N] row i holds the weights of the models in u_i
    alpha: Tensor  # [] alpha_k


class Down(NamedTuple):
    w: Vector  # [C, P] u_i
    alpha: Scalars  # [C]


@dataclass(frozen=True, kw_only=True)
class FedAMP(Method):
    """Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data. AAAI 2021.
    https://arxiv.org/abs/2007.03797 (Algorithm 1, with A(x) = 1 - exp(-x / sigma))

    lam = 0 is Local. sigma has to fit the squared distances between models: far below them every u_i is w_i. What
    the paper leaves open, and where public code differs:
    - an absent client counts with its last upload, and one whose model diverged with the one before; one that
      never took part does not count (the paper: all take part in every round);
    - alpha_k is the largest step up to `alpha` at which all xi_ii >= 0, so that no model has a negative weight in its
      own mix. It is the same for all clients, also in the proximal term;
    - clients minimise with E epochs of SGD. The pull lam / alpha_k is cut to 1 / lr, beyond which steps would diverge
      (alpha_k is small where many models are close). At that bound each step begins at u_i, so that a round is worth
      one step: lam has to stay well below alpha_k / lr. The first round in which it does not is logged;
    - clients start from their own models, as in public code; start_from = "sent" starts them from u_i. With one step a
      round, lam then has no effect;
    - FedPG's authors give every xi_ij the sum over j; PFLlib's proximal term has no gradient.
    """

    paper = "Huang et al., AAAI 2021"
    supports_ala = ("start_from", "sent")
    supports_per_client_lr = True
    unsampled_model = "the common initial model"
    cost = "a step reads u_i once more (P); the server keeps N models, compares all and mixes all for each client"
    dp_incompatible_reason = ""

    alpha: float = hyper("the server's step down the distances between models (alpha_k), at most", above=0)
    sigma: float = hyper("squared distance at which models cease to be similar", above=0)
    lam: float = hyper("strength of the attraction between models (lambda)", low=0)
    start_from: str = hyper("where local training starts: the client's own model, or u_i", choices=("own", "sent"))

    init_client = stock.own_model
    fit = stock.local_epochs
    finish = stock.upload_and_keep
    personal = stock.personal_is_own
    global_model = stock.no_global_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        n = setup.clients
        return Server(
            w.repeat(n, 1),
            torch.zeros(n, dtype=torch.bool, device=w.device),
            torch.eye(n, dtype=w.dtype, device=w.device),
            w.new_full((), self.alpha),
        )

    def send(self, server: Server, turn: Turn) -> Down:
        """Send u_i = sum_j xi_ij w_j."""
        return Down(server.xi[turn.ids] @ server.models, stock.to_all(server.alpha, turn))

    def start(self, given: Given, data: Any) -> stock.Work:
        w = given.client.w if self.start_from == "own" else given.down.w
        return stock.Work(w, self.opt.init(w))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on F_i(w) + lambda / (2 alpha_k) |w - u_i|^2."""
        # Both alpha_k and lambda may be 0
        alpha = given.down.alpha.clamp(min=torch.finfo(work.w.dtype).tiny)
        pull = (self.lam / alpha).clamp(max=1 / given.turn.lr)
        g = stock.proximal_gradient(self.task.grad(work.w, batch), pull, work.w, given.down.w)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        """Compute xi_ij = alpha_k A'(|w_i - w_j|^2) for j != i, and xi_ii = 1 - sum_{j != i} xi_ij."""
        self.warn_of_a_cut(float(server.alpha), turn)
        models, known = server.models.clone(), server.known.clone()
        # A model that diverged would spoil all others', also where it is finite and its squared distances are not:
        # these are sums of four terms, each at most 4 times the largest squared norm
        sound = (16 * up.w.square().sum(1)).isfinite()
        ids = turn.ids[sound]
        models[ids], known[ids] = up.w[sound], True
        pull = torch.exp(-squared_distances(models) / self.sigma) / self.sigma  # A'
        pull = (pull * known).fill_diagonal_(0)
        total = pull.sum(1)
        alpha = (1 / total.max()).clamp(max=self.alpha)
        return Server(models, known, alpha * pull + (1 - alpha * total).diag(), alpha)

    def warn_of_a_cut(self, alpha: float, turn: Turn) -> None:
        """Warn, once a trial, that `step` has cut the pull lam / alpha_k of this round to 1 / lr."""
        if self.lam * turn.round_lr > alpha and self not in _warned:
            _warned.add(self)
            log.warning(
                "algorithm.lam=%g: in round %d its pull lam / alpha_k = %.3g (alpha_k is %.3g, at most algorithm.alpha)"
                " is above 1 / train.lr = %.3g, beyond which steps diverge, and is cut to that: all larger lam train "
                "alike, and a round is worth one step. Use algorithm.lam well below alpha_k / train.lr = %.3g.",
                self.lam, turn.round, self.lam / max(alpha, 1e-300), alpha, 1 / turn.round_lr, alpha / turn.round_lr,
            )  # fmt: skip

    def show(self, server: Server) -> dict[str, Tensor]:
        return {"xi": server.xi}


def squared_distances(models: Tensor) -> Tensor:
    """Return the squared distances [N, N] of models [N, P], by inner products and without N^2 P numbers in memory."""
    apart = models - models.mean(0)
    products = apart @ apart.T
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp(min=0)
