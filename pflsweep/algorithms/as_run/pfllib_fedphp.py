"""FedPHP as FedALA's authors run it: clients begin with a mix of the global and their last model."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pflsweep.algorithms.fedphp import mmd
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Turn, hyper
from pflsweep.methods.task import Batch, cross_entropy
from pflsweep.ops.vmap import per_client

WIDTHS = (20, 30, 40, 100)  # of MMD's kernels exp(-d^2 / width); the code: exp(-d^2 / (2 a)) with a = 10, 15, 20, 50


@dataclass(frozen=True, kw_only=True)
class PfllibFedPHP(Method):
    """FedPHP (Li et al., ECML PKDD 2021) in PFLlib 43c5744, the library of FedALA's authors.

    Where it differs from the paper:
    - there is no private model. In round t of T, counted from 0, a client begins with m w_i + (1 - m) w, m = mu t / T,
      where w_i is the model that it trained last and w the global one;
    - the global model is the teacher: the loss is (1 - lambda) CE + lambda MMD of its and the client's features, with
      kernels of fixed widths;
    - a client is evaluated with the mix with which it would begin the next round.
    """

    paper = "Li et al., ECML PKDD 2021, as FedALA's authors run it"
    resumable = False  # the mix depends on the number of rounds
    supports_ala = True
    unsampled_model = "the newest global model, mixed with the initial one"
    cost = "a step adds a forward pass of the global model, which it reads (P); a client keeps P"
    dp_incompatible_reason = (
        "MMD's gradient is not a sum over samples: each acts through the distances to all others of its batch"
    )

    strength: float = hyper("weight of the transfer from the global model (lambda); CE has the rest", low=0, high=1)
    mu: float = hyper("last value of the own model's weight in the mix", low=0, high=1)

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    fit = stock.local_epochs
    finish = stock.upload_and_keep
    aggregate = stock.average
    global_model = stock.shared_model

    def mix(self, w: Tensor, own: Tensor, turn: Turn, done: int) -> Tensor:
        """Return m own + (1 - m) w [C, P] after `done` rounds."""
        m = self.mu * done / turn.rounds
        return m * own + (1 - m) * w

    def start(self, given: Given, data: Any) -> stock.Work:
        w = self.mix(given.down.w, given.client.w, given.turn, given.turn.round - 1)
        return stock.Work(w, self.opt.init(w))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        taught = self.task.batch_features(given.down.w, batch)  # [B, D] what the global model's head sees

        def loss(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
            teaching = mmd(z, taught, batch, WIDTHS)
            return (1 - self.strength) * cross_entropy(logits, batch) + self.strength * teaching

        _, g = self.task.value_and_grad(work.w, batch, loss, features=True)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def personal(self, server: stock.Server, client: stock.Own, data: Any, turn: Turn) -> Tensor:
        return self.mix(stock.to_all(server.w, turn), client.w, turn, turn.round)
