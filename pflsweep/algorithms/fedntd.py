"""FedNTD: clients preserve the received model's predictions for the classes other than a sample's true one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch, cross_entropy, mean_over
from pflsweep.ops.vmap import per_client


@dataclass(frozen=True, kw_only=True)
class FedNTD(Method):
    """Lee, Jeong, Shin, Bae, Yun: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.
    NeurIPS 2022. https://arxiv.org/abs/2106.03097 (section 4)

    beta = 0 is FedAvg, and so is any beta with two classes. Where we or the authors' code differ:
    - the code multiplies the distillation by tau^2, the paper does not; at the paper's tau = 1 they agree;
    - the received model, which is the teacher, has no dropout;
    - models are averaged with the run's weights.
    """

    paper = "Lee et al., NeurIPS 2022"
    supports_ala = True
    unsampled_model = "the global model"
    cost = "a step adds a forward pass of the received model, which it reads (P)"
    dp_incompatible_reason = ""

    beta: float = hyper("weight of the distillation", low=0)
    tau: float = hyper("temperature of both predictions", above=0)

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
        """SGD on L_CE(q, y) + beta L_NTD(q~_l, q~_g)."""

        def loss(logits: Tensor, batch: Batch) -> Tensor:
            teacher = stock.teacher_logits(self.task, given.down.w, batch)
            taught = not_true_divergence(logits, teacher, batch.y, self.tau)
            return cross_entropy(logits, batch) + self.beta * mean_over(taught, batch)

        g = self.task.grad(work.w, batch, loss)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


def not_true_divergence(logits: Tensor, teacher: Tensor, y: Tensor, tau: float) -> Tensor:
    """Return L_NTD [B] = sum_{c != y} q~_g(c) log(q~_g(c) / q~_l(c)) of logits and a teacher's [B, K], labels y [B].

    q~ is the softmax of logits / tau over the classes other than y.
    """
    true = torch.zeros_like(logits, dtype=torch.bool).scatter(1, y[:, None], True)
    ours, theirs = ((z / tau).masked_fill(true, -torch.inf).log_softmax(1) for z in (logits, teacher))
    # The true class has probability 0 in both, and a difference of infinities would be NaN
    return (theirs.exp() * (theirs.masked_fill(true, 0) - ours.masked_fill(true, 0))).sum(1)
