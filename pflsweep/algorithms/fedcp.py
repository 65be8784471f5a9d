"""FedCP: a learnt policy splits a sample's features into a part for the client's head and one for the global head."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.algorithms.fedphp import mmd
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch, cross_entropy
from pflsweep.ops.vmap import per_client

# Of MMD's kernels exp(-d^2 / width); the authors' code has exp(-d^2 / (2 a)) with a = 10, 15, 20, 50
WIDTHS = (20, 30, 40, 100)


@dataclass(frozen=True, kw_only=True)
class FedCP(Method):
    """Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for Personalized Federated Learning
    via Conditional Policy. KDD 2023. https://arxiv.org/abs/2307.01217

    The policy network (CPN) is a linear layer with layer norm and ReLU, on the features times the client's context. Its
    2 D outputs decide between the heads for each of the D features. A vector w [P + Q] is a model and the CPN's Q
    parameters; in the shared vector the model has the global head. Written from the authors' code (TsingZ0/FedCP); the
    paper's text was not at hand. What is decided here, or differs:
    - the policy is a softmax (the code: Gumbel-softmax, with noise in evaluation too);
    - the context is the sum over classes of the own head's weights, also in the first turn (the code: random there);
    - the received extractor, to whose features MMD compares, has no dropout;
    - momentum and weight decay are the run's (the code: none).
    """

    paper = "Zhang et al., KDD 2023"
    unsampled_model = "the newest shared parts with the common initial head"
    cost = "a step adds a forward pass of the received extractor, MMD of the batch, and the CPN (2 D^2 parameters)"
    dp_incompatible_reason = "MMD's gradient is not a sum over samples"

    lam: float = hyper("weight of MMD between the trained and the received extractor's features (lambda)", low=0)

    init_client = stock.own_head
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.no_global_model

    def init(self, w: Tensor, setup: Setup) -> stock.Server:
        """Return the model, whose head is the global one, and the CPN."""
        width = self.task.width
        linear = stock.drawn_linear(setup.key, width, 2 * width).to(w)
        return stock.Server(torch.cat([w, linear, w.new_ones(2 * width), w.new_zeros(2 * width)]))

    def start(self, given: Given, data: Any) -> stock.Work:
        received, size = given.down.w, self.task.size
        w = torch.cat([received[:, self.task.extractor], given.client.head, received[:, size:]], 1)
        return stock.Work(w, self.opt.init(w))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on CE(g(r h; W_i) + g(s h; W_g)) + lambda MMD(h, h_g); the global head and extractor are frozen."""
        frozen, size = given.down.w, self.task.size
        received = self.task.batch_features(frozen, batch)

        def loss(w: Tensor, batch: Batch) -> Tensor:
            z = self.task.trained_features(w, batch)
            logits = self.split(w[size:], given.client.head, w[self.task.head], frozen[self.task.head], z)
            return cross_entropy(logits, batch) + self.lam * mmd(z, received, batch, WIDTHS)

        _, g = self.task.value_and_grad_of(loss, work.w, batch)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def split(self, cpn: Tensor, context_head: Tensor, own: Tensor, common: Tensor, z: Tensor) -> Tensor:
        """Return logits [B, K] of features z [B, D]: the sum of both heads', each on its part of the features."""
        width, classes = self.task.width, self.task.classes
        context = F.normalize(context_head[: classes * width].view(classes, width).sum(0), dim=0)  # v / |v|
        weight, rest = cpn[: 2 * width * width].view(2 * width, width), cpn[2 * width * width :].view(3, 2 * width)
        hidden = F.layer_norm(F.linear(z * context, weight, rest[0]), (2 * width,), rest[1], rest[2])
        r, s = hidden.relu().view(-1, 2, width).softmax(1).unbind(1)  # r + s = 1
        return self.task.classify(own, r * z) + self.task.classify(common, s * z)

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[stock.Up, stock.OwnHead]:
        """Upload the extractor, the mean of both heads, and the CPN."""
        w, head = work.w, work.w[:, self.task.head]
        mixed = (head + given.down.w[:, self.task.head]) / 2
        return stock.Up(torch.cat([w[:, self.task.extractor], mixed, w[:, self.task.size :]], 1)), stock.OwnHead(head)

    def personal(self, server: stock.Server, client: stock.OwnHead, data: Any, turn: Turn) -> Tensor:
        """Return the shared parts and, for `logits`, the client's own head: [C, P + Q + H]."""
        return torch.cat([stock.to_all(server.w, turn), client.head], 1)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        end = len(w) - (self.task.head.stop - self.task.head.start)
        return self.split(w[self.task.size : end], w[end:], w[end:], w[self.task.head], self.task.features(w, x))
