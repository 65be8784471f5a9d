"""FedBABU: clients learn a common extractor under a fixed head, and fine-tune the whole model for evaluation."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [F] phi, the shared extractor
    head: Tensor  # [H] h^0, the common initial head


@dataclass(frozen=True, kw_only=True)
class FedBABU(Method):
    """Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.
    https://arxiv.org/abs/2106.06042 (Algorithm 1)

    Clients know h^0 from the common seed, so it is never sent. Where we differ:
    - extractors are averaged with the run's weights (the authors' code: a plain mean);
    - clients fine-tune at every evaluation (the paper: after the last round), from the newest extractor, with
      the run's momentum and weight decay; the result is not kept.
    """

    paper = "Oh et al., ICLR 2022"
    unsampled_model = "the newest global model, fine-tuned on its own data as every client's"
    cost = "steps have no gradient of the head; each evaluation of a client fine-tunes the whole model"
    dp_incompatible_reason = ""  # fine-tuning belongs to evaluation and is not sent

    finetune_epochs: int = hyper("epochs in which a client fine-tunes the whole model before evaluation", low=0)
    finetune_lr: float = hyper("learning rate of the fine-tuning, without decay", low=0)

    init_client = stock.own_head
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w[self.task.extractor], w[self.task.head])

    def start(self, given: Given, data: Any) -> stock.Work:
        phi = given.down.w
        return stock.Work(torch.cat([phi, given.client.head], 1), self.opt.init(phi))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """ClientBodyUpdate: SGD of the extractor; the head's learning rate is 0."""
        g = self.task.grad(work.w, batch, part=self.task.extractor)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr, self.task.extractor))

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, stock.OwnHead]:
        return stock.Up(work.w[:, self.task.extractor]), given.client

    def global_model(self, server: Server) -> Tensor:
        return torch.cat([server.w, server.head])

    def personal(self, server: Server, client: stock.OwnHead, data: Any, turn: Turn) -> Tensor:
        """Fine-tune the whole model, head included, on the client's training data (section 5)."""
        w = torch.cat([stock.to_all(server.w, turn), client.head], 1)
        batches = data.train(self.finetune_epochs, "finetune")
        return stock.run(self.tune, turn, stock.Work(w, self.opt.init(w)), batches).w

    @per_client
    def tune(self, turn: Turn, work: stock.Work, batch: Batch) -> stock.Work:
        g = self.task.grad(work.w, batch)
        return stock.Work(*self.opt.update(work.w, work.opt, g, self.finetune_lr))
