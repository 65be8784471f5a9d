"""FedNova: FedAvg whose server averages normalised updates, so that clients with more steps do not weigh more."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Scalars, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] x_i
    opt: Tensor  # [C, P] or [C, 0]
    norm: Tensor  # [C] ||a_i||_1 of the steps so far
    speed: Tensor  # [C] what the last step added to `norm`


class Up(NamedTuple):
    w: Vector  # [C, P] x_i
    norm: Scalars  # [C] ||a_i||_1


@dataclass(frozen=True, kw_only=True)
class FedNova(Method):
    """Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization. NeurIPS 2020. https://arxiv.org/abs/2007.07481 (section 5)

    A client's update is -eta G_i a_i: its gradients G_i, weighted by a_i. Where all clients take the same number of
    steps it is FedAvg (mu > 0: FedProx). Where we or the authors' code differ:
    - tau_eff is sum_i p_i ||a_i||_1, which without momentum and mu is the paper's sum_i p_i tau_i (code: the same, but
      sum_i p_i tau_i if mu > 0);
    - in place of ||a_i||_1 stands the sum of a_i, by which a constant gradient moves w. It is the same where no entry
      is negative: with momentum alone, with mu alone up to eta mu = 1, with both up to eta mu = (1 - sqrt(m))^2.
      Weight decay is part of the gradients G_i, the proximal term is not;
    - with train.optimiser_state=kept the sum is of the steps of a turn, without those of earlier ones that the momentum
      still holds;
    - p_i are the run's weights among the clients of the cohort;
    - the code's server momentum is not in the paper's algorithm, and not here.
    """

    paper = "Wang et al., NeurIPS 2020"
    unsampled_model = "the global model"
    cost = "a client sends one number more"
    dp_incompatible_reason = ""  # ||a_i||_1 follows from the number of steps

    mu: float = hyper("strength of the proximal term", low=0)

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    fit = stock.local_epochs
    personal = stock.personal_is_global
    global_model = stock.shared_model

    def start(self, given: Given, data: Any) -> Work:
        w = given.down.w
        return Work(w, self.opt.init(w), w.new_zeros(len(w)), w.new_zeros(len(w)))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD on f_B(w) + mu/2 |w - x|^2. ||a_i||_1 is the length, over eta, of the same steps with gradients of 1."""
        lr = given.turn.lr
        g = stock.proximal_gradient(self.task.grad(work.w, batch), self.mu, work.w, given.down.w)
        speed = self.opt.momentum * work.speed + 1 - lr * self.mu * work.norm
        return Work(*self.opt.update(work.w, work.opt, g, lr), work.norm + speed, speed)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[Up, Any]:
        return Up(work.w, work.norm), given.client

    def aggregate(self, server: stock.Server, up: Up, turn: Turn) -> stock.Server:
        """x <- x - tau_eff sum_i p_i eta d_i, where eta d_i = eta G_i a_i / ||a_i||_1 = (x - x_i) / ||a_i||_1."""
        tau_eff = turn.share @ up.norm
        return stock.Server(server.w - tau_eff * ((turn.share / up.norm) @ (server.w - up.w)))
