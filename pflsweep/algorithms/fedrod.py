"""FedRoD: a generic head that all clients share, and a private head for each client that is added to it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, Setup, Turn, hyper
from pflsweep.methods.task import Batch, Loss, cross_entropy
from pflsweep.ops.vmap import per_client


class Work(NamedTuple):
    w: Tensor  # [C, P] phi and h, generic
    opt: Tensor  # [C, P] or [C, 0]
    head: Tensor  # [C, H] h_i^p, private
    head_opt: Tensor  # [C, H] or [C, 0]


def balanced_softmax(labels: Tensor, dtype: torch.dtype) -> Loss:
    """Return the loss CE(logits + log pi) (Ren et al., NeurIPS 2020). pi are a client's class counts [K], normalised.

    log pi is finite for missing classes too, since padding may have them.
    """
    counts = labels.to(dtype)
    log_prior = (counts / counts.sum()).clamp(min=torch.finfo(dtype).tiny).log()

    def loss(logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits + log_prior, batch)

    return loss


@dataclass(frozen=True, kw_only=True)
class FedRoD(Method):
    """Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification.
    ICLR 2022. https://arxiv.org/abs/2107.00778 (Algorithm 1 with linear private heads)

    Both heads are linear, so a client's model, with the logits h(z) + h_i^p(z), is a plain model whose head
    is h + h_i^p. The variant with private heads from a hypernetwork is not included. Where we differ:
    - pi_i counts all training data of a client (public code: a pass that drops the last batch), and a class
      that the client lacks has the smallest positive prior instead of 0;
    - both heads learn from the same batch, the private one from z and h(z) before the generic step;
    - models are averaged with the run's weights.
    """

    paper = "Chen and Chao, ICLR 2022"
    unsampled_model = "the newest generic model plus the initial private head"
    cost = "a step adds a second forward pass for the private head; a client keeps that head"
    dp_incompatible_reason = "label counts enter its loss"

    init_personal: str = hyper("a private head starts as a copy of the generic one, or zero", choices=("copy", "zero"))

    init = stock.global_server
    send = stock.broadcast
    fit = stock.local_epochs
    aggregate = stock.average
    global_model = stock.shared_model

    def init_client(self, w: Tensor, setup: Setup) -> stock.OwnHead:
        head = w[self.task.head]
        return stock.OwnHead(head if self.init_personal == "copy" else torch.zeros_like(head))

    def start(self, given: Given, data: Any) -> Work:
        w, head = given.down.w, given.client.head
        return Work(w, self.opt.init(w), head, self.opt.init(head))

    @per_client
    def step(self, given: Given, work: Work, batch: Batch) -> Work:
        g = self.task.grad(work.w, batch, balanced_softmax(given.class_counts, work.w.dtype))
        # CE(h(z) + h^p(z)) with z and h constant: its gradient in h^p is that in the summed head
        g_head = self.task.grad(self.combined(work.w, work.head), batch, part=self.task.head)
        return Work(
            *self.opt.update(work.w, work.opt, g, given.turn.lr),
            *self.opt.update(work.head, work.head_opt, g_head, given.turn.lr),
        )

    def combined(self, w: Tensor, head: Tensor) -> Tensor:
        """Return the model [..., P] with the head h + h^p."""
        return torch.cat([w[..., self.task.extractor], w[..., self.task.head] + head], -1)

    def finish(self, given: Given, data: Any, work: Work) -> tuple[stock.Up, stock.OwnHead]:
        return stock.Up(work.w), stock.OwnHead(work.head)

    def personal(self, server: stock.Server, client: stock.OwnHead, data: Any, turn: Turn) -> Tensor:
        return self.combined(stock.to_all(server.w, turn), client.head)
