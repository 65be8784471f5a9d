"""APFL as FedPG's platform runs it: the private model learns alone and is then overwritten by the mixture."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Client(NamedTuple):
    v: Tensor  # [P] the private model
    alpha: Tensor  # [] its weight in the mixture


class Work(NamedTuple):
    w: Tensor  # [C, P] the copy of the global model
    opt: Tensor  # [C, P] or [C, 0]
    v: Tensor  # [C, P]
    v_opt: Tensor  # [C, P] or [C, 0]
    alpha: Tensor  # [C]


@dataclass(frozen=True, kw_only=True)
class PfedplatAPFL(Method):
    """APFL (Deng, Kamani, Mahdavi, arXiv 2020) in pfedplat bce4bd1, the public platform of FedPG's authors.

    Where it differs from the paper, for each batch, with gradients from before the steps:
    - v steps along the gradient of its own loss, not of the mixture's, and then becomes the mixture:
      v <- alpha v + (1 - alpha) w;
    - alpha moves in every batch: alpha <- alpha - lr (<v - w, alpha grad f(v) + (1 - alpha) grad f(w)> + 0.02 alpha),
      within [0, 1], with the new v and w;
    - a client is evaluated with v of its last turn;
    - v and alpha have the learning rate of the client (train.lr_of=last_turn: that of the round after its last turn),
      w that of the round.
    """

    paper = "Deng et al., arXiv 2020, as FedPG's platform runs it"
    supports_per_client_lr = True
    unsampled_model = "the common initial model"
    cost = "a step computes a second gradient and the mixture (3P); a client keeps P + 1 numbers"
    dp_incompatible_reason = ""

    alpha: float = hyper("weight of the private model in the mixture to start from", low=0, high=1)

    init = stock.global_server
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.shared_model
    relative_gradients = classmethod(stock.two_gradients)

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w, w.new_tensor(self.alpha))

    def start(self, given: Given, data: Any) -> Work:
        w, client = given.down.w, given.client
        return Work(w, self.opt.init(w), client.v, self.opt.init(client.v), client.alpha)

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        lr, alpha = given.turn.lr, work.alpha
        g, g_v = self.task.grad(work.w, batch), self.task.grad(work.v, batch)
        w, opt = self.opt.update(work.w, work.opt, g, given.turn.round_lr)
        v, v_opt = self.opt.update(work.v, work.v_opt, g_v, lr)
        v = alpha * v + (1 - alpha) * w
        slope = (v - w) @ (alpha * g_v + (1 - alpha) * g) + 0.02 * alpha
        return Work(w, opt, v, v_opt, (alpha - lr * slope).clamp(0, 1))

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, Client]:
        return stock.Up(work.w), Client(work.v, work.alpha)

    def personal(self, server: stock.Server, client: Client, data: Any, turn: Turn) -> Tensor:
        return client.v
