"""FedRep: one extractor for all, a head for each client, trained one after the other."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.engine import parts
from pflsweep.engine.lift import each
from pflsweep.engine.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.engine.task import Batch


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
    - both phases have an optimiser of their own; weight decay and momentum act on the trained part alone;
    - there is no global model: heads never leave their clients. FedPG's tables print one of averaged heads, whose
      upload the wire would have to count.
    """

    paper = "Collins et al., ICML 2021"
    mixes = True
    unsampled = "the newest extractor with the common initial head"
    cost = (
        "one more epoch (`head_epochs`), whose gradients are the head's alone; later ones stop below it; the head "
        "is kept"
    )
    leaks = ""

    head_epochs: int = hyper("epochs on the head (tau), before the epochs on the extractor", low=0)

    @classmethod
    def passes(cls, epochs: int, **values: Any) -> float:
        return 1 + float(values["head_epochs"]) / (3 * epochs)  # a head's gradient is little more than a forward pass

    init_client = parts.own_head
    send = parts.broadcast
    aggregate = parts.average  # Server update: phi = sum_i p_i phi_i
    global_model = parts.no_global_model

    def init(self, w: Tensor, setup: Setup) -> parts.Server:
        return parts.Server(w[self.task.extractor])

    def start(self, given: Given, data: Any) -> Work:
        phi, head = given.down.w, given.client.head
        return Work(torch.cat([phi, head], 1), self.opt.init(head), self.opt.init(phi))

    def fit(self, given: Given, data: Any, work: Work) -> Work:
        work = parts.run(self.head_step, given, work, data.train(self.head_epochs, "head"))
        return parts.run(self.body_step, given, work, data.train(self.epochs))

    @each
    def head_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """Client update of h_i: GRD(f_i(h, phi^t), h, alpha), tau times."""
        g = self.task.grad(work.w, batch, part=self.task.head)
        w, opt = self.opt.update(work.w, work.head_opt, g, given.turn.lr, self.task.head)
        return work._replace(w=w, head_opt=opt)

    @each
    def body_step(self, given: Given, work: Work, batch: Batch) -> Work:
        """Client update of phi_i: GRD(f_i(h_i^{t,tau}, phi), phi, alpha)."""
        g = self.task.grad(work.w, batch, part=self.task.extractor)
        w, opt = self.opt.update(work.w, work.body_opt, g, given.turn.lr, self.task.extractor)
        return work._replace(w=w, body_opt=opt)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[parts.Up, parts.OwnHead]:
        return parts.Up(work.w[:, self.task.extractor]), parts.OwnHead(work.w[:, self.task.head])

    def personal(self, server: parts.Server, client: parts.OwnHead, data: Any, turn: Turn) -> Tensor:
        return torch.cat([parts.to_all(server.w, turn), client.head], 1)
