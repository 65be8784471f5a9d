"""Ditto: beside FedAvg's model each client trains a personal model, which is held near the received one."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] the copy of the global model
    opt: Tensor  # [C, P] or [C, 0]
    v: Tensor  # [C, P] v_k, the personalised model
    v_opt: Tensor  # [C, P] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class Ditto(Method):
    """Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.
    https://arxiv.org/abs/2012.04221 (Algorithm 1)

    The global model is FedAvg's. With lam = 0 and the same epochs the personalised ones are Local's. Where the paper
    is silent or we differ:
    - v_k starts from the common initial model (the paper: anywhere);
    - the paper's s steps on v_k are epochs over the batches that train the copy of the global model, after it (the
      authors' code alternates batch by batch; neither model sees the other's steps, so the order does not matter);
    - models are averaged with the run's weights (the authors' code: a plain mean);
    - with ALA in front, the copy of the global model starts from the mix; v_k, and the model that it is held near, do
      not.
    """

    paper = "Li et al., ICML 2021"
    supports_ala = True
    supports_per_client_lr = True
    unsampled_model = "the newest global model"
    cost = "additional own epochs, whose steps read the received model once more (P); a client keeps P"
    dp_incompatible_reason = ""

    lam: float = hyper("strength of the pull towards the global model (lambda)", low=0)
    own_epochs: int | None = hyper("epochs on the personalised model; null: train.epochs", low=0)

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    step = stock.sgd_step
    aggregate = stock.average
    personal = stock.personal_is_own_once_sampled
    global_model = stock.shared_model

    @classmethod
    def relative_gradients(cls, epochs: int, **values: Any) -> float:
        return 2 if values["own_epochs"] is None else 1 + values["own_epochs"] / epochs

    def start(self, given: Given, data: Any) -> Work:
        w, v = given.down.w, given.client.w
        return Work(w, self.opt.init(w), v, self.opt.init(v))

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        epochs = self.epochs if self.own_epochs is None else self.own_epochs
        work = stock.run(self.step, given, work, data.train(self.epochs))
        return stock.run(self.own_step, given, work, data.train(epochs))

    @per_client
    def own_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD on h_k(v; w^t) = F_k(v) + lambda/2 |v - w^t|^2."""
        g = stock.proximal_gradient(self.task.grad(work.v, batch), self.lam, work.v, given.down.w)
        v, v_opt = self.opt.update(work.v, work.v_opt, g, given.turn.lr)
        return work._replace(v=v, v_opt=v_opt)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(work.w), stock.Own(work.v)
