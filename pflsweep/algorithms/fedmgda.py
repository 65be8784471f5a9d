"""FedMGDA+: the server steps along the shortest convex combination of the clients' directions, which opposes none."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Method, Turn, hyper
from pflsweep.methods.qp import gram, min_norm


@dataclass(frozen=True, kw_only=True)
class FedMGDA(Method):
    """Hu, Shaloudegi, Zhang, Yu: Federated Learning Meets Multi-Objective Optimization. IEEE Transactions on Network
    Science and Engineering 2022. https://arxiv.org/abs/2006.11489 (Algorithm 1)

    epsilon = 0 steps along the weighted mean of the directions, epsilon = 1 is MGDA. A round moves the model by at most
    global_lr, whatever the clients' steps, so the number of rounds needed depends on it. What the paper leaves open, or
    where we differ:
    - lambda stays within epsilon of the run's aggregation weights, as in FedLF's code (the paper: of 1 / M);
    - without a global_lr the server steps by the round's train.lr, as that code does; the paper tunes it;
    - the direction of a client that has not moved is 0;
    - the personalised model is the client's own trained one, as in FedPG's tables.
    """

    paper = "Hu et al., IEEE TNSE 2022"
    unsampled_model = "the newest global model"
    cost = "the server computes inner products of M updates in float64 (M^2 P) and solves a quadratic program of size M"
    dp_incompatible_reason = ""

    epsilon: float = hyper("how far lambda may lie from the aggregation weights", low=0, high=1)
    global_lr: float | None = hyper("the server's step along the mix (eta); null: the round's train.lr", above=0)

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    start = stock.start_from_down
    step = stock.sgd_step
    fit = stock.local_epochs
    finish = stock.upload_and_keep
    personal = stock.personal_is_own_once_sampled
    global_model = stock.shared_model

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        """w <- w - eta d, d = sum_i lambda_i g_i."""
        g = self.directions(server.w, up.w)
        mix = self.weights(g, turn.share).to(g.dtype)
        rate = turn.lr if self.global_lr is None else self.global_lr
        return stock.Server(server.w - rate * (mix @ g))

    def directions(self, w: Tensor, trained: Tensor) -> Tensor:
        """Return g_i = (w - w_i) / |w - w_i|, [M, P]."""
        g = w - trained
        length = torch.linalg.vector_norm(g, dim=1, keepdim=True, dtype=torch.float64).to(g.dtype)
        return g / torch.where(length > 0, length, 1)

    def weights(self, g: Tensor, share: Tensor) -> Tensor:
        """Return lambda = argmin |sum_i lambda_i g_i|^2 on the simplex with |lambda_i - share_i| <= epsilon, [M].

        It is in float64.
        """
        # In float32 the shares' sum is 1 up to rounding alone
        share = share.double() / share.double().sum()
        return min_norm(gram(g), (share - self.epsilon).clamp(min=0), (share + self.epsilon).clamp(max=1))
