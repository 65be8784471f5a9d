"""FedRep as FedPG's platform runs it: the last bias alone is personal."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P]
    bias_opt: Tensor  # [C, K] or [C, 0]
    rest_opt: Tensor  # [C, P - K] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class PfedplatFedRep(Method):
    """FedRep (Collins et al., ICML 2021) in pfedplat bce4bd1, the public platform of FedPG's authors.

    Where it differs from the paper:
    - the personal part is the bias of the last layer, K numbers. A turn begins with the received model and the
      client's own bias; the bias alone is trained for `head_epochs`, then all other parameters for E epochs;
    - all parameters are sent and averaged, so that there is a global model, with the mean of the biases;
    - a client is evaluated with the model that it has trained, whose body is not averaged yet;
    - both phases have the learning rate of the client (train.lr_of=last_turn: that of the round after its last turn).
    """

    paper = "Collins et al., ICML 2021, as FedPG's platform runs it"
    supports_per_client_lr = True
    unsampled_model = "the common initial model"
    cost = "one more epoch (`head_epochs`), with gradients of the last bias alone; a client keeps P"
    dp_incompatible_reason = ""

    head_epochs: int = hyper("epochs on the bias, before the epochs on all other parameters", low=0)

    relative_gradients = classmethod(stock.gradients_with_head)

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    aggregate = stock.average
    personal = stock.personal_is_own
    global_model = stock.shared_model

    def start(self, given: Given, data: Any) -> Work:
        bias = stock.last_bias(self)
        w = torch.cat([given.down.w[:, : bias.start], given.client.w[:, bias]], 1)
        return Work(w, self.opt.init(w[:, bias]), self.opt.init(w[:, : bias.start]))

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        work = stock.run(self.bias_step, given, work, data.train(self.head_epochs, "head"))
        return stock.run(self.rest_step, given, work, data.train(self.epochs))

    @per_client
    def bias_step(self, given: Given, work: Work, batch: Batch) -> Work:
        bias = stock.last_bias(self)
        g = self.task.grad(work.w, batch, part=bias)
        w, opt = self.opt.update(work.w, work.bias_opt, g, given.turn.lr, bias)
        return work._replace(w=w, bias_opt=opt)

    @per_client
    def rest_step(self, given: Given, work: Work, batch: Batch) -> Work:
        rest = slice(0, stock.last_bias(self).start)
        g = self.task.grad(work.w, batch, part=rest)
        w, opt = self.opt.update(work.w, work.rest_opt, g, given.turn.lr, rest)
        return work._replace(w=w, rest_opt=opt)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(work.w), stock.Own(work.w)
