"""FedProx: FedAvg whose clients are held near the received model by a proximal term."""

from dataclasses import dataclass

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


@dataclass(frozen=True, kw_only=True)
class FedProx(Method):
    """Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
    https://arxiv.org/abs/1812.06127 (Algorithm 2)

    mu = 0 is FedAvg. Where we differ: clients are sampled uniformly and averaged with the run's weights (the paper
    samples by size and takes a plain mean), and local work is E epochs for all, not an inexact solution.
    """

    paper = "Li et al., MLSys 2020"
    supports_ala = True
    supports_per_client_lr = True
    unsampled_model = "the global model"
    cost = "a step reads the received model once more (P)"
    dp_incompatible_reason = ""

    mu: float = hyper("strength of the proximal term", low=0)

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    fit = stock.local_epochs
    finish = stock.upload
    aggregate = stock.average
    personal = stock.personal_is_global
    global_model = stock.shared_model

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on h(w) = f_B(w) + mu/2 |w - w^t|^2 (eq. 2)."""
        g = stock.proximal_gradient(self.task.grad(work.w, batch), self.mu, work.w, given.down.w)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))
