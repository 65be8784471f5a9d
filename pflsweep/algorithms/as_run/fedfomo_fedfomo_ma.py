"""FedFomo with model averages as its authors run it: one client is left out of the mean of five."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pflsweep.algorithms.as_run.fedfomo_fedfomo import AsRunFomo, Server, mean_of_active, moved, shares, weights
from pflsweep.algorithms.fedfomo import SAME, Client, Up
from pflsweep.methods.protocol import Ids, Turn, Vector
from pflsweep.methods.stock import to_all


class Down(NamedTuple):
    mean: Vector  # [C, P] of the last cohort's models
    models: Vector  # [C, m, P] the other clients' models
    ids: Ids  # [C, m] their clients; -1: no model


@dataclass(frozen=True, kw_only=True)
class FedFomoFedFomoMA(AsRunFomo):
    """FedFomo's variant "Ours (MA)" in NVlabs/FedFomo fe04f66, the authors' code (--baseline_model model_avg).

    Where it differs from algorithm=fedfomo_ma, which follows the paper's equation 14:
    - candidates are the client itself and the M - 1 that are chosen; an average without one of them is the plain mean
      of the others. The baseline, from which the mix starts, is the mean of the last cohort's models, weighted by n_i,
      and also the global model;
    - weights are divided by the L1 norm of the difference of these two means. Where they differ by rounding alone,
      as for a small cohort of clients of one size, a weight is 0;
    - losses, P, its draws and the evaluation are as in algorithm=as_run/fedfomo_fedfomo; there are no clusters.
    In the code the baseline of a round is over that round's cohort, which in all released commands is the last one.
    """

    paper = "Zhang et al., ICLR 2021, as its authors run it"
    unsampled_model = "the mix that it would begin with"
    cost = "M + 1 forward passes over the validation share, in evaluation too; the server keeps N models"
    dp_incompatible_reason = ""  # apart from the gains, as FedFomo
    version = 2  # means that differ by rounding alone have weight 0

    def send(self, server: Server, turn: Turn) -> Down:
        ids = self.choose(server, turn)
        mean = server.means[-1] if server.there[-1] else server.means.new_zeros(0)
        return Down(to_all(mean, turn), server.models[ids.clamp(min=0)], ids)

    def mixed(self, down: Down, client: Client, data: Any) -> tuple[Tensor, Tensor]:
        # Before the first upload
        if not down.mean.shape[1]:
            return client.trained, client.trained.new_zeros(len(client.trained), 1)
        _, validation = data.holdout(self.validation)
        valid = pad(down.ids >= 0, (1, 0), value=True)[:, :, None]
        models = torch.where(valid, torch.cat([client.trained[:, None], down.models], 1), 0)
        others = valid.sum(1, keepdim=True) - 1
        without = (models.sum(1, keepdim=True) - models) / others.clamp(min=1)
        without = torch.where(others > 0, without, models)  # a single candidate is not left out
        mean = down.mean[:, None]
        losses = self.rated(validation, torch.cat([mean, without], 1))
        better = losses[:, 1:] - losses[:, :1]
        weight = weights(better, without - mean, valid[:, :, 0], least=SAME * mean.abs().sum(2))
        return down.mean + moved(weight, models - mean), shares(weight)

    def aggregate(self, server: Server, up: Up, turn: Turn) -> Server:
        server = super().aggregate(server, up, turn)
        if not server.active.any():
            return server
        return server._replace(means=mean_of_active(server, server.active)[None], there=torch.ones_like(server.there))
