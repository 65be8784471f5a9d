"""PartialFed: a client learns, layer by layer, whether to use the global layer or its own."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops import random
from pflsweep.ops.vmap import per_client


class Client(NamedTuple):
    w: Tensor  # [P] w_i, trained in the client's last turn
    strategy: Tensor  # [L, 2] a_i: each layer's logits of (global, own)
    rounds: int  # T


class Work(NamedTuple):
    w: Tensor  # [P] theta', the copy of the global model, of which some layers have been trained
    own: Tensor  # [P] w_i
    opt: Tensor  # [P] or [0] of the model in use, W_i
    strategy: Tensor  # [L, 2]


@dataclass(frozen=True, kw_only=True)
class PartialFed(Method):
    """Sun, Huo, Yang, Bai: PartialFed: Cross-Domain Personalized Federated Learning via Partial Initialization.
    NeurIPS 2021. https://openreview.net/forum?id=lgDP84byd5 (PartialFed-Adaptive)

    A layer is a block of the model. While all layers choose "global" it is FedAvg, with "own" everywhere it is Local,
    both on every second batch. What we decided, without code or text to follow:
    - the strategy and the weights learn from disjoint samples: a step takes two consecutive batches of one shuffle,
      the two halves of a mini-batch of twice the run's size, so an epoch has half of FedAvg's steps;
    - the strategy's step is plain SGD on a straight-through Gumbel-softmax sample, whose temperature falls
      geometrically from the first round to the last; the step of the weights uses the likelier option, and "global" in
      a tie;
    - trained layers are written back to where they came from, theta' or w_i, and both are kept during the turn;
    - after the turn, W_i becomes the client's w_i: it is uploaded and evaluated, and has the own layers of the next
      turn;
    - the momentum of a layer is kept where the layer changes its source within a turn.
    """

    paper = "Sun et al., NeurIPS 2021"
    version = 2
    resumable = False  # the temperature falls until the last round
    supports_ala = True
    unsampled_model = "the newest global model"
    cost = "a step computes two gradients, of one batch each, and reads two models (2 P); a client keeps P"
    dp_incompatible_reason = "the strategy learns in steps of its own, and decides which layers are trained and sent"
    reconstruction = "its adaptive strategy: the paper's idea in our equations (halves, temperature, what is kept)"

    strategy_lr: float = hyper("learning rate of the strategy; 0: all layers stay global", low=0)
    first_tau: float = hyper("temperature of the Gumbel-softmax in the first round", above=0)
    last_tau: float = hyper("temperature in the last round", above=0)

    init = stock.global_server
    send = stock.broadcast
    aggregate = stock.average
    personal = stock.personal_is_own_once_sampled
    global_model = stock.shared_model

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w, w.new_zeros(len(self.task.blocks), 2), setup.rounds)

    def start(self, given: Given, data: Any) -> Work:
        w, client = given.down.w, given.client
        return Work(w, client.w, self.opt.init(w), client.strategy)

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        return stock.run(self.step, given, work, data.batches(2, self.epochs))

    @per_client
    def step(self, given: Given, work: Work, halves: tuple[Batch, Batch]) -> Work:
        """Update the strategy on the first half, and the layers that it chooses on the second half."""
        strategy = work.strategy
        if self.strategy_lr:
            slope = self.slope(strategy, work.w, work.own, halves[0], self.tau(given.turn.round, given.client.rounds))
            strategy = strategy - self.strategy_lr * slope
        shared = self.spread(prefers_global(strategy))
        w = torch.where(shared, work.w, work.own)
        w, opt = self.opt.update(w, work.opt, self.task.grad(w, halves[1]), given.turn.lr)
        return Work(torch.where(shared, w, work.w), torch.where(shared, work.own, w), opt, strategy)

    def slope(self, strategy: Tensor, w: Tensor, own: Tensor, batch: Batch, tau: float) -> Tensor:
        """Return the gradient of f(W_i) in a_i [L, 2], where W_il = z_l theta'_l + (1 - z_l) w_il.

        z is the sampled choice, 0 or 1; its derivative is taken to be that of softmax((a + Gumbel noise) / tau).
        """
        assert batch.key is not None, "training batches have keys"
        uniform = random.uniform(random.own(batch.key), strategy.shape).clamp(min=2.0**-25).to(strategy.dtype)
        noisy = strategy - torch.log(-torch.log(uniform))
        z = prefers_global(noisy)
        g = self.task.grad(torch.where(self.spread(z), w, own), batch) * (w - own)
        by_layer = torch.stack([g[block].sum() for block in self.task.blocks])  # df / dz_l
        soft = (noisy / tau).softmax(1)
        down = soft[:, 0] * soft[:, 1] / tau * by_layer
        return torch.stack([down, -down], 1)

    def tau(self, round: int, rounds: int) -> float:
        """Return the temperature in a round."""
        return self.first_tau * (self.last_tau / self.first_tau) ** ((round - 1) / max(rounds - 1, 1))

    def spread(self, layers: Tensor) -> Tensor:
        """Repeat the value of each layer [..., L] for each of its parameters [..., P]."""
        sizes = [block.stop - block.start for block in self.task.blocks]
        return torch.cat([layers[..., k : k + 1].expand(*layers.shape[:-1], n) for k, n in enumerate(sizes)], -1)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, Client]:
        w = torch.where(self.spread(prefers_global(work.strategy)), work.w, work.own)
        return stock.Up(w), Client(w, work.strategy, given.client.rounds)


def prefers_global(logits: Tensor) -> Tensor:
    """Return whether each layer prefers the global option, [..., L] bool, from logits [..., L, 2]."""
    return logits[..., 0] >= logits[..., 1]
