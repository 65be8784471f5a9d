"""SplitGP as FedPG's platform evaluates it: with the body that a client has trained and the global head."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Kept, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [P] the global model: the mean of the copies with the global head
    own: Tensor  # [N, P] each client's personal model, from which its next turn begins
    initial: Tensor  # [P]


class Down(NamedTuple):
    own: Vector  # [C, P]
    general: Vector  # [C, P] the global model
    w: Kept  # [C, 2 P] the initial and the global model, around which attack.around forges the two uploads


class Work(NamedTuple):
    own: Tensor  # [C, P]
    own_opt: Tensor  # [C, P] or [C, 0]
    copy: Tensor  # [C, P]
    copy_opt: Tensor  # [C, P] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class PfedplatSplitGP(Method):
    """SplitGP (Han et al., INFOCOM 2023) in the later release of pfedplat, the platform of FedPG's authors: SplitGP_g.

    It trains like `algorithm=splitgp algorithm.form=platform`, but the personal model has the initial learning rate in
    all rounds (`private_lr`), and the copy that of the client (train.lr_of=last_turn: of the round after its last
    turn). Samples are not routed (the threshold is unused), and a client is evaluated with the copy of its body with
    the global head, as trained in its last turn. In that release gamma is FedPG's flag, whose default of 1 gives the
    global head no gradient and evaluates the body from before training; the printed numbers need a smaller gamma, so
    its value is inferred.
    """

    paper = "Han et al., INFOCOM 2023, as FedPG's platform runs it"
    version = 2
    supports_per_client_lr = True
    unsampled_model = "the common initial model"
    cost = "a second forward and backward pass in every step; the server keeps a model per client (N P)"
    dp_incompatible_reason = ""
    reconstruction = "gamma is inferred from the printed numbers"

    gamma: float = hyper("weight of the personal model in the loss, and of its own part in the mix", low=0, high=1)
    private_lr: float = hyper("learning rate of the personal model, without decay", above=0)

    init_client = stock.own_model
    fit = stock.local_epochs
    personal = stock.personal_is_own
    global_model = stock.shared_model
    relative_gradients = classmethod(stock.two_gradients)

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, w.repeat(setup.clients, 1), w)

    def send(self, server: Server, turn: Turn) -> Down:
        known = torch.cat([server.initial, server.w])
        return Down(server.own[turn.ids], stock.to_all(server.w, turn), stock.to_all(known, turn))

    def start(self, given: Given, data: Any) -> Work:
        own = given.down.own
        copy = torch.cat([own[:, self.task.extractor], given.down.general[:, self.task.head]], 1)
        return Work(own, self.opt.init(own), copy, self.opt.init(copy))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD on gamma * loss(personal) + (1 - gamma) * loss(copy)."""
        own, copy = self.gamma * self.task.grad(work.own, batch), (1 - self.gamma) * self.task.grad(work.copy, batch)
        return Work(
            *self.opt.update(work.own, work.own_opt, own, self.private_lr),
            *self.opt.update(work.copy, work.copy_opt, copy, given.turn.lr),
        )

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.Own]:
        return stock.Up(torch.cat([work.own, work.copy], 1)), stock.Own(work.copy)

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        trained, copies = up.w.split(self.task.size, 1)
        own = server.own.clone()
        own[turn.ids] = self.gamma * trained + (1 - self.gamma) * (turn.share @ trained)
        return server._replace(w=turn.share @ copies, own=own)
