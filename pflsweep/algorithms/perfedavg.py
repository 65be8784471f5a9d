"""Per-FedAvg: MAML over clients, which learns a shared model that one gradient step personalises."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Method):
    """Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A
    Model-Agnostic Meta-Learning Approach. NeurIPS 2020. https://arxiv.org/abs/2002.07948 (Algorithm 1)

    The outer rate beta is the run's learning rate. A step takes two ("hf": three) consecutive batches of one
    shuffle, so an epoch has half (a third) of FedAvg's steps; "fo" with alpha = 0 is FedAvg on every second
    batch. Where we differ from the paper:
    - models are averaged with the run's weights (the paper: a plain mean);
    - the run's momentum and weight decay act on the outer step alone;
    - the step before evaluation may have a rate of its own (public code uses beta, or alpha and then beta).
    """

    paper = "Fallah et al., NeurIPS 2020"
    supports_ala = True
    unsampled_model = "the global model after one step on its own data, as every client"
    cost = (
        "half as many steps of two gradients each (`hf`: a third as many of four); each evaluation takes a "
        "gradient step"
    )
    dp_incompatible_reason = "its steps nest two gradients, whose noise would not add up as DP-SGD's does"

    form: str = hyper("first order, or Hessian-free (its product by differences)", choices=("fo", "hf"))
    alpha: float = hyper("learning rate of the inner step", low=0)
    delta: float = hyper("step along g of the difference that gives the Hessian's product (hf)", above=0)
    eval_lr: float | None = hyper("learning rate of the step before evaluation; null: alpha", low=0)

    init = stock.global_server
    init_client = stock.stateless_client
    send = stock.broadcast
    start = stock.start_from_down
    finish = stock.upload
    aggregate = stock.average
    global_model = stock.shared_model

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        return 4 / 3 if values["form"] == "hf" else 1

    def fit(self, given: Given, data: Any, work: stock.Work) -> stock.Work:
        return stock.run(self.step, given, work, data.batches(2 if self.form == "fo" else 3, self.epochs))

    @per_client
    def step(self, given: Given, work: stock.Work, batches: tuple[Batch, ...]) -> stock.Work:
        """w <- w - beta (I - alpha H(w; D'')) grad f(w - alpha grad f(w; D); D'); "fo" drops H."""
        w, grad = work.w, self.task.grad
        g = grad(w - self.alpha * grad(w, batches[0]), batches[1])
        if self.form == "hf":
            # H g = (grad f(w + delta g; D'') - grad f(w - delta g; D'')) / (2 delta)
            ahead, behind = grad(w + self.delta * g, batches[2]), grad(w - self.delta * g, batches[2])
            g = g - self.alpha * (ahead - behind) / (2 * self.delta)
        return stock.Work(*self.opt.update(w, work.opt, g, given.turn.lr))

    def personal(self, server: stock.Server, client: Any, data: Any, turn: Turn) -> Tensor:
        """Take one step from the global model on one batch of the client's training data (eq. 3)."""
        return self.adapt(stock.to_all(server.w, turn), next(data.train(1, "adapt")))

    @per_client
    def adapt(self, w: Tensor, batch: Batch) -> Tensor:
        return w - (self.alpha if self.eval_lr is None else self.eval_lr) * self.task.grad(w, batch)
