"""SplitGP: samples on which the client's exit is confident leave there, all others through a general exit."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Empty, Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [P] the global model: mean body, head of the server's exit
    own: Tensor  # [N, P] each client's own model: body phi_i, head kappa_i of the client's exit


class Work(NamedTuple):
    w: Tensor  # [C, P] client's exit: phi_i, kappa_i
    opt: Tensor  # [C, P] or [C, 0]
    general: Tensor  # [C, P] server's exit: its body and psi_i
    general_opt: Tensor  # [C, P] or [C, 0]


@dataclass(frozen=True, kw_only=True)
class SplitGP(Method):
    """Han, Kim, Choi, Brinton, Moon: SplitGP: Achieving Both Generalization and Personalization in Federated
    Learning. INFOCOM 2023. https://arxiv.org/abs/2212.08343

    A sample leaves through the client's exit where the entropy of its prediction (in nats) is below `threshold`,
    else through the server's. Two forms, which train on gamma * loss(client's) + (1 - gamma) * loss(server's):
    - `paper`: both exits share one body; the server's exit is the client's body with psi;
    - `platform`, as FedPG's authors ran it: the server's exit has its own body, at the start of each turn a copy of the
      client's, and is the global model in evaluation.
    Where we differ:
    - the model is cut below its last layer, so an exit is a head; kappa begins as a copy of psi;
    - the server computes and keeps the clients' mixes at a round's end (the paper: clients do);
    - clients train psi and send it (the paper: they send activations in every step). The traffic counts what is sent,
      P + H (paper) or 2 P (platform) in each direction; FedPG's comparison counts P;
    - means use the run's weights;
    - a saved personal model is the client's exit; the server's exit is in the saved global model (`paper`: its head);
    - batch norm is evaluated with the statistics of the client's exit in both exits.
    """

    paper = "Han et al., INFOCOM 2023"
    rows_on_server = ("own",)
    supports_per_client_lr = True
    unsampled_model = "the newest global model"
    cost = "a second forward and backward pass in every step; the server keeps a model per client (N P)"
    dp_incompatible_reason = ""
    reconstruction = (
        "the platform form, its gamma and threshold follow a description of the FedPG authors' platform; the paper's "
        "form its text, unverified in the defaults; cut, start and who mixes are ours"
    )

    form: str = hyper("two bodies (FedPG's authors), or one for both exits", choices=("platform", "paper"))
    gamma: float = hyper("weight of the client's exit in the loss", low=0, high=1)
    keep: float | None = hyper(
        "lambda: share of its own model that a client keeps at a round's end; null: gamma", low=0, high=1
    )
    threshold: float = hyper("entropy in nats below which the client's exit decides (E_th)", low=0)

    fit = stock.local_epochs
    init_client = stock.stateless_client
    global_model = stock.shared_model
    relative_gradients = classmethod(stock.two_gradients)

    def init(self, w: Tensor, setup: Setup) -> Server:
        return Server(w, w.repeat(setup.clients, 1))

    def send(self, server: Server, turn: Turn) -> stock.Down:
        """Send the client's own model, and its body with the server's head."""
        own = server.own[turn.ids]
        return stock.Down(self.packed(own, self.with_head(own, stock.to_all(server.w[self.task.head], turn))))

    def start(self, given: Given, data: Any) -> Work:
        w, general = self.unpacked(given.down.w)
        return Work(w, self.opt.init(w), general, self.opt.init(general))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        """SGD on gamma * loss(client's exit) + (1 - gamma) * loss(server's exit)."""
        g = self.gamma * self.task.grad(work.w, batch)
        general = (1 - self.gamma) * self.task.grad(work.general, batch)
        if self.form == "paper":
            # Both exits apply the same update to the body, so that it stays the same in both
            body = self.task.extractor
            both = g[body] + general[body]
            g, general = (torch.cat([both, part[self.task.head]]) for part in (g, general))
        return Work(
            *self.opt.update(work.w, work.opt, g, given.turn.lr),
            *self.opt.update(work.general, work.general_opt, general, given.turn.lr),
        )

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, Empty]:
        return stock.Up(self.packed(work.w, work.general)), Empty()

    def aggregate(self, server: Server, up: stock.Up, turn: Turn) -> Server:
        """Own models become lambda * own + (1 - lambda) * mean; the global model is the mean of the server's exits."""
        trained, general = self.unpacked(up.w)
        own = server.own.clone()
        keep = self.gamma if self.keep is None else self.keep
        own[turn.ids] = keep * trained + (1 - keep) * (turn.share @ trained)
        return Server(turn.share @ general, own)

    def personal(self, server: Server, client: Empty, data: Any, turn: Turn) -> Tensor:
        """Return both exits' models, one after the other, [C, 2 P], for `logits`."""
        general = stock.to_all(server.w, turn)
        own = torch.where((turn.last < 0)[:, None], general, server.own[turn.ids])
        if self.form == "paper":
            general = self.with_head(own, general[:, self.task.head])
        return torch.cat([own, general], 1)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return logits [B, K]: the client's exit where its entropy is below the threshold, else the server's."""
        own, general = (self.task.logits(model, x) for model in w.split(self.task.size))
        return torch.where((entropy(own) < self.threshold)[:, None], own, general)

    def packed(self, own: Tensor, general: Tensor) -> Tensor:
        """Join both exits' models [C, P] for sending: [C, 2 P], or [C, P + H] where they share a body."""
        return torch.cat([own, general[:, self.task.head] if self.form == "paper" else general], 1)

    def unpacked(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Split what `packed` has joined."""
        own, general = both[:, : self.task.size], both[:, self.task.size :]
        return own, self.with_head(own, general) if self.form == "paper" else general

    def with_head(self, w: Tensor, head: Tensor) -> Tensor:
        """Return models [C, P] with other heads [C, H]."""
        return torch.cat([w[:, self.task.extractor], head], 1)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy [B] in nats of the distributions that logits [B, K] predict."""
    return torch.special.entr(logits.softmax(1)).sum(1)
