"""FedProx: FedAvg whose clients are held near the model they received."""

from dataclasses import dataclass

from pflsweep.engine import parts
from pflsweep.engine.lift import each
from pflsweep.engine.protocol import Given, Method, hyper
from pflsweep.engine.task import Batch


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
    https://arxiv.org/abs/1812.06127 (Algorithm 2)

    mu = 0 is FedAvg. Where we differ: clients are sampled uniformly and averaged with the run's weights (the paper
    samples by size and takes a plain mean), and local work is E epochs for all, not an inexact solution.
    """

    paper = "Li et al., MLSys 2020"
    mixes = True
    unsampled = "the global model"
    cost = "a step reads the received model once more (P)"
    leaks = ""

    mu: float = hyper("strength of the proximal term", low=0)

    init = parts.global_server
    init_client = parts.stateless_client
    send = parts.broadcast
    start = parts.start_from_down
    fit = parts.local_epochs
    finish = parts.upload
    aggregate = parts.average
    personal = parts.personal_is_global
    global_model = parts.shared_model

    @each
    def step(self, given: Given, work: parts.Work, batch: Batch) -> parts.Work:
        """SGD on h(w) = f_B(w) + mu/2 |w - w^t|^2 (their eq. 2)."""
        g = parts.pulled(self.task.grad(work.w, batch), self.mu, work.w, given.down.w)
        return parts.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))
