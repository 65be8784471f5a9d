"""FedFomo with model averages: each client weights the others by how the average of all models worsens without them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pflsweep.algorithms.fedfomo import Fomo, Server, Work, normalised
from pflsweep.methods import stock
from pflsweep.methods.protocol import Given, Ids, Scalars, Turn, Vector


class Down(NamedTuple):
    mean: Vector  # [C, P] the average of all K uploaded models; [C, 0] before the first upload
    without: Vector  # [C, m, P] averages of all but one of them
    ids: Ids  # [C, m] the client that is left out; -1: none
    uploads: Scalars  # [C] K


@dataclass(frozen=True, kw_only=True)
class FedFomoMA(Fomo):
    """Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization.
    ICLR 2021. https://arxiv.org/abs/2012.08565 (section A.4, "Ours (MA)")

    A client receives leave-one-out averages in place of single models, and starts from the average of all. Weights are
    not divided by distances; all else is as in FedFomo (see its list). What the paper leaves open (it gives the weights
    of eq. 14 alone):
    - the mix is mean + sum_n w*_n (theta_n - mean), where theta_n follows from the two averages;
    - the clients to leave out are chosen by P, as FedFomo chooses models; the client itself is always one of them, and
      computes that average itself;
    - averages are over the latest models of all clients that have uploaded; while only one has, there is no average
      without it, and all clients start from its model.
    """

    paper = "Zhang et al., ICLR 2021"
    unsampled_model = "the common initial model"
    cost = "M + 1 forward passes over the validation share; reads M averages (M P); the server keeps N models"
    dp_incompatible_reason = ""  # apart from the gains, as FedFomo
    reconstruction = "how the weights of eq. 14 move the average"

    def send(self, server: Server, turn: Turn) -> Down:
        ids, count = self.choose(server, turn), server.known.sum()
        # Rows of clients that have not uploaded are zero
        mean = server.models.new_zeros(0) if not count else server.models.sum(0) / count
        without = (server.models.sum(0) - server.models[ids.clamp(min=0)]) / (count - 1).clamp(min=1)
        known = count.to(server.models.dtype)
        return Down(stock.for_each(mean, turn), without, ids, stock.for_each(known, turn))

    def start(self, given: Given, data: Any) -> Work:
        """Start from the mix. w_n is the loss of the average without theta_n minus that of the average (eq. 14)."""
        down, client = given.down, given.client
        if not down.mean.shape[1]:
            alone = client.before
            return Work(alone, self.opt.init(alone), alone, alone.new_zeros(len(alone), 1))
        _, validation = data.holdout(self.validation)
        mean, others = down.mean[:, None], (down.uploads - 1).clamp(min=1)[:, None, None]
        own = mean + (mean - client.trained[:, None]) / others  # the average without the client's own model
        without = torch.cat([own, down.without], 1)
        losses = validation.mean(self.losses, torch.cat([mean, without], 1))
        valid = torch.cat([given.turn.last[:, None] >= 0, down.ids >= 0], 1) & losses[:, 1:].isfinite()
        valid &= (down.uploads > 1)[:, None]
        gains = torch.where(valid, losses[:, 1:] - losses[:, :1], 0)
        apart = torch.where(valid[:, :, None], others * (mean - without), 0)  # theta_n - mean
        mix = down.mean + (normalised(gains)[:, None] @ apart)[:, 0]
        return Work(mix, self.opt.init(mix), mix, gains)
