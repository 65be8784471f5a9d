"""MOON: a client's features are drawn to those of the received model, and away from those of its previous model."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Method, hyper
from pflsweep.methods.task import Batch, cross_entropy, mean_over
from pflsweep.ops.vmap import per_client


@dataclass(frozen=True, kw_only=True)
class Moon(Method):
    """Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021.
    https://arxiv.org/abs/2103.16257 (Algorithm 1)

    mu = 0 is FedAvg, and so is a turn whose previous model is the received one, as in round 1. Where we differ:
    - R_w(x) are the features that the model's head sees; the paper puts a projection head of two layers below the head,
      which here would be part of the model;
    - w_i^{t-1} is the model of the client's last turn; before its first turn it is the common initial model (the
      authors' code: a random one for each client; FL-bench: the received one);
    - neither of the two fixed models has dropout.
    """

    paper = "Li et al., CVPR 2021"
    supports_ala = True
    unsampled_model = "the global model"
    cost = "a step adds two forward passes and reads both models (2P); a client keeps P"
    dp_incompatible_reason = ""

    mu: float = hyper("weight of the model-contrastive loss", low=0)
    tau: float = hyper("temperature of the contrast", above=0)

    init = stock.global_server
    init_client = stock.own_model
    send = stock.broadcast
    start = stock.start_from_down
    fit = stock.local_epochs
    finish = stock.upload_and_keep
    aggregate = stock.average
    personal = stock.personal_is_global
    global_model = stock.shared_model

    @per_client
    def step(self, given: Given, work: stock.Work, batch: Batch) -> stock.Work:
        """SGD on l_sup + mu l_con (eq. 4)."""

        def loss(logits: Tensor, z: Tensor, batch: Batch) -> Tensor:
            received, previous = (self.task.batch_features(w, batch) for w in (given.down.w, given.client.w))
            contrast = contrastive(z, received, previous, self.tau)
            return cross_entropy(logits, batch) + self.mu * mean_over(contrast, batch)

        _, g = self.task.value_and_grad(work.w, batch, loss, features=True)
        return stock.Work(*self.opt.update(work.w, work.opt, g, given.turn.lr))


def contrastive(z: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """Return l_con [B] (eq. 3) of features [B, D]: -log e^{s/tau} / (e^{s/tau} + e^{s'/tau}).

    s is the cosine similarity to the received model's features, s' that to the previous one's.
    """
    near, far = (F.cosine_similarity(z, other, dim=1) / tau for other in (received, previous))
    return torch.logaddexp(near, far) - near
