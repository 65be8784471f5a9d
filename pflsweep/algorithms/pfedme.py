"""pFedMe: FedAvg on the clients' Moreau envelopes, whose inner minimisers are the personalised models."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] w_i, the local copy of the global model
    opt: Tensor  # [C, P] or [C, 0]
    theta: Tensor  # [C, P] theta-tilde_i, the personalised model


@dataclass(frozen=True, kw_only=True)
class PFedMe(Method):
    """Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
    https://arxiv.org/abs/2006.08848 (Algorithm 1)

    eta is the run's learning rate. beta = 0 leaves the global model unchanged, and so does lam = 0 without weight
    decay. What the paper leaves open, and where we or the authors' code differ:
    - the inner minimisation is K plain gradient steps on the batch, from theta-tilde of the batch before and, in the
      turn's first batch, from the received model;
    - the run's momentum and weight decay act on w's step alone (the code adds a decay of 1e-3 to the inner steps);
    - models are averaged with the run's weights (the paper: a plain mean);
    - only the cohort trains, for E epochs (the code trains all clients, one batch an epoch, and aggregates the
      cohort's models);
    - the code evaluates w_i, which has overwritten theta-tilde_i there: eval = "w";
    - with ALA in front, both models start from the mix.
    """

    paper = "Dinh et al., NeurIPS 2020"
    supports_ala = True
    unsampled_model = "the newest global model"
    cost = "a step computes K gradients and reads w as often (P); a client keeps P"
    dp_incompatible_reason = ""

    lam: float = hyper("strength of the pull between the models (lambda)", low=0)
    inner_steps: int = hyper("gradient steps on a batch for the personalised model (K)", low=1)
    inner_lr: float = hyper("learning rate of these steps (eta_p)", low=0)
    beta: float = hyper("the server's step to the mean of the clients' models", low=0)
    eval: str = hyper("a client's model: the personalised one, or w_i after training", choices=("theta", "w"))

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    fit = stock.local_epochs
    personal = stock.personal_is_own_once_sampled
    global_model = stock.shared_model

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        return values["inner_steps"]

    def start(self, given: Given, data: Any) -> Work:
        w = given.down.w
        return Work(w, self.opt.init(w), w)

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """theta-tilde ~ argmin f_B(theta) + lambda/2 |theta - w|^2, then w <- w - eta lambda (w - theta-tilde).

        The latter is a gradient step on the Moreau envelope.
        """
        w, theta = work.w, work.theta
        for _ in range(self.inner_steps):
            theta = theta - self.inner_lr * self.inner_gradient(theta, w, batch)
        return Work(*self.opt.update(w, work.opt, self.lam * (w - theta), given.turn.lr), theta)

    def inner_gradient(self, theta: Tensor, w: Tensor, batch: Batch) -> Tensor:
        """Return the gradient of f_B(theta) + lambda/2 |theta - w|^2 in theta."""
        return stock.proximal_gradient(self.task.grad(theta, batch), self.lam, theta, w)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(work.w), stock.Own(work.theta if self.eval == "theta" else work.w)

    def aggregate(self, server: stock.Server, up: stock.Up, turn: Turn) -> stock.Server:
        """w <- (1 - beta) w + beta sum_i p_i w_i."""
        return stock.Server((1 - self.beta) * server.w + self.beta * (turn.share @ up.w))
