"""FedRep: a common extractor and a head for each client, which are trained one after the other."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] phi_i and h_i
    head_opt: Tensor  # [C, H] or [C, 0]
    body_opt: Tensor  # [C, F] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class FedRep(Method):
    """Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
    Learning. ICML 2021. https://arxiv.org/abs/2102.07078 (Algorithm 1)

    Where we or the authors' code differ from the paper:
    - the paper's tau head updates are `head_epochs` epochs, its one update of the extractor is E epochs;
    - extractors are averaged with the run's weights (the paper: a plain mean; the code: by samples);
    - the code fits all heads once more after the last round; here a client keeps the head of its last turn;
    - each phase has its own optimiser; weight decay and momentum act on the trained part alone;
    - there is no global model: heads never leave their clients. FedPG's tables print one with averaged heads, whose
      upload the traffic would have to count.
    """

    paper = "Collins et al., ICML 2021"
    supports_ala = True
    supports_per_client_lr = True
    unsampled_model = "the newest extractor with the common initial head"
    cost = (
        "one more epoch (`head_epochs`), with gradients of the head alone; later epochs have none of it; a client "
        "keeps its head"
    )
    dp_incompatible_reason = ""

    head_epochs: int = hyper("epochs on the head (tau), before the epochs on the extractor", low=0)

    relative_gradients = classmethod(stock.gradients_with_head)

    init_client = stock.own_head
    send = stock.broadcast
    aggregate = stock.average  # Server update: phi = sum_i p_i phi_i
    global_model = stock.no_global_model

    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        return stock.Server(w[self.task.extractor])

    def start(self, given: Given, data: Any) -> Work:
        phi, head = given.down.w, given.client.head
        return Work(torch.cat([phi, head], 1), self.opt.init(head), self.opt.init(phi))

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        work = stock.run(self.head_step, given, work, data.train(self.head_epochs, "head"))
        return stock.run(self.body_step, given, work, data.train(self.epochs))

    @per_client
    def head_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """Client update of h_i: GRD(f_i(h, phi^t), h, alpha), tau times."""
        g = self.task.grad(work.w, batch, part=self.task.head)
        w, opt = self.opt.update(work.w, work.head_opt, g, given.turn.lr, self.task.head)
        return work._replace(w=w, head_opt=opt)

    @per_client
    def body_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """Client update of phi_i: GRD(f_i(h_i^{t,tau}, phi), phi, alpha)."""
        g = self.task.grad(work.w, batch, part=self.task.extractor)
        w, opt = self.opt.update(work.w, work.body_opt, g, given.turn.lr, self.task.extractor)
        return work._replace(w=w, body_opt=opt)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.OwnHead]:
        return stock.Up(work.w[:, self.task.extractor]), stock.OwnHead(work.w[:, self.task.head])

    def personal(self, server: stock.Server, client: stock.OwnHead, data: Any, turn: Turn) -> Tensor:
        return torch.cat([stock.to_all(server.w, turn), client.head], 1)
