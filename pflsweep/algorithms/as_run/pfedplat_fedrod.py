"""FedRoD as FedPG's platform runs it: the private part is a bias on top of the head that the client received."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.algorithms.fedrod import balanced_softmax
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] generic
    opt: Tensor  # [C, P] or [C, 0]
    bias: Tensor  # [C, K] b_p, private
    bias_opt: Tensor  # [C, K] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class PfedplatFedRoD(Method):
    """FedRoD (Chen and Chao, ICLR 2022) in pfedplat bce4bd1, the public platform of FedPG's authors.

    S is the received model, W_S the weight of its last layer. Where it differs from the paper:
    - a private head is W_S z + b_p. Only the bias b_p is the client's own and is trained, on the same batch as the
      generic model and after its step, by CE of the generic logits plus W_S z + b_p;
    - b_p has the initial learning rate in all rounds (`private_lr`);
    - a client is evaluated with W_S z + b_p on S's body, of its last turn (the code doubles these logits, which changes
      no prediction).
    """

    paper = "Chen and Chao, ICLR 2022, as FedPG's platform runs it"
    version = 2
    unsampled_model = "the common initial model"
    cost = "a step adds a second forward pass for the private bias; a client keeps P"
    dp_incompatible_reason = "label counts enter its loss"

    private_lr: float = hyper("learning rate of the private bias, without decay", above=0)

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average
    personal = stock.personal_is_own
    global_model = stock.shared_model

    def start(self, given: Given, data: Any) -> Work:
        w, bias = given.down.w, given.client.w[:, stock.last_bias(self)]
        return Work(w, self.opt.init(w), bias, self.opt.init(bias))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        g = self.task.grad(work.w, batch, balanced_softmax(given.class_counts, work.w.dtype))
        w, opt = self.opt.update(work.w, work.opt, g, given.turn.lr)
        # The generic logits plus W_S z + b_p are those of one model whose last layer is the sum of both
        bias, head = stock.last_bias(self), self.task.head
        private = torch.cat([given.down.w[head.start : bias.start], work.bias])
        summed = torch.cat([w[: head.start], w[head] + private])
        g = self.task.grad(summed, batch, part=bias)
        return Work(w, opt, *self.opt.update(work.bias, work.bias_opt, g, self.private_lr))

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.Own]:
        bias = stock.last_bias(self)
        return stock.Up(work.w), stock.Own(torch.cat([given.down.w[:, : bias.start], work.bias], 1))
