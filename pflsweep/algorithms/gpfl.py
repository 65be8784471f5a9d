"""GPFL: a conditional valve computes global features, held near shared category embeddings, and personal features."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, Vector, hyper
from pflsweep.methods.task import Batch, cross_entropy, mean_over
from pflsweep.ops import random
from pflsweep.ops.vmap import per_client


class Server(NamedTuple):
    w: Tensor  # [F] the extractor
    guide: Tensor  # [Q] the embeddings C (GCE) and the valve (CoV)


class Down(NamedTuple):
    w: Vector  # [C, F]
    guide: Vector  # [C, Q]


class Client(NamedTuple):
    head: Tensor  # [H]
    share: Tensor  # [K] alpha_i, the class shares of its data; equal before its first turn


class Up(NamedTuple):
    w: Vector  # [C, F]
    guide: Vector  # [C, Q]


@dataclass(frozen=True, kw_only=True)
class GPFL(Method):
    """Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and Personalized Feature
    Information for Personalized Federated Learning. ICCV 2023. https://arxiv.org/abs/2308.10279

    A vector w [P + Q] is a model, the category embeddings [K, D], and the valve's two layers (gamma, beta: linear,
    ReLU, layer norm). Written from the authors' code (TsingZ0/GPFL); the paper's text was not at hand. What is decided
    here, or differs:
    - the conditional inputs are means of the received embeddings: over all classes for global features, weighted by the
      client's class shares for personal ones (the code: of the embeddings that the client trained last, zeros at
      first);
    - the magnitude-level loss is the mean over samples of |f_G - C_y| (the code: one norm of the whole batch's matrix);
    - mu is a weight decay of embeddings and valve, as in the code, in addition to the run's.
    """

    paper = "Zhang et al., ICCV 2023"
    unsampled_model = "the newest shared parts with the common initial head and equal class shares"
    cost = "the valve (2 D^2 parameters), applied twice a step, and the embeddings (K D)"
    dp_incompatible_reason = "class shares steer its features"

    lam: float = hyper("weight of the magnitude-level loss (lambda)", low=0)
    mu: float = hyper("weight decay of embeddings and valve (mu)", low=0)

    fit = stock.local_epochs
    global_model = stock.no_global_model

    def init(self, w: Tensor, setup: Setup) -> Server:
        width, classes = self.task.width, self.task.classes
        embeddings = random.normal(random.fold(setup.key, 0), (classes * width,)).to(w)
        layers = [stock.drawn_linear(random.fold(setup.key, k), width, width).to(w) for k in (1, 2)]
        norm = torch.cat([w.new_ones(width), w.new_zeros(width)])
        return Server(w[self.task.extractor], torch.cat([embeddings, layers[0], norm, layers[1], norm]))

    def init_client(self, w: Tensor, setup: Setup) -> Client:
        return Client(w[self.task.head], w.new_full((setup.classes,), 1 / setup.classes))

    def send(self, server: Server, turn: Turn) -> Down:
        return Down(stock.to_all(server.w, turn), stock.to_all(server.guide, turn))

    def start(self, given: Given, data: Any) -> stock.Work:
        w = torch.cat([given.down.w, given.client.head, given.down.guide], 1)
        return stock.Work(w, self.opt.init(w))

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on L_P + L_alg + lambda L_mlg + mu / 2 |C, CoV|^2."""
        size, received = self.task.size, self.embeddings(given.down.guide)
        shared, personal = received.mean(0), shares(given.class_counts, work.w.dtype) @ received  # g and p_i

        def loss(w: Tensor, batch: Batch) -> Tensor:
            z, guide = self.task.trained_features(w, batch), w[size:]
            f_g = self.valve(guide, z, shared)
            angle = F.normalize(f_g) @ F.normalize(self.embeddings(guide)).T
            magnitude = torch.linalg.vector_norm(f_g - received[batch.y], dim=1)
            logits = self.task.classify(w[self.task.head], self.valve(guide, z, personal))
            of_global = cross_entropy(angle, batch) + self.lam * mean_over(magnitude, batch)
            return cross_entropy(logits, batch) + of_global + self.mu / 2 * guide.square().sum()

        _, g = self.task.value_and_grad_of(loss, work.w, batch)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))

    def embeddings(self, guide: Tensor) -> Tensor:
        """Return the category embeddings C [K, D]."""
        classes, width = self.task.classes, self.task.width
        return guide[: classes * width].view(classes, width)

    def valve(self, guide: Tensor, z: Tensor, condition: Tensor) -> Tensor:
        """Apply CoV to features z: ReLU((gamma + 1) z + beta) [B, D], with gamma and beta from the condition [D]."""
        width = self.task.width
        parts = []
        for layer in guide[self.task.classes * width :].view(2, -1):
            weight, bias = layer[: width * width].view(width, width), layer[width * width :].view(3, width)
            hidden = F.linear(condition, weight, bias[0]).relu()
            parts.append(F.layer_norm(hidden, (width,), bias[1], bias[2]))
        gamma, beta = parts
        return ((gamma + 1) * z + beta).relu()

    def finish(self, given: Given, data: Any, work: stock.Work) -> tuple[Up, Client]:
        size, w = self.task.size, work.w
        share = shares(given.class_counts, w.dtype)
        return Up(w[:, self.task.extractor], w[:, size:]), Client(w[:, self.task.head], share)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        return Server(turn.share @ up.w, turn.share @ up.guide)

    def personal(self, server: Server, client: Client, data: Any, turn: Turn) -> Tensor:
        """Return the newest shared parts with the own head and, for `logits`, the condition p_i: [C, P + Q + D]."""
        condition = client.share @ self.embeddings(server.guide)
        parts = stock.to_all(server.w, turn), client.head, stock.to_all(server.guide, turn), condition
        return torch.cat(parts, 1)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        size, width = self.task.size, self.task.width
        f_p = self.valve(w[size:-width], self.task.features(w, x), w[-width:])
        return self.task.classify(w[self.task.head], f_p)


def shares(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Return class counts [..., K] as shares."""
    return labels.to(dtype) / labels.sum(-1, keepdim=True)
